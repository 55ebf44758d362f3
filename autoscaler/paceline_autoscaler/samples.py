"""What is known of one signal: a value, nothing, what is no number, or an old value. Unknown is never zero."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Present:
    """A value that can be relied on, within bounds.

    Attributes:
        value: what the replicas that answered add up to.
        at: when it was measured, in seconds of the source's clock.
        low: the least that it can be.
        high: the most that it can be; infinite where replicas are missing and nothing bounds what they would say.
        missing: replicas that should have been in it and are not.
    """

    value: float
    at: float
    low: float
    high: float
    missing: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.low <= self.value <= self.high):
            raise ValueError(f"a value is a number within its bounds, not {self.low} <= {self.value} <= {self.high}")

    @property
    def complete(self) -> bool:
        """Whether nothing is missing from it."""
        return self.missing == 0


@dataclass(frozen=True, slots=True)
class Absent:
    """The source has no such series, or cannot be asked; `reason` says which."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotANumber:
    """The source answered with something that cannot be a value of this signal: NaN, an infinity, a negative count."""

    text: str


@dataclass(frozen=True, slots=True)
class Stale:
    """The last value is older than a source that works would leave it.

    Attributes:
        value: the last one.
        age: seconds; negative where its time is ahead of the source's own clock.
    """

    value: float
    age: float


Sample: TypeAlias = Present | Absent | NotANumber | Stale


def exactly(value: float, at: float) -> Present:
    """A value that is complete."""
    return Present(value, at, value, value)


def why_unknown(sample: Sample) -> str | None:
    """What is wrong with a sample, to stand behind its name; None for one that is present and complete."""
    match sample:
        case Present(missing=0):
            return None
        case Present(missing=missing):
            return f"lacking {missing} replica{'s' * (missing != 1)}"
        case Absent(reason=reason):
            return f"absent ({reason})"
        case NotANumber(text=text):
            return f"not a count ({text})"
        case Stale(age=age):
            return f"{age:.0f} s old" if age >= 0 else f"{-age:.0f} s ahead of the source's clock"
