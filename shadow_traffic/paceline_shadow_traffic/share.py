"""A part of a whole, as counts that can be added."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """`hits` of `of`. Hits may be fractions: a sum of values from 0 to 1."""

    hits: float = 0.0
    of: float = 0.0

    def __add__(self, other: Share) -> Share:
        return Share(self.hits + other.hits, self.of + other.of)

    @property
    def value(self) -> float | None:
        """0 to 1; None where there is nothing to take a share of."""
        return self.hits / self.of if self.of else None


NOTHING = Share()
