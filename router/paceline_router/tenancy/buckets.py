"""A token bucket as one number: the time at which it is full again.

The generic cell rate algorithm (ITU-T I.371), which is a token bucket without the timer. With a cost in seconds (what
is taken ÷ the rate), a bucket of depth `burst` seconds that is full again at `full_at` lacks `full_at - now`. Taking
moves `full_at` later, giving back moves it earlier, and settling may move it beyond `now + burst`: a debt.
"""

from __future__ import annotations

import math
from typing import Final

SLACK: Final = 1e-6
"""Seconds by which a request may be early: what is lost in rounding must not make a true Retry-After a lie."""

REQUEST_BURST: Final = 10.0
"""Seconds' worth of requests that may come at once."""

TOKEN_BURST: Final = 60.0
"""Seconds' worth of tokens: a request may ask for all that its tenant has in a minute."""


def wait_of(full_at: float, cost: float, burst: float, now: float) -> float:
    """Seconds until `cost` may be taken; zero or less: now.

    What costs more than the bucket holds is let in when the bucket is full, and leaves a debt. So one router's share of
    a limit can be smaller than a request that the whole limit allows, and the rate still holds.
    """
    return full_at - now - burst + min(cost, burst)


def taken(full_at: float, cost: float, now: float) -> float:
    """The new `full_at` after taking (or, negative, giving back) `cost`. A full bucket gets no fuller."""
    return (full_at if full_at > now else now) + cost


def left(full_at: float, burst: float, now: float) -> float:
    """Seconds' worth that may be taken at once; below zero in debt."""
    return burst - max(full_at - now, 0.0)


def whole_seconds(wait: float) -> int:
    """Retry-After for a wait: never too early, at least 1."""
    return max(1, math.ceil(wait - SLACK))


def short(seconds: float) -> str:
    """A time as OpenAI's `x-ratelimit-reset-*` has it: 0s, 120ms, 6.5s, 1m30s, 2h5m0s."""
    if seconds <= 0.0:
        return "0s"
    if seconds < 1.0:
        return f"{math.ceil(seconds * 1000.0)}ms"
    if seconds < 60.0:
        return f"{math.ceil(seconds * 10.0) / 10.0:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
