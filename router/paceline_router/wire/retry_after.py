"""What a replica says of when to come back, as a client may be told it (RFC 9110, 10.2.3)."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

MOST_SECONDS = 86_400
"""More than a day is nothing that a client should wait for: somebody will have looked by then."""

SHORTLY = b"1"
"""What is said instead of something that nobody can read."""

_FORM = "%a, %d %b %Y %H:%M:%S GMT"
_DATE = re.compile(rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")


def readable(value: bytes, now: float | None = None) -> bytes:
    """A value of Retry-After that any client can go by: whole seconds from 0 to a day, or a date within a day.

    A number that is not whole is rounded up, since some servers write one. What is longer is a day; what says neither
    (text, less than nothing, two values) is `SHORTLY`.

    Args:
        now: seconds since 1970; left out, the time of the system.
    """
    if value.isdigit():
        return value if len(value) <= 5 and int(value) <= MOST_SECONDS else b"%d" % MOST_SECONDS
    whole, _, part = value.partition(b".")
    if whole.isdigit() and part.isdigit():
        return readable(b"%d" % (int(whole[:9]) + (int(part[:9]) > 0)))
    if _DATE.fullmatch(value) is None:
        return SHORTLY
    try:
        until = datetime.strptime(value.decode(), _FORM).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return SHORTLY
    return value if until - (time.time() if now is None else now) <= MOST_SECONDS else b"%d" % MOST_SECONDS
