"""Whether a replica is to be trusted: circuit breaking and outlier ejection as one pure state machine.

What counts against a replica is what it does wrong: connections it refuses or breaks, 5xx answers, silence. A 4xx is
the client's fault and never counts; 429, and 503 with Retry-After, say that the replica is busy, so it is left alone
for that long, without blame.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

CONNECT_FAILURES: Final = 2
"""Connections in a row that fail before a replica is ejected: there is little doubt about it, and they cost time."""

FAILURES: Final = 3
"""Breaks and silences in a row: one that answers slower and slower or not at all, while its port is open."""

ERRORS: Final = 5
ERROR_SHARE: Final = 0.5
WINDOW: Final = 10.0
"""A replica is also ejected when it failed at least `ERRORS` requests, 5xx answers included, and `ERROR_SHARE` of all
that it had, within `WINDOW` seconds from the first one.
"""

EJECT_FIRST: Final = 0.5
EJECT_MOST: Final = 30.0
"""Seconds out of the choice: doubled with each ejection in a row."""

FORGET_AFTER: Final = 60.0
"""Seconds of good answers after which earlier ejections no longer count."""

KEEP_OUT: Final = 2.5
"""Seconds that a connect failure keeps an ejected replica out: while polls find nobody there, no request is spent."""

PROBE_SECONDS: Final = 15.0
"""How long one probe request may be under way before another one is tried."""

BUSY_DEFAULT: Final = 1.0
BUSY_MOST: Final = 30.0
"""Seconds for which a busy replica is left alone."""


class Event(enum.IntEnum):
    """What is seen of a replica."""

    ANSWERED = 0
    """A status below 500 came: 2xx, 3xx and 4xx alike."""
    CONNECT_FAILED = 1
    RESET = 2
    SILENT = 3
    SERVER_ERROR = 4
    PROBE_SENT = 5
    """A request goes there although it is ejected: its time is over, or there is nobody else."""
    PROBE_LOST = 6
    """That request ended without a word about the replica: its client left."""
    ALIVE = 7
    """It answered a question about its load, so connections work; that says nothing about its answers."""


class Phase(enum.IntEnum):
    """Where in the circle a replica is."""

    CLOSED = 0
    OPEN = 1
    HALF_OPEN = 2


@dataclass(frozen=True, slots=True)
class Health:
    """State of one replica.

    Attributes:
        until: OPEN: ejected until then. HALF_OPEN: when another probe may be sent.
        connects: connect failures in a row.
        failures: breaks and silences in a row.
        good, bad: answers and failures in the window that began at `since`.
        ejections: in a row; decides how long the next one lasts.
        busy_until: it said so itself.
    """

    phase: Phase = Phase.CLOSED
    until: float = 0.0
    connects: int = 0
    failures: int = 0
    good: int = 0
    bad: int = 0
    since: float = 0.0
    ejections: int = 0
    busy_until: float = 0.0

    @property
    def ejected(self) -> bool:
        """Whether only a probe may go there."""
        return self.phase is not Phase.CLOSED

    @property
    def answers(self) -> bool:
        """Whether it is not known to fail. The last replica of a service is never ejected, however dead it is."""
        return self.phase is Phase.CLOSED and self.connects < CONNECT_FAILURES and self.failures < FAILURES

    @property
    def avoid_until(self) -> float:
        """Until when it is chosen only if there is nobody else (monotonic seconds)."""
        return max(self.until, self.busy_until) if self.phase is not Phase.CLOSED else self.busy_until


HEALTHY: Final = Health()
"""The state of a replica of which nothing bad is known. Good answers change nothing about it, so they need no call."""


def transition(health: Health, event: Event, now: float, *, may_eject: bool = True, probe: bool = False) -> Health:
    """The next state.

    Args:
        may_eject: whether another replica of the service is left. The last one is never ejected.
        probe: the event is the end of the probe. Requests that were sent before an ejection neither end it nor make it
            longer, however they end: they are the same trouble.
    """
    match event:
        case Event.ANSWERED:
            return _answered(health, now, probe)
        case Event.ALIVE:
            if health.phase is not Phase.CLOSED and health.connects >= CONNECT_FAILURES:
                return _closed(health, now)
            return replace(health, connects=0) if health.connects else health
        case Event.PROBE_SENT:
            if health.phase is Phase.CLOSED:
                return health
            return replace(health, phase=Phase.HALF_OPEN, until=now + PROBE_SECONDS)
        case Event.PROBE_LOST:
            return replace(health, phase=Phase.OPEN, until=now) if health.phase is Phase.HALF_OPEN else health
        case _:
            return _failed(health, event, now, may_eject, probe)


def busy(health: Health, seconds: float | None, now: float, *, probe: bool = False) -> Health:
    """The state after the replica said that it is busy, and for how long (None: it did not say)."""
    wait = BUSY_DEFAULT if seconds is None else min(max(seconds, 0.0), BUSY_MOST)
    # It answers, which is all that a probe wants to know.
    answered = _closed(health, now) if probe else health
    return replace(answered, busy_until=max(health.busy_until, now + wait), connects=0, failures=0)


def _answered(health: Health, now: float, probe: bool) -> Health:
    if health.phase is not Phase.CLOSED:
        return _closed(health, now) if probe else health
    if now - health.since > (FORGET_AFTER if health.ejections else WINDOW) and now >= health.busy_until:
        return HEALTHY
    return replace(health, connects=0, failures=0, good=health.good + 1)


def _closed(health: Health, now: float) -> Health:
    return Health(since=now, ejections=health.ejections, busy_until=health.busy_until)


def _failed(health: Health, event: Event, now: float, may_eject: bool, probe: bool) -> Health:
    # A break, a silence or an error came over a connection that could be made.
    connects = health.connects + 1 if event is Event.CONNECT_FAILED else 0
    failures = health.failures + 1 if event in (Event.RESET, Event.SILENT) else health.failures
    good, bad, since = (health.good, health.bad, health.since) if now - health.since <= WINDOW else (0, 0, now)
    bad += 1
    counted = replace(health, connects=connects, failures=failures, good=good, bad=bad, since=since)
    if health.phase is not Phase.CLOSED and not probe:
        if event is Event.CONNECT_FAILED and health.phase is Phase.OPEN:
            return replace(counted, until=max(health.until, now + KEEP_OUT))
        return counted
    out = (
        probe
        or connects >= CONNECT_FAILURES
        or failures >= FAILURES
        or (bad >= ERRORS and bad >= ERROR_SHARE * (good + bad))
    )
    if not out:
        return counted
    if not may_eject:
        return replace(counted, phase=Phase.CLOSED, until=0.0)
    # The exponent is bounded, or a replica that is gone for days overflows it.
    length = min(EJECT_MOST, EJECT_FIRST * 2.0 ** min(health.ejections, 16))
    return replace(counted, phase=Phase.OPEN, until=now + length, ejections=health.ejections + 1)


def breaking(ejected: int, replicas: int) -> bool:
    """Whether most replicas of a service are ejected: then retries only add to the trouble."""
    return replicas > 1 and 2 * ejected > replicas
