"""Times of the week at which a pool has other bounds, in a time zone, on days with a clock change too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00")


@dataclass(frozen=True)
class Window:
    """One window: from `start` until `end`, which is not part of it, on each of `days`.

    Attributes:
        zone: an IANA name, as `Europe/Berlin`.
        days: of `DAYS`, those on which it begins; all where there are none.
        start, end: `HH:MM`; the end may be `24:00`. An end that is not after the start is on the next day.
        least, most: bounds meanwhile; None where the usual one holds on.

    Raises:
        ValueError: with what to write instead.
    """

    zone: str
    start: str
    end: str
    least: int | None = None
    most: int | None = None
    days: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"there is no time zone {self.zone!r}; write one as Europe/Berlin or UTC") from None
        for name, text in (("start", self.start), ("end", self.end)):
            if not _CLOCK.fullmatch(text) or (name == "start" and text == "24:00"):
                raise ValueError(f"{name} is a time as 06:00 or 22:30, not {text!r}")
        unknown = [day for day in self.days if day not in DAYS]
        if unknown:
            raise ValueError(f"there is no day {unknown[0]!r}; write some of {', '.join(DAYS)}")

    def holds(self, now: float) -> bool:
        """Whether a time, in seconds since the epoch, is within it."""
        zone = ZoneInfo(self.zone)
        today = datetime.fromtimestamp(now, zone).date()
        # A window that began yesterday may still last, and one across a change of date begins a day later elsewhere.
        for day in (today - timedelta(days=1), today):
            if self.days and DAYS[day.weekday()] not in self.days:
                continue
            last = day + timedelta(days=1) if _minutes(self.end) <= _minutes(self.start) else day
            if _instant(day, self.start, zone) <= now < _instant(last, self.end, zone):
                return True
        return False


def bounds(windows: Sequence[Window], least: int, most: int, now: float) -> tuple[int, int]:
    """The bounds at a time: of the windows that hold the highest of each, the fewest never below the usual.

    Args:
        least, most: the usual ones.
    """
    held = [window for window in windows if window.holds(now)]
    fewest = max([least, *(window.least for window in held if window.least is not None)])
    highest = max((window.most for window in held if window.most is not None), default=most)
    return fewest, max(fewest, highest)


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return 60 * int(hours) + int(minutes)


def _instant(day: date, text: str, zone: ZoneInfo) -> float:
    """When a clock shows a time, in seconds since the epoch.

    Of a time that comes twice it is the first, so that a window has no hole. A time that is left out is when the clock
    jumps over it.
    """
    minutes = _minutes(text)
    if minutes == 24 * 60:
        day, minutes = day + timedelta(days=1), 0
    shown = datetime.combine(day, time(minutes // 60, minutes % 60), zone)
    instant = shown.timestamp()
    back = datetime.fromtimestamp(instant, UTC).astimezone(zone)
    if back.replace(tzinfo=None) == shown.replace(tzinfo=None):
        return instant
    low, high = instant - 86400.0, instant
    before = datetime.fromtimestamp(low, zone).utcoffset()
    while high - low > 1.0:
        middle = (low + high) / 2.0
        if datetime.fromtimestamp(middle, zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return float(round(high / 60.0) * 60)
