"""What a pod needs next: which containers to start, which to stop, and when. Pure; times are Unix seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["init", "sidecar", "main"]
Policy = Literal["Always", "OnFailure", "Never"]

FIRST_BACKOFF = 10.0
MOST_BACKOFF = 300.0


@dataclass(frozen=True)
class Backoff:
    """How long the next repetition has to wait after the last end; `updated` is when that was decided."""

    delay: float
    updated: float


def next_backoff(backoff: Backoff | None, now: float, most: float = MOST_BACKOFF) -> Backoff:
    """The back-off after one more repetition at `now`: 10 s first, doubling up to `most`.

    As in the kubelet, a pause of more than twice `most` makes it start over.
    """
    if backoff is None or now - backoff.updated > 2 * most:
        return Backoff(min(FIRST_BACKOFF, most), now)
    return Backoff(min(backoff.delay * 2, most), now)


def allowed_at(backoff: Backoff | None, ended: float, most: float = MOST_BACKOFF) -> float:
    """When a repetition may begin of what ended at `ended`. The first one may begin at once."""
    if backoff is None or ended - backoff.updated > 2 * most:
        return ended
    return ended + backoff.delay


@dataclass(frozen=True)
class ContainerView:
    """One container as far as decisions go.

    Attributes:
        policy: its own restart policy, or the pod's.
        state: `none` before the first start.
        started: running, and its startup probe (if any) has passed.
        exit_code, ended: of the latest attempt, where `state` is `exited`.
    """

    name: str
    role: Role
    policy: Policy
    state: Literal["none", "running", "exited"] = "none"
    started: bool = False
    exit_code: int = 0
    ended: float = 0.0
    backoff: Backoff | None = None


@dataclass(frozen=True)
class Decision:
    """What to do now.

    Attributes:
        start: containers to start, in order.
        stop: containers to stop.
        waiting: container → when it may be restarted (CrashLoopBackOff until then).
        outcome: the pod's final phase, once nothing of it runs or will run again.
    """

    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    waiting: dict[str, float] = field(default_factory=dict)
    outcome: Literal["Succeeded", "Failed"] | None = None

    @property
    def wake_at(self) -> float | None:
        """When to decide again, if nothing happens before."""
        return min(self.waiting.values(), default=None)


def wants_restart(view: ContainerView) -> bool:
    """Whether the exited container is to run again by its policy."""
    return view.policy == "Always" or (view.policy == "OnFailure" and view.exit_code != 0)


def outcome_of(views: Iterable[ContainerView]) -> Literal["Succeeded", "Failed"]:
    """The phase of a pod whose containers will not run again."""
    relevant = [v for v in views if v.role != "sidecar"]
    good = all(v.state == "exited" and v.exit_code == 0 for v in relevant)
    return "Succeeded" if good else "Failed"


def _stop_all(views: Sequence[ContainerView]) -> tuple[str, ...]:
    """Main and init containers first; sidecars only once those are gone, the last declared first."""
    running = [v for v in views if v.state == "running"]
    others = [v.name for v in running if v.role != "sidecar"]
    return tuple(others) if others else tuple(v.name for v in running[-1:])


def decide(views: Sequence[ContainerView], now: float, *, ending: bool = False, most: float = MOST_BACKOFF) -> Decision:
    """The next step of a pod.

    Args:
        views: all containers, init containers and sidecars in their order first, then the main ones.
        now: Unix seconds.
        ending: the pod is being deleted or has failed as a whole: stop everything, start nothing.
        most: the longest back-off in seconds.
    """
    if ending:
        stop = _stop_all(views)
        return Decision(stop=stop, outcome=None if stop else outcome_of(views))
    start: list[str] = []
    waiting: dict[str, float] = {}

    def again(view: ContainerView) -> None:
        when = allowed_at(view.backoff, view.ended, most)
        if when <= now:
            start.append(view.name)
        else:
            waiting[view.name] = when

    mains = [v for v in views if v.role == "main"]
    begun = any(v.state != "none" for v in mains)
    failed = [v for v in views if v.role == "init" and v.state == "exited" and v.exit_code and v.policy == "Never"]
    if failed and not begun:
        stop = _stop_all(views)
        return Decision(stop=stop, outcome=None if stop else "Failed")
    if begun and all(v.state == "exited" and not wants_restart(v) for v in mains):
        stop = _stop_all(views)
        return Decision(stop=stop, outcome=None if stop else outcome_of(views))
    for view in views:
        if view.role == "main":
            break
        if view.role == "sidecar":
            if view.state == "none":
                start.append(view.name)
            elif view.state == "exited":
                again(view)
            if not begun and not (view.state == "running" and view.started):
                return Decision(tuple(start), waiting=waiting)
        elif not begun:
            if view.state == "none":
                return Decision((*start, view.name), waiting=waiting)
            if view.state == "running":
                return Decision(tuple(start), waiting=waiting)
            if view.exit_code != 0:
                again(view)
                return Decision(tuple(start), waiting=waiting)
    for view in mains:
        if view.state == "none":
            start.append(view.name)
        elif view.state == "exited" and wants_restart(view):
            again(view)
    return Decision(tuple(start), waiting=waiting)
