"""The output canary as a gate of a rollout."""

from __future__ import annotations

from paceline_operator.canary.judge import Answer, Fault, Outcome
from paceline_operator.rollout.asked import Policy, Step
from paceline_operator.rollout.gathering import Heard
from paceline_operator.rollout.judging import judgement
from paceline_operator.rollout.outputs import canaried
from paceline_operator.rollout.rules import Rules
from paceline_operator.rollout.state import Phase, State
from paceline_shadow_traffic.evidence import Seen, Signal, Window
from paceline_shadow_traffic.share import Share
from paceline_shadow_traffic.verdict import Outcome as Says
from paceline_shadow_traffic.verdict import Verdict

ANSWER = Answer("p", "t", "x")
OLD, NEW = {"old-0", "old-1"}, {"new-0", "new-1"}


def outcomes(**of_new: object) -> dict[str, Outcome]:
    """Of two hashes of one pool, as the keeper of the canary names them."""
    new = Outcome(**{"reference": ANSWER, "agree": frozenset(NEW), **of_new})  # type: ignore[arg-type]
    return {"default": Outcome(reference=ANSWER, agree=frozenset(OLD)), "default (hash)": new}


def said(found: dict[str, Outcome] | None, asked_for: bool = True) -> tuple[Says, str] | None:
    remark = canaried(found, OLD, NEW, asked_for)
    return None if remark is None else (remark.outcome, remark.message)


def test_a_wrong_answer_of_the_candidate_is_worse_whether_it_was_asked_for_or_not() -> None:
    wrong = outcomes(agree=frozenset({"new-0"}), faults={"new-1": Fault.CACHE})
    for asked_for in (False, True):
        found = said(wrong, asked_for)
        assert found is not None
        assert found[0] is Says.WORSE
        assert "1 of 2 replicas answer otherwise, new-1 for one: only what comes from the prefix cache" in found[1]


def test_a_fault_that_the_base_has_too_is_not_the_candidates() -> None:
    both = outcomes(agree=frozenset({"new-0"}), faults={"new-1": Fault.CACHE})
    both["default"] = Outcome(reference=ANSWER, agree=frozenset({"old-0"}), faults={"old-1": Fault.CACHE})
    assert said(both, asked_for=False) is None
    found = said(both)
    assert found is not None
    assert (found[0], "the old revision's too" in found[1]) == (Says.NOT_KNOWN, True)


def test_all_that_answer_as_recorded_are_no_worse_and_what_is_not_known_passes_only_where_nobody_asked() -> None:
    assert said(outcomes(), asked_for=False) is None
    found = said(outcomes())
    assert found is not None
    assert found[0] is Says.NO_WORSE
    busy = outcomes(agree=frozenset({"new-0"}), unknown={"new-1": "it is too busy, or on its way out"})
    for unknown, words in (
        (busy, "not known of 1 of 2: new-1: it is too busy"),
        (outcomes(agree=frozenset(), split=frozenset(NEW)), "not known of 2 of 2: new-0: its replicas contradict"),
        ({"default": Outcome(agree=frozenset(OLD))}, "it was not asked yet"),
        (None, "it was not asked yet"),
    ):
        assert said(unknown, asked_for=False) is None
        told = said(unknown)
        assert told is not None
        assert told[0] is Says.NOT_KNOWN
        assert words in told[1]
    none = canaried(outcomes(), OLD, (), asked_for=True)
    assert none is not None
    assert (none.outcome, "no replica is ready" in none.message) == (Says.NOT_KNOWN, True)


def test_it_decides_beside_the_gates() -> None:
    steps = (Step(50, 60.0, 600.0), Step(100, 0.0, 0.0))
    state = State("a", Phase.JUDGING, "b", step=0, weight=50, generation=3, steps=steps)
    seen = Seen(shares={Signal.ERROR_RATE: Share(0, 1000)})
    heard = Heard(0.0, 0.0, windows={"default/short": (Window(0.0, 900.0, seen, seen),)})
    for found, verdict in (
        (outcomes(), Verdict.PASS),
        (None, Verdict.NOT_KNOWN),
        (outcomes(faults={"new-1": Fault.MODEL}), Verdict.FAIL),
    ):
        remark = canaried(found, OLD, NEW, asked_for=True)
        assert remark is not None
        told = judgement(Rules(Policy(steps), ()), state, heard, 900.0, remarks=[("default", remark)])
        assert told.verdict is verdict
        assert [one.name for _, one in told.findings] == ["OutputCanary"]
