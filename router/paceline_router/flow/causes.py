"""Whether a request that failed at one replica may be sent to another: a table, and a rule over it. Pure."""

from __future__ import annotations

import enum
from typing import Final


class Cause(enum.IntEnum):
    """How an attempt failed before a byte of its answer was passed on."""

    CONNECT = 0
    """No connection could be made."""
    RESET = 1
    """The connection broke, or what came was no answer."""
    STALE = 2
    """A kept connection had been closed by the replica, just when it was used again: see `lost`."""
    UNAVAILABLE = 3
    """503 with Retry-After: the replica stops, starts, or takes nothing more."""
    BUSY = 4
    """429: the replica's own queue is full."""
    SERVER_ERROR = 5
    """Another 5xx: the request itself may be what broke the replica."""
    SILENT = 6
    """Nothing within the time for the first byte: the work may have been done, and would be done twice."""
    LATE = 7
    """The request's own time is over."""


class Where(enum.IntEnum):
    """Where a request may go after a cause."""

    NOWHERE = 0
    """The failure is the answer."""
    ELSEWHERE = 1
    SAME = 2
    """The same replica, over a new connection: nobody is to blame, and nothing was begun."""


SAFE: Final[dict[Cause, Where]] = {
    Cause.CONNECT: Where.ELSEWHERE,
    Cause.RESET: Where.ELSEWHERE,
    Cause.STALE: Where.SAME,
    Cause.UNAVAILABLE: Where.ELSEWHERE,
    Cause.BUSY: Where.ELSEWHERE,
    Cause.SERVER_ERROR: Where.NOWHERE,
    Cause.SILENT: Where.NOWHERE,
    Cause.LATE: Where.NOWHERE,
}
"""The whole table. A generation has no effect but its answer, so one that broke off unseen may be begun anew."""

REASONS: Final[dict[Cause, str]] = {
    Cause.CONNECT: "connect",
    Cause.RESET: "reset",
    Cause.STALE: "stale_connection",
    Cause.UNAVAILABLE: "unavailable",
    Cause.BUSY: "unavailable",
}
"""The label of a retry's cause in metrics."""


class Verdict(enum.IntEnum):
    """What follows a failed attempt."""

    RETRY = 0
    SAME = 1
    UNSAFE = 2
    ATTEMPTS = 3
    BREAKING = 4
    BUDGET = 5
    UNSENT = 6
    """Another attempt that the budget does not count, since nothing was sent."""


STOP_WORDS: Final[dict[Verdict, str]] = {
    Verdict.UNSAFE: "",
    Verdict.ATTEMPTS: "",
    Verdict.BREAKING: "; it was not tried again because most replicas of the service fail",
    Verdict.BUDGET: "; it was not tried again because too many requests of the service are being retried",
}
"""The end of a sentence about why there was no further attempt."""


STALE_SECONDS: Final = 0.02
"""From our write to the word of the connection's end. The end of a connection that was closed before is on its way or
comes back within a round trip, which in a cluster is a few milliseconds. What is lost later may have been read, and
worked on.
"""


def lost(seconds: float, *, reused: bool, unheard: bool) -> Cause:
    """What it is when a connection ends before the answer's head.

    Args:
        seconds: since the request was written.
        reused: the connection was kept from an earlier request, and this one has not been sent again so before.
        unheard: not a byte has come back.
    """
    return Cause.STALE if reused and unheard and seconds <= STALE_SECONDS else Cause.RESET


def decide(
    cause: Cause, attempts: int, most: int, *, breaking: bool, probe: bool, budget: bool, another: bool = False
) -> Verdict:
    """What to do after an attempt that failed before the first byte.

    Args:
        attempts: made so far.
        most: attempts that one request may have.
        breaking: most of the service's replicas are ejected.
        probe: the attempt was the one by which an ejected replica is tried again. It was made for the router's sake,
            and there is one for each replica and ejection, so it may be repeated in a breaking fleet too.
        budget: whether the service's budget has a retry left.
        another: a replica that is not ejected, has room and has not failed the request yet. Where nothing was sent, it
            is asked whatever the fleet and the budget say, which are about work that may have been begun.
    """
    where = SAFE[cause]
    if where is Where.NOWHERE:
        return Verdict.UNSAFE
    if attempts >= most:
        return Verdict.ATTEMPTS
    if where is Where.SAME:
        return Verdict.SAME
    if cause is Cause.CONNECT and another:
        return Verdict.UNSENT
    if breaking and not probe:
        return Verdict.BREAKING
    return Verdict.RETRY if budget else Verdict.BUDGET
