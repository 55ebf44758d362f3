"""Gates in PromQL: what stays within bounds passes, what stays out fails, and everything else is not known."""

from __future__ import annotations

import pytest

from paceline_autoscaler.samples import Absent, NotANumber, Sample, exactly
from paceline_operator.rollout.queries import LONGEST_GAP, NAMES, Answers, QueryGate, queried, with_answer
from paceline_shadow_traffic.verdict import Outcome

GATE = QueryGate("cost", 'sum(cost{pod=~"$candidatePods"})', high=1.0, hold_for=120.0, settle=60.0)


def told(*values: float | Sample | None, now: float | None = None, every: float = 15.0) -> tuple[Outcome, str, str]:
    """Of answers every 15 s, the first a minute after the step began at 0; None: it was not asked."""
    answers: Answers = ()
    at = 60.0
    for value in values:
        if value is not None:
            answers = with_answer(GATE, answers, at, value if not isinstance(value, float) else exactly(value, at))
        at += every
    said = queried(GATE, answers, 0.0, at - every if now is None else now)
    return said.outcome, said.reason, said.message


def test_a_number_that_stays_within_bounds_passes_and_one_that_stays_out_fails() -> None:
    assert told(*[0.5] * 9)[:2] == (Outcome.NO_WORSE, "WithinBounds")
    outcome, reason, words = told(*[0.5] * 9, *[1.5] * 9)
    assert (outcome, reason) == (Outcome.WORSE, "OutOfBounds")
    assert words == f"cost is worse: 1.5, at most 1 is allowed, for 120 s ({GATE.query})"
    assert told(*[1.5] * 9, *[0.5] * 9)[0] is Outcome.NO_WORSE


def test_one_look_out_of_bounds_says_nothing_by_itself() -> None:
    outcome, reason, words = told(*[0.5] * 9, 1.5)
    assert (outcome, reason) == (Outcome.NOT_KNOWN, "TooShort")
    assert "it has to stay out of bounds for 120 s more" in words
    assert told(*[0.5] * 9, 1.5, 0.5)[1] == "TooShort"


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (Absent("no series, or none that was scraped lately"), "absent (no series"),
        (Absent("2 series where one number was asked for: write sum(...)"), "write sum"),
        (NotANumber("NaN"), "not a count (NaN)"),
    ],
)
def test_what_prometheus_does_not_have_never_passes_and_the_query_is_named(sample: Sample, words: str) -> None:
    """C054, C055."""
    outcome, reason, message = told(*[0.5] * 9, sample)
    assert (outcome, reason) == (Outcome.NOT_KNOWN, "NoData")
    assert words in message
    assert GATE.query in message
    assert told(*[0.5] * 9, sample, *[0.5] * 8)[1] == "TooShort", "it begins anew after what is not known"


def test_answers_that_are_old_or_far_apart_never_pass() -> None:
    assert told(now=200.0)[1] == "NoData"
    assert told(*[0.5] * 9, now=60.0 + 8 * 15.0 + LONGEST_GAP + 1.0)[1] == "Stale"
    gap = int(LONGEST_GAP / 15.0)
    assert told(*[0.5] * 9, *[None] * gap, 0.5)[1] == "TooShort"
    assert told(0.5, 0.5, now=59.0)[1] == "Settling"


def test_what_nothing_depends_on_any_more_is_let_go() -> None:
    answers: Answers = ()
    for number in range(1000):
        answers = with_answer(GATE, answers, 15.0 * number, exactly(0.5, 15.0 * number))
    assert len(answers) < 25


def test_names_of_both_revisions_and_their_pods_are_filled_in_and_the_rest_stays() -> None:
    gate = QueryGate("x", 'a{p=~"$candidatePods",r="$candidate",b="$base",q=~"x$"} / $other', low=0.5)
    told = gate.about({name: f"<{name}>" for name in NAMES})
    assert told.query == 'a{p=~"<candidatePods>",r="<candidate>",b="<base>",q=~"x$"} / $other'
    assert (gate.bounds, QueryGate("x", "y", -1.0, 2.0).bounds) == ("at least 0.5", "at least -1 and at most 2")
