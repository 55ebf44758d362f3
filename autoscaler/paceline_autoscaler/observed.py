"""What a decision is made from: signals, the fleet as it is, and what the spec asks for. Values only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from .capacity import Objectives, Rates
from .samples import Sample


@dataclass(frozen=True, slots=True)
class Signals:
    """A pool's load, summed over replicas. None: nobody asks for this one here; `Absent`: asked for and not got.

    Attributes:
        requests: arrivals per second.
        prefill: prompt tokens computed per second.
        decode: answer tokens made per second.
        waiting: requests queued in engines.
        running: requests in batches.
        backlog: prompt tokens not yet computed of waiting and running requests.
        held: requests that routers hold because no replica can take them.
        kv: share of the KV cache in use, 0 to 1. Never alone a reason to scale up: prefill fills queues and no cache.
        wait_p99: seconds that 99 of 100 requests queued at most; undefined while there are none.
        attainment: share of requests that kept their objectives, 0 to 1; undefined while there are none.
    """

    requests: Sample | None = None
    prefill: Sample | None = None
    decode: Sample | None = None
    waiting: Sample | None = None
    running: Sample | None = None
    backlog: Sample | None = None
    held: Sample | None = None
    kv: Sample | None = None
    wait_p99: Sample | None = None
    attainment: Sample | None = None

    def asked(self) -> Iterator[tuple[str, Sample]]:
        """The signals that are asked for, by name."""
        for one in fields(self):
            sample = getattr(self, one.name)
            if sample is not None:
                yield one.name, sample


@dataclass(frozen=True, slots=True)
class Fleet:
    """The pool's replicas as the cluster has them.

    Attributes:
        desired: what was asked for last.
        ready: serve, without those that drain.
        starting: when each replica that loads or warms up was started, in seconds.
        pending: replicas that no node has room for.
        rolling: whether a rollout is replacing replicas.
        quota: the most that a resource quota lets the pool have; None where there is none or it is not known.
        aside: replicas that are ready and have said nothing of their load for long, not among the `ready` ones. Each is
            taken to be full: it carries what it has and nothing else, so that one that never speaks holds up nothing.
    """

    desired: int
    ready: int
    starting: tuple[float, ...] = ()
    pending: int = 0
    rolling: bool = False
    quota: int | None = None
    aside: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the spec says, and how eager the decisions are. Read at every decision: a change holds at the next one.

    Attributes:
        least, most: bounds on the replicas.
        idle_after: seconds without work, at one replica, until the pool goes to none; needs `least` 0.
        smoothing: seconds over which the load is averaged: shorter peaks are left to the queue.
        coverage: share of cases in which the planned peak holds until a new replica serves.
        down_window: seconds over which the highest need counts when scaling down.
        down_margin: share by which load may grow without calling the replica back that is taken away.
        down_every: seconds between two steps down; each takes `down_share` of the replicas, at least one. None: a sixth
            of the window, so that whoever asks for a short one gets one.
        up_share: replicas that one step up may add, as a share of those there are; at least `up_least`.
        drain_backlog: seconds within which a queue has to be worked off.
        start_up: seconds until a replica serves, while no start of this revision was measured.
        judged_over: seconds that `attainment` is over.
        trust_again: seconds in which the excess of a correction falls to a third, once objectives are kept.
    """

    least: int = 1
    most: int = 8
    idle_after: float = 600.0
    smoothing: float = 30.0
    coverage: float = 0.9
    down_window: float = 180.0
    down_margin: float = 0.1
    down_every: float | None = None
    down_share: float = 0.2
    up_share: float = 1.0
    up_least: int = 4
    drain_backlog: float = 20.0
    start_up: float = 120.0
    judged_over: float = 120.0
    trust_again: float = 3600.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ValueError(f"minReplicas ({self.least}) has to be at most maxReplicas ({self.most}), neither below 0")
        if not 0.0 < self.coverage < 1.0:
            raise ValueError(f"coverage is a share between 0 and 1, not {self.coverage}")

    @property
    def down_pause(self) -> float:
        """Seconds between two steps down."""
        return self.down_window / 6.0 if self.down_every is None else self.down_every


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that one decision is made from.

    Attributes:
        starts: seconds that starts of the revision took, as measured, newest last.
    """

    signals: Signals
    fleet: Fleet
    rates: Rates
    objectives: Objectives
    settings: Settings = field(default_factory=Settings)
    starts: tuple[float, ...] = ()

    @property
    def start_up(self) -> float:
        """Seconds until a replica that is asked for now serves: nine of ten starts were no slower."""
        if not self.starts:
            return self.settings.start_up
        ordered = sorted(self.starts)
        return ordered[math.ceil(0.9 * len(ordered)) - 1]
