"""Whether the engine is alive: judged by the progress of its loop, not by the process being there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from paceline_runtime.messages import Ready

IDLE_SECONDS: Final = 10.0
"""An engine without work reports each second and answers a test of life at once: later is too late."""
QUIET_SECONDS: Final = 10.0
"""When no token was made for this long, whoever asks for liveness has the engine asked for one."""
BUSY_READY_SECONDS: Final = 30.0
"""A busy engine that makes no step for this long gets no more requests, whatever its liveness is allowed."""
LONG_STEPS: Final = 3.0
"""Times the longest steps as they were before the first request; a long context makes them longer, and so do others."""
PROBE_PATIENCE_SECONDS: Final = 0.5
"""How long that answer may hold back the one to who asked; kubelets wait a second by default."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer and its reason in words."""

    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Signs:
    """What is known of the engine core; times are monotonic seconds.

    Attributes:
        core_alive: the core process runs and is connected, or has not connected yet.
        ready: the core has said so. Before, loading may take as long as it takes (that is a start-up probe's matter).
        busy: it has requests, as far as the front end knows.
        heard_at: the last message; an idle engine sends one each second.
        progress_at: the last time that a step was made, or that there was no work.
        probed_at: when the test of life that is not answered yet was sent.
    """

    core_alive: bool
    ready: bool
    busy: bool
    heard_at: float | None
    progress_at: float | None
    probed_at: float | None = None


def longest_steps(ready: Ready) -> float:
    """Seconds of the largest steps without any context, by the warm-up.

    On a CPU that ran one chunk of a prompt where a step has room for several.
    """
    if ready.device != "cpu":
        return ready.warmup_seconds
    budget, chunk = (ready.parameters.get(name) for name in ("maxBatchedTokens", "prefillChunkTokens"))
    if budget is None or chunk is None:
        return ready.warmup_seconds
    return ready.warmup_seconds * max(1.0, float(budget.value) / float(chunk.value))


def live_bound(configured: float, longest: float) -> float:
    """Seconds that a step may take until the replica counts as dead."""
    return max(configured, LONG_STEPS * longest)


def ready_bound(configured: float, longest: float) -> float:
    """Seconds that a step may take until no more requests are wanted."""
    return min(live_bound(configured, longest), max(BUSY_READY_SECONDS, LONG_STEPS * longest))


def liveness(signs: Signs, *, now: float, bound: float) -> Verdict:
    """Whether this process should go on living.

    Args:
        bound: seconds a step may take. A busy engine is slow, not dead: this is minutes rather than seconds. An idle
            one has `IDLE_SECONDS`, if that is less.
    """
    if not signs.core_alive:
        return Verdict(False, "the engine core is dead")
    if not signs.ready:
        return Verdict(True, "the engine core is starting")
    patience = bound if signs.busy else min(bound, IDLE_SECONDS)
    work = "busy" if signs.busy else "idle"
    if signs.heard_at is None or now - signs.heard_at > patience:
        quiet = "never" if signs.heard_at is None else f"{now - signs.heard_at:.0f} s ago"
        return Verdict(False, f"the engine core was last heard {quiet}; while {work} the bound is {patience:g} s")
    if signs.progress_at is None or now - signs.progress_at > patience:
        return Verdict(False, f"the engine has work but made no step for more than {patience:g} s")
    if signs.probed_at is not None and now - signs.probed_at > patience:
        asked = now - signs.probed_at
        return Verdict(
            False,
            f"the engine was asked for one token {asked:.0f} s ago and has not answered; the bound is {patience:g} s",
        )
    return Verdict(True, "the engine makes progress")
