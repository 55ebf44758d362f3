"""What a decision about knobs is made from, and what it is. Values only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TypeAlias

from paceline_crds.tuning import Knob

from .samples import Sample

Values: TypeAlias = Mapping[Knob, int]
Direction: TypeAlias = bool
"""True: tighter."""

MOVED = frozenset({"Tightened", "Loosened", "Eased", "TakenBack", "WithinBounds"})
"""Reasons of a decision that moves a knob."""

CALM = frozenset({"Steady", "Settling", "NotEnoughRequests", "Overloaded"})
"""Reasons to leave everything as it is that come and go."""

HELD = frozenset({"MetricsUnavailable"})
"""Reasons of a decision that is only to hold, since something is not known that should be."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What a pool's replicas measured over the last window.

    Attributes:
        tpot: seconds per token, as the promised share of the requests that ended had it at the most; no number while
            too few ended for that.
        ttft: seconds to the first token likewise, of those that got theirs.
        requests: arrivals per second.
        prefill, decode: prompt tokens computed, and answer tokens made, per second.
        waiting, running: requests, at this moment.
        preempted: requests per second that lost their blocks.
    """

    tpot: Sample
    requests: Sample
    prefill: Sample
    decode: Sample
    waiting: Sample
    running: Sample
    preempted: Sample
    ttft: Sample

    def all(self) -> Iterator[tuple[str, Sample]]:
        """Each by its name."""
        for one in fields(self):
            yield one.name, getattr(self, one.name)


@dataclass(frozen=True, slots=True)
class Range:
    """How far a knob may go.

    Attributes:
        started: what replicas start with; the knob goes back there when there is nothing to do.
    """

    least: int
    most: int
    started: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= self.started:
            raise ValueError(
                f"a knob goes from {self.least} to {self.most} of the {self.started} that replicas start with: the "
                "first has to be the least, and above zero"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """How eager decisions are.

    Attributes:
        settle: seconds after a change before the next one; longer than samples are over, so that what they say is what
            the change did.
        again_after: seconds for which a step that was taken back is not tried again, and for which a knob that was
            tightened is not eased; one that was loosened for a queue is not tightened for as long.
        calm_after: seconds with time to spare and nobody waiting, after which a knob begins to go back.
        down, up: what one step makes of a value.
        room: answers come with time to spare where TPOT is below this share of what is promised.
        waiting: requests waiting for each replica from which there are many.
        noise: a share below which two measurements are the same.
        alike: a share by which arrivals, and prompts' tokens, may differ for a before and an after to be comparable.
        prompts: share of all tokens from which prompts make steps long, and `mostly` from which nothing else does.
    """

    settle: float = 90.0
    again_after: float = 900.0
    calm_after: float = 600.0
    down: float = 0.7
    up: float = 1.3
    room: float = 0.8
    waiting: float = 1.0
    noise: float = 0.05
    alike: float = 0.25
    prompts: float = 0.1
    mostly: float = 0.8


@dataclass(frozen=True, slots=True)
class Trial:
    """A change that is not judged yet, and what was measured before it; `queued`: requests waited too long."""

    knob: Knob
    before: int
    tighter: Direction
    tpot: float
    tokens: float
    requests: float
    prefill: float
    queued: bool


@dataclass(frozen=True, slots=True)
class State:
    """What a pool's decisions remember. Starts with nothing but the values that replicas have.

    Attributes:
        values: as decided last; a knob that is not there is as it was started.
        changed: when any of them last changed.
        barred: until when a step is not tried again: it was taken back, or the other way lets in who waits.
        tightened: when each knob last was.
        calm_since: since when there is nothing to do.
    """

    values: Values = field(default_factory=lambda: MappingProxyType({}))
    changed: float = -math.inf
    trial: Trial | None = None
    barred: Mapping[tuple[Knob, Direction], float] = field(default_factory=lambda: MappingProxyType({}))
    tightened: Mapping[Knob, float] = field(default_factory=lambda: MappingProxyType({}))
    calm_since: float | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that one decision is made from.

    Attributes:
        ranges: of the knobs that may change.
        limit: seconds per token that are promised; None where nothing is.
        first_limit: seconds to the first token that are promised; None where nothing is.
        replicas: that are ready, and measured.
        rolling: whether another revision is on its way: what is compared must not change meanwhile.
        measuring: why samples are not there yet, in words, where nothing is wrong with that: replicas have just begun.
    """

    samples: Samples
    ranges: Mapping[Knob, Range]
    limit: float | None
    replicas: int
    rolling: bool = False
    measuring: str = ""
    first_limit: float | None = None
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do.

    Attributes:
        knobs: every knob that may change, by name.
        reason: one word of CamelCase.
        message: a sentence.
        inputs: the numbers that made it; None for what is not known.
        state: to hand over to the next decision.
    """

    knobs: Values
    reason: str
    message: str
    inputs: Mapping[str, float | None]
    state: State
