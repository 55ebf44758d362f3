"""What a recorder said, as windows."""

from __future__ import annotations

from typing import Any

from paceline_crds.sketch import SCALE
from paceline_operator.rollout.comparing import LATE_WINDOWS, MOST_AT_ONCE, Compared, compare
from paceline_shadow_traffic.both import Both
from paceline_shadow_traffic.comparisons_page import Row, page
from paceline_shadow_traffic.evidence import Seen, Signal
from paceline_shadow_traffic.share import Share
from paceline_shadow_traffic.tally import Side, Tally

BEGAN = 1_000_000.0
PLACE = "default/VeryLong"


def told(number: int, pairs: int = 10, differ: int = 0, candidate: str = "b") -> dict[str, Any]:
    sides = Both(Side(answers=pairs), Side(answers=pairs))
    row = Row(
        "a", candidate, "default", "VeryLong", pairs, {}, Tally(sides, different=Share(differ, pairs)), Tally(sides)
    )
    return page(BEGAN + 30 * number, BEGAN + 30 * (number + 1), {"demo/chat": [row]})


def with_pages(compared: Compared, pages: dict[int, Any]) -> Compared:
    return compare(compared, pages, "demo/chat", "a", "b")


def test_windows_are_asked_for_when_they_have_ended_and_again_until_nothing_can_come() -> None:
    compared = Compared(BEGAN, 30.0)
    assert compared.due(BEGAN + 29) == []
    assert compared.due(BEGAN + 61) == [(0, BEGAN, BEGAN + 30), (1, BEGAN + 30, BEGAN + 60)]
    compared = with_pages(compared, {number: told(number) for number in range(8)})
    due = [number for number, *_ in compared.due(BEGAN + 30 * 8 + 1)]
    assert due == list(range(8 - LATE_WINDOWS, 8))
    more = with_pages(compared, {7: told(7, pairs=15)})
    [windows] = more.windows.values()
    assert windows[7].candidate.shares[Signal.TRUNCATED].of == 15, "the later answer takes the place of the first"
    assert len(Compared(BEGAN, 30.0).due(BEGAN + 1_000_000)) == MOST_AT_ONCE


def test_scores_of_users_own_comparisons_are_held_against_a_base_that_is_as_good_as_itself() -> None:
    said = told(0)
    said["services"]["demo/chat"]["rows"][0]["scores"] = {"tone": [2.5, 10]}
    [[window]] = with_pages(Compared(BEGAN, 30.0), {0: said}).windows.values()
    assert window.base.scores == {"tone": Share(0, 10)}
    assert window.candidate.scores == {"tone": Share(2.5, 10)}
    assert window.candidate.shares[Signal.ERROR_RATE] == Share(0, 10)


def test_a_recorder_that_is_silent_leaves_windows_that_are_not_known_and_are_asked_for_again() -> None:
    compared = with_pages(Compared(BEGAN, 30.0), {0: told(0), 1: None, 2: told(2)})
    assert compared.trouble == "the recorder does not answer"
    [windows] = compared.windows.values()
    assert [one.base == Seen() for one in windows] == [False, True, False]
    late = BEGAN + 30 * 20
    assert 1 in {number for number, *_ in compared.due(late)}
    known = with_pages(compared, {2: None})
    assert known.windows[PLACE][2] == windows[2], "what was known stays"


def test_a_page_of_another_scale_is_told_and_other_candidates_are_no_evidence() -> None:
    wrong = with_pages(Compared(BEGAN, 30.0), {0: {**told(0), "scale": f"{SCALE}-new"}})
    assert "bring recorder and operator to one release" in wrong.trouble
    assert with_pages(Compared(BEGAN, 30.0), {0: told(0, candidate="c")}).windows == {}
