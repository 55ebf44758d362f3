"""What a spec's rollout asks for, its defaults, and how a rollout is told."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from paceline_crds.rollout import OnBreach, OnNotKnown, RolloutSpec
from paceline_operator.rollout.asked import Foreseen, Judgement, Step
from paceline_operator.rollout.rules import rules_of
from paceline_operator.rollout.state import Phase, State
from paceline_operator.rollout.told import (
    MOST_EVENTS,
    RETELL_SECONDS,
    rollout_of,
    rollout_status,
    told_of,
    with_event,
    with_verdict,
)
from paceline_operator.rollout.transition import Record
from paceline_operator.telling import over
from paceline_shadow_traffic.evidence import Signal
from paceline_shadow_traffic.verdict import Finding, Gate, Outcome, Verdict


def rules(objectives: bool = False, **fields: Any) -> Any:
    return rules_of(RolloutSpec.model_validate({"strategy": "Canary", **fields}, strict=False), objectives)


def test_another_strategy_has_no_rules() -> None:
    assert rules_of(None, True) is None
    assert rules_of(RolloutSpec(), True) is None


def test_a_canary_without_a_word_more_has_steps_gates_and_times() -> None:
    found = rules()
    assert found.policy.steps == (
        Step(5, 600.0, 3600.0, 1),
        Step(25, 1800.0, 3600.0),
        Step(100, 600.0, 3600.0),
    )
    assert (found.policy.on_not_known, found.policy.on_breach) == (OnNotKnown.PAUSE, OnBreach.ROLLBACK)
    assert (found.paused, found.order) == (False, None)
    assert Signal.GOODPUT not in {gate.signal for gate in found.gates}
    assert Signal.GOODPUT in {gate.signal for gate in rules(objectives=True).gates}, "only what is promised can be kept"
    assert {gate.signal: gate.min_samples for gate in found.gates}[Signal.TTFT_P99] == 500


def test_a_maximum_below_the_usual_hold_is_the_hold_and_a_long_hold_its_own_maximum() -> None:
    steps = [{"weight": 50, "maxDuration": "1m"}, {"weight": 100, "hold": "2h"}]
    assert rules(steps=steps).policy.steps == (Step(50, 60.0, 60.0), Step(100, 7200.0, 7200.0))


def test_an_order_without_words_is_one_all_the_same() -> None:
    order = rules(order={"revision": "chat-b", "action": "Skip"}).order
    assert (order.id, order.who, order.why) == ("Skip/chat-b", "spec", "no reason is given")
    said = {"revision": "chat-b", "action": "Abort", "id": "7", "by": "ann", "why": "slow"}
    assert rules(order=said).order.id == "7"
    assert rules(order={"revision": "chat-b", "action": "Pin"}).order is None


def test_gates_on_answers_are_for_the_shadow_step_and_the_others_for_the_steps() -> None:
    assert rules().policy.shadow is None
    usual = rules(shadow={"percent": 5, "optOutTenants": ["acme"]})
    assert (usual.shadow, usual.opt_out) == (5, ("acme",))
    assert usual.policy.shadow == Step(1, 0.0, 1800.0)
    assert Signal.OUTPUT_DIFFERENCE in {gate.signal for gate in usual.output_gates}
    assert {gate.min_samples for gate in usual.output_gates} == {50, 200}
    gates = [
        {"signal": "TTFTP99", "maxRegressionPercent": 10},
        {"signal": "ErrorRate", "maxRegressionPercent": 2},
        {"signal": "Refusals", "maxRegressionPercent": 1},
    ]
    given = rules(shadow={"percent": 5, "minSamples": 30}, gates=gates)
    assert [gate.signal for gate in given.gates] == [Signal.TTFT_P99, Signal.ERROR_RATE]
    assert [gate.signal for gate in given.output_gates] == [Signal.REFUSALS, Signal.ERROR_RATE]
    assert {gate.min_samples for gate in given.output_gates} == {30}


def test_gates_on_what_replicas_count_have_their_own_times() -> None:
    names = ("Throughput", "Preemptions", "HitRate", "TTFTP50")
    found = rules(gates=[{"signal": name, "maxRegressionPercent": 10} for name in names])
    assert [gate.signal for gate in found.gates] == [Signal.TTFT_P50]
    assert [(gate.signal, gate.min_samples, gate.settle) for gate in found.replica_gates] == [
        (Signal.THROUGHPUT, 20, 60.0),
        (Signal.PREEMPTIONS, 200, 60.0),
        (Signal.HIT_RATE, 200, 600.0),
    ]
    assert (
        rules(gates=[{"signal": "HitRate", "maxRegressionPercent": 5, "warmUp": "2m"}]).replica_gates[0].settle == 120
    )


def test_the_output_canary_is_a_gate_without_a_margin_and_may_be_the_only_one() -> None:
    assert not rules().canary
    only = rules(gates=[{"signal": "OutputCanary", "maxRegressionPercent": 0}])
    assert (only.canary, only.gates, only.replica_gates) == (True, (), ())


def test_users_own_queries_have_bounds_and_times() -> None:
    said = {"name": "cost", "query": 'sum(cost{pod=~"$candidatePods"})'}
    [usual, other] = rules(
        queries=[{**said, "max": "0.05"}, {**said, "min": "-1.5", "holdFor": "5m", "warmUp": "0s"}]
    ).queries
    assert (usual.low, usual.high, usual.hold_for, usual.settle) == (-math.inf, 0.05, 120.0, 60.0)
    assert (other.low, other.high, other.hold_for, other.settle) == (-1.5, math.inf, 300.0, 0.0)
    assert rules().queries == ()


def test_users_own_comparisons_are_gates_of_the_shadow_step_beside_the_others() -> None:
    scores = [{"name": "tone", "maxPercent": 10}, {"name": "law", "maxPercent": 0, "minSamples": 40}]
    found = rules(shadow={"percent": 5, "minSamples": 30, "scores": scores}).output_gates
    assert {gate.signal for gate in found} > {Signal.SCORE, Signal.OUTPUT_DIFFERENCE}
    ours = [(gate.name, gate.margin, gate.min_samples, gate.settle) for gate in found if gate.score]
    assert ours == [("Score/tone", 10.0, 30, 0.0), ("Score/law", 0.0, 40, 0.0)]


def test_steps_that_do_not_rise_are_refused_with_what_to_write() -> None:
    with pytest.raises(ValueError, match="write rising ones"):
        rules(steps=[{"weight": 50}, {"weight": 20}, {"weight": 100}])


STATE = State(
    "chat-a", Phase.JUDGING, "chat-b", 1, 25, 9, since=1000.0, steps=(Step(5, 1, 1), Step(25, 1, 1), Step(100, 1, 1))
)
FINDING = Finding(Gate(Signal.TTFT_P99, 25.0), Outcome.WORSE, "BeyondMargin", "TTFTP99 is worse")
SAID = Judgement(
    "chat-b", 9, 1, 1000.0, Verdict.FAIL, "default/Short: TTFTP99 is worse", 1200.0, (("default/Short", FINDING),)
)
RECORD = Record(1000.0, "chat-b", Phase.MOVING, Phase.JUDGING, 25, "paceline", "Followed", "every router follows")


def test_the_status_has_the_decision_and_the_verdict_on_this_step_only() -> None:
    told = rollout_status(STATE, "chat-b", SAID)
    assert told is not None
    assert (told.revision, told.phase, told.step, told.steps, told.weight) == ("chat-b", "Judging", 2, 3, 25)
    assert (told.verdict, told.since) == ("Fail", "1970-01-01T00:16:40Z")
    other = rollout_status(STATE, "chat-b", replace(SAID, step=0))
    assert other is not None
    assert other.verdict is None
    rejected = rollout_status(State("chat-a", rejected="chat-b", reason="RolledBack", message="slow"), "chat-b", None)
    assert rejected is not None
    assert (rejected.revision, rejected.phase, rejected.reason) == ("chat-b", "Idle", "RolledBack")
    assert rollout_status(State("chat-a"), "chat-a", None) is None
    assert rollout_status(None, "chat-a", None) is None


def test_the_revision_keeps_its_last_decisions_and_its_verdict_as_long_as_it_is_news() -> None:
    kept = None
    for _ in range(MOST_EVENTS + 3):
        kept = with_event(kept, RECORD)
    assert kept is not None
    assert kept.timeline is not None
    assert len(kept.timeline) == MOST_EVENTS
    judged = with_verdict(kept, SAID, STATE)
    assert judged is not None
    assert judged.verdict is not None
    assert (judged.verdict.verdict, judged.verdict.base, judged.verdict.step) == ("Fail", "chat-a", 2)
    assert judged.verdict.gates is not None
    assert judged.verdict.gates[0].outcome == "Worse"
    assert judged.timeline == kept.timeline
    assert with_verdict(judged, replace(SAID, at=1201.0), STATE) is None, "the same is no news"
    assert with_verdict(judged, replace(SAID, at=1201.0, verdict=Verdict.PASS), STATE) is not None
    assert with_verdict(judged, replace(SAID, at=1200.0 + RETELL_SECONDS), STATE) is not None
    assert with_verdict(judged, replace(SAID, generation=8), STATE) is None, "it is about other traffic"
    stored = {"status": {"rollout": judged.model_dump(mode="json", exclude_none=True)}}
    assert rollout_of(stored) == judged
    assert rollout_of({"status": {"rollout": {"timeline": "long"}}}) is None
    assert rollout_of({}) is None


def test_what_a_step_can_find_out_is_told_with_its_verdict() -> None:
    gates = (
        Foreseen("default/Short", "TTFTP99", 32400.2, 43.21, "at 5 % of 3 requests/s, ... needs 9 h"),
        Foreseen("service", "Query/cost", None, None, "never"),
    )
    said = replace(SAID, foreseen=gates, prospect="1 of 2 gates will hardly be known")
    status = rollout_status(STATE, "chat-b", said)
    assert status is not None
    assert status.prospect == "1 of 2 gates will hardly be known"
    kept = with_verdict(None, said, STATE)
    assert kept is not None
    assert kept.model_dump(mode="json", exclude_none=True)["verdict"]["prospects"] == [
        {
            "place": "default/Short",
            "signal": "TTFTP99",
            "seconds": 32401,
            "detectable": "43.2",
            "message": "at 5 % of 3 requests/s, ... needs 9 h",
        },
        {"place": "service", "signal": "Query/cost", "message": "never"},
    ]


def test_metrics_are_of_services_that_have_a_rollout() -> None:
    meta = {"namespace": "demo", "name": "chat"}
    with_one = {"metadata": meta, "status": {"rollout": {"phase": "Judging"}}}
    assert told_of([with_one, {"metadata": {**meta, "name": "other"}}]) == {("demo", "chat"): {"phase": "Judging"}}


def test_what_a_status_says_no_more_is_taken_away_in_depth() -> None:
    old = {"traffic": {"generation": 2, "shadow": {"percent": 5}}, "rollout": {"phase": "Shadow"}, "replicas": 2}
    new = {"traffic": {"generation": 3}, "replicas": 2}
    assert over(old, new) == {"traffic": {"generation": 3, "shadow": None}, "rollout": None, "replicas": 2}
