"""Windows of the week (C103): no holes at midnight, wrap-around, clock changes, and zones that do not exist."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from paceline_autoscaler.schedule import DAYS, Window, bounds

BERLIN, ANGELES = "Europe/Berlin", "America/Los_Angeles"


def at(text: str, zone: str, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def test_the_end_is_not_part_of_a_window() -> None:
    window = Window(BERLIN, "09:00", "17:00", 4)
    held = [window.holds(at(f"2026-11-30T{clock}", BERLIN)) for clock in ("08:59:59", "09:00", "16:59:59", "17:00")]
    assert held == [False, True, True, False]


def test_a_whole_day_has_no_hole() -> None:
    window = Window(BERLIN, "00:00", "24:00", 2)
    start = at("2026-03-27T00:00", BERLIN)
    assert all(window.holds(start + 60 * minute) for minute in range(4 * 24 * 60)), "the clock changes on the 29th"


def test_a_window_wraps_around_midnight_and_belongs_to_the_day_on_which_it_begins() -> None:
    window = Window(BERLIN, "22:00", "06:00", 4, days=("Mon", "Sun"))
    assert window.holds(at("2026-11-30T23:00", BERLIN)), "Monday evening"
    assert window.holds(at("2026-12-01T05:59", BERLIN)), "the morning after"
    assert not window.holds(at("2026-12-01T06:00", BERLIN))
    assert not window.holds(at("2026-12-01T23:00", BERLIN)), "Tuesday evening"
    assert window.holds(at("2026-11-30T03:00", BERLIN)), "begun on Sunday"


def test_a_start_that_the_clock_leaves_out_is_when_it_jumps() -> None:
    """In Los Angeles 02:00 was followed by 03:00 on 8 March 2026."""
    window = Window(ANGELES, "02:30", "03:30", 6, days=("Sun",))
    jump = at("2026-03-08T03:00", ANGELES)
    assert [window.holds(jump + offset) for offset in (-1, 0, 1799, 1800)] == [False, True, True, False]
    assert window.holds(at("2026-03-15T02:45", ANGELES))


def test_an_hour_that_comes_twice_is_one_window() -> None:
    """In Los Angeles 01:00 to 02:00 came twice on 1 November 2026."""
    window = Window(ANGELES, "01:30", "02:30", 6)
    first = at("2026-11-01T01:30", ANGELES)
    seen = [window.holds(first + 60 * minute) for minute in range(-5, 130)]
    assert seen == [False] * 5 + [True] * 120 + [False] * 10


def test_the_highest_window_counts_and_never_less_than_otherwise() -> None:
    windows = [
        Window("UTC", "08:00", "20:00", 4),
        Window("UTC", "12:00", "13:00", 9, 12),
        Window("UTC", "12:00", "14:00", None, 2),
        Window("UTC", "00:00", "24:00", 1),
    ]
    found = [bounds(windows, 2, 6, at(f"2026-11-30T{hour}:30", "UTC")) for hour in ("03", "10", "12", "13")]
    assert found == [(2, 6), (4, 6), (9, 12), (4, 4)], "the most is never below the fewest"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"zone": "Mars/Base"}, "no time zone 'Mars/Base'"),
        ({"zone": "../etc"}, "no time zone"),
        ({"start": "24:00"}, "start is a time"),
        ({"end": "7pm"}, "end is a time"),
        ({"days": ("Monday",)}, ", ".join(DAYS)),
    ],
)
def test_what_is_no_window_says_what_to_write(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Window(**{"zone": "UTC", "start": "08:00", "end": "09:00", "least": 1, **given})  # type: ignore[arg-type]
