"""The table of conditions, row by row, and the rest of the status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from paceline_crds.conditions import ConditionType, Reason
from paceline_crds.revision import InferenceRevision, InferenceRevisionSpec
from paceline_crds.rollout import RolloutStrategy
from paceline_crds.service import InferenceService, ObjectMeta
from paceline_operator.actions import child_name
from paceline_operator.failures import Problem
from paceline_operator.observed import DeploymentView, Entry, Observed, Ownership, PodView, RevisionView, Traffic
from paceline_operator.render import Carried, Desired, pinned, render
from paceline_operator.situation import Situation
from paceline_operator.status import judge, status_of

NOW = 1_800_000_000.0
STAMP = "2027-01-15T08:00:00Z"
URL = "http://router"


def desired(seqs: int = 32, **spec: Any) -> Desired:
    body = {"model": {"source": "package://m"}, "runtime": {"maxNumSeqs": seqs}, **spec}
    obj = {"metadata": {"name": "chat", "namespace": "demo"}, "spec": body}
    return render(InferenceService.from_object(obj), Carried(), "r:1")


def revision(of: Desired, generation: int | None = None) -> RevisionView:
    spec = InferenceRevisionSpec(service="chat", pools=list(of.pools))
    parsed = InferenceRevision(metadata=ObjectMeta(name=of.revision), spec=spec)
    entries = tuple(Entry(pool.name, of.revision) for pool in of.pools)
    traffic = None if generation is None else Traffic(generation, of.revision, entries, 1.0)
    return RevisionView(of.revision, "u", "1", "", Ownership.OURS, parsed, traffic)


def pods(
    of: Desired, ready: int = 0, starting: int = 0, ending: int = 0, problem: Problem | None = None, pool: int = 0
) -> list[PodView]:
    name, digest = of.pools[pool].name, of.pools[pool].hash
    kinds = ["ready"] * ready + ["starting"] * starting + ["ending"] * ending
    return [
        PodView(
            f"{digest}-{i}",
            name,
            digest,
            kind == "ready",
            kind == "ending",
            False,
            problem if kind == "starting" else None,
        )
        for i, kind in enumerate(kinds)
    ]


def deployment(of: Desired, replicas: int, pool: int = 0, problem: Problem | None = None) -> DeploymentView:
    of_pool = of.pools[pool]
    name = child_name("chat", of_pool)
    return DeploymentView(name, "u", "1", of_pool.name, of_pool.hash, replicas, 0, Ownership.OURS, False, True, problem)


def situation(
    of: Desired | None,
    revisions: Sequence[RevisionView] = (),
    pods_: Sequence[PodView] = (),
    deployments: Sequence[DeploymentView] = (),
    problem: Problem | None = None,
    waiting: str = "",
) -> Situation:
    observed = Observed("demo", "chat", "uid", 7, tuple(revisions), tuple(deployments), (), tuple(pods_))
    return Situation(observed, of, problem, waiting)


A, B = desired(), desired(8)
A2, B2 = replace(A, replicas={"default": 2}), replace(B, replicas={"default": 2})
ZERO = replace(A, replicas={"default": 0})
SUSPENDED_ZERO = replace(ZERO, suspended=True)
CRASH = Problem(Reason.CRASH_LOOP, "it crashes", "pod p")
REFUSED = Problem(Reason.POD_REFUSED, "requests: must be less than the limit", "cannot create chat")
QUOTA = Problem(Reason.QUOTA_EXCEEDED, "exceeded quota", "deployment d")

# name → situation, Ready, TrafficReady, RevisionReady, Progressing, each as "status reason"
TABLE: dict[str, tuple[Situation, str, str, str, str]] = {
    "asked-for revision serves everywhere": (
        situation(A2, [revision(A, 1)], pods(A, ready=2), [deployment(A, 2)]),
        "True AsAsked",
        "True Serving",
        "True AsAsked",
        "False AsAsked",
    ),
    "old pods still drain": (
        situation(B, [revision(A, 1), revision(B, 2)], pods(B, 1) + pods(A, ending=2), [deployment(A, 0)]),
        "True AsAsked",
        "True Serving",
        "True AsAsked",
        "False AsAsked",
    ),
    "new revision gets ready beside the old one": (
        situation(B, [revision(A, 1), revision(B)], pods(A, 1) + pods(B, starting=1), [deployment(A, 1)]),
        "False RollingOut",
        "True Serving",
        "False Starting",
        "True RollingOut",
    ),
    "traffic moved, routers have not all followed": (
        situation(B, [revision(A, 1), revision(B, 2)], pods(A, 1) + pods(B, 1), [deployment(A, 1)]),
        "False RollingOut",
        "True Serving",
        "True AsAsked",
        "True RollingOut",
    ),
    "new revision fails, the old one serves": (
        situation(B, [revision(A, 1), revision(B)], pods(A, 1) + pods(B, starting=1, problem=CRASH)),
        "False CrashLoop",
        "True Serving",
        "False CrashLoop",
        "False CrashLoop",
    ),
    "first start": (
        situation(A, [revision(A, 1)], pods(A, starting=1), [deployment(A, 1)]),
        "False Starting",
        "False NothingServes",
        "False Starting",
        "True Starting",
    ),
    "first start fails": (
        situation(A, [revision(A, 1)], pods(A, starting=1, problem=CRASH), [deployment(A, 1)]),
        "False CrashLoop",
        "False CrashLoop",
        "False CrashLoop",
        "False CrashLoop",
    ),
    "no pod may be made": (
        situation(A, [revision(A, 1)], [], [deployment(A, 1, problem=QUOTA)]),
        "False QuotaExceeded",
        "False QuotaExceeded",
        "False QuotaExceeded",
        "False QuotaExceeded",
    ),
    "some replicas not ready, enough serve": (
        situation(A2, [revision(A, 1)], pods(A, ready=1, starting=1, problem=CRASH), [deployment(A, 2)]),
        "False Degraded",
        "True Serving",
        "False CrashLoop",
        "False CrashLoop",
    ),
    "more replicas were asked for and start": (
        situation(A2, [revision(A, 1)], pods(A, ready=1, starting=1), [deployment(A, 2)]),
        "False Starting",
        "True Serving",
        "False Starting",
        "True Starting",
    ),
    "at zero by design": (
        situation(ZERO, [revision(A, 1)], [], [deployment(A, 0)]),
        "True ScaledToZero",
        "True Idle",
        "True AsAsked",
        "False AsAsked",
    ),
    "spec cannot be rendered, the old one serves": (
        situation(None, [revision(A, 1)], pods(A, 1), problem=Problem(Reason.INVALID_SPEC, "lower it")),
        "False InvalidSpec",
        "True Serving",
        "False InvalidSpec",
        "False InvalidSpec",
    ),
    "spec cannot be rendered, nothing was there": (
        situation(None, problem=Problem(Reason.INVALID_SPEC, "lower it")),
        "False InvalidSpec",
        "False InvalidSpec",
        "False InvalidSpec",
        "False InvalidSpec",
    ),
    "a child is refused": (
        situation(B, [revision(A, 1), revision(B)], pods(A, 1), problem=Problem(Reason.POD_REFUSED, "no")),
        "False PodRefused",
        "True Serving",
        "False PodRefused",
        "False PodRefused",
    ),
    "suspended, all is as asked": (
        situation(replace(A, suspended=True), [revision(A, 1)], pods(A, 1), [deployment(A, 1)]),
        "True Suspended",
        "True Serving",
        "True AsAsked",
        "False Suspended",
    ),
    "suspended with a spec that waits": (
        situation(replace(B, suspended=True), [revision(A, 1)], pods(A, 1), [deployment(A, 1)]),
        "False Suspended",
        "True Serving",
        "Unknown Suspended",
        "False Suspended",
    ),
    "suspended before it began": (
        situation(replace(A, suspended=True)),
        "False Suspended",
        "False NothingServes",
        "Unknown Suspended",
        "False Suspended",
    ),
    "suspended, a count of zero waits while a replica serves": (
        situation(SUSPENDED_ZERO, [revision(A, 1)], pods(A, 1), [deployment(A, 1)]),
        "False Suspended",
        "True Serving",
        "True AsAsked",
        "False Suspended",
    ),
    "suspended, a count of zero waits and the replica is gone": (
        situation(SUSPENDED_ZERO, [revision(A, 1)], [], [deployment(A, 1)]),
        "False Suspended",
        "False NothingServes",
        "False Starting",
        "False Suspended",
    ),
    "suspended, a count of zero waits and the replica crashes": (
        situation(SUSPENDED_ZERO, [revision(A, 1)], pods(A, starting=1, problem=CRASH), [deployment(A, 1)]),
        "False Suspended",
        "False CrashLoop",
        "False CrashLoop",
        "False Suspended",
    ),
    "suspended, a count of zero waits and the Deployment is gone": (
        situation(SUSPENDED_ZERO, [revision(A, 1)]),
        "False Suspended",
        "False NothingServes",
        "True AsAsked",
        "False Suspended",
    ),
    "suspended, a revision without replicas waits and the replica crashes": (
        situation(
            replace(B, replicas={"default": 0}, suspended=True),
            [revision(A, 1)],
            pods(A, starting=1, problem=CRASH),
            [deployment(A, 1)],
        ),
        "False Suspended",
        "False CrashLoop",
        "Unknown Suspended",
        "False Suspended",
    ),
    "suspended at zero": (
        situation(SUSPENDED_ZERO, [revision(A, 1)], [], [deployment(A, 0)]),
        "True Suspended",
        "True Idle",
        "True AsAsked",
        "False Suspended",
    ),
    "suspended at zero with a count that waits": (
        situation(replace(A, suspended=True), [revision(A, 1)], [], [deployment(A, 0)]),
        "False Suspended",
        "True Idle",
        "True AsAsked",
        "False Suspended",
    ),
    "without replicas and refused": (
        situation(ZERO, [revision(A)], problem=REFUSED),
        "False PodRefused",
        "False PodRefused",
        "False PodRefused",
        "False PodRefused",
    ),
    "without replicas and refused, the old revision has stopped serving": (
        situation(
            replace(B, replicas={"default": 0}),
            [revision(A, 1), revision(B)],
            pods(A, starting=1),
            [deployment(A, 1)],
            REFUSED,
        ),
        "False PodRefused",
        "False PodRefused",
        "False PodRefused",
        "False PodRefused",
    ),
    "without replicas, by recreation and refused": (
        situation(ZERO, [revision(B), revision(A, 2)], [], [deployment(B, 1)], REFUSED),
        "False PodRefused",
        "True Idle",
        "False PodRefused",
        "False PodRefused",
    ),
    "spec cannot be rendered, the old one is at zero": (
        situation(None, [revision(A, 1)], [], [deployment(A, 0)], Problem(Reason.INVALID_SPEC, "lower it")),
        "False InvalidSpec",
        "True Idle",
        "False InvalidSpec",
        "False InvalidSpec",
    ),
}


@pytest.mark.parametrize("row", TABLE)
def test_conditions_follow_the_table(row: str) -> None:
    seen, *expected = TABLE[row]
    verdicts = judge(seen)
    kinds = (
        ConditionType.READY,
        ConditionType.TRAFFIC_READY,
        ConditionType.REVISION_READY,
        ConditionType.PROGRESSING,
    )
    assert [f"{verdicts[kind].status} {verdicts[kind].reason}" for kind in kinds] == expected
    assert all(verdict.message for verdict in verdicts.values())


def test_messages_say_what_fails_and_what_goes_on() -> None:
    seen = TABLE["new revision fails, the old one serves"][0]
    assert judge(seen)[ConditionType.READY].message == (
        f"{B.revision} does not get ready: {CRASH.sentence}; {A.revision} goes on serving"
    )
    degraded = TABLE["some replicas not ready, enough serve"][0]
    assert judge(degraded)[ConditionType.READY].message == (f"pool default has 1 of 2 replicas ready; {CRASH.sentence}")


def test_what_is_refused_or_waited_for_is_told_without_replicas_too() -> None:
    assert judge(TABLE["without replicas and refused"][0])[ConditionType.READY].message == REFUSED.sentence
    blocked = situation(ZERO, [revision(A)], waiting="Deployment chat-x belongs to another owner and has to go first")
    assert "another owner" in judge(blocked)[ConditionType.READY].message


def test_while_suspended_the_words_are_about_what_is_in_force() -> None:
    gone = judge(TABLE["suspended, a count of zero waits and the replica is gone"][0])
    assert gone[ConditionType.TRAFFIC_READY].message == "pool default has 0 of 1 replicas ready"
    assert gone[ConditionType.READY].message == (
        "nothing is changed until spec.suspend is false; pool default has 0 of 1 replicas ready; "
        "pool default stays at 1, the spec asks for 0"
    )
    other = replace(TABLE["suspended with a spec that waits"][0].observed, pods=())
    verdicts = judge(Situation(other, replace(B, suspended=True), waiting="spec.suspend is true"))
    assert verdicts[ConditionType.TRAFFIC_READY].message == "pool default has 0 of 1 replicas ready"


def test_a_roll_without_room_for_both_gets_advice() -> None:
    full = Problem(Reason.UNSCHEDULABLE, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu", "pod p")
    seen = [revision(A, 1), revision(B)], pods(A, 1) + pods(B, starting=1, problem=full)
    stuck = judge(situation(B, *seen, [deployment(A, 1)]))[ConditionType.READY]
    assert stuck.reason is Reason.UNSCHEDULABLE
    assert "spec.rollout.strategy: Recreate they are without waiting" in stuck.message
    recreate = replace(B, strategy=RolloutStrategy.RECREATE)
    assert "Recreate" not in judge(situation(recreate, *seen))[ConditionType.READY].message


def test_a_roll_without_room_that_goes_one_by_one_is_told_as_one() -> None:
    full = Problem(Reason.UNSCHEDULABLE, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu", "pod p")
    revisions = [revision(A, 1), revision(B)]
    both = pods(A, ready=1) + pods(B, ready=1, starting=1, problem=full)
    verdicts = judge(situation(B2, revisions, both, [deployment(A, 1), deployment(B, 2)]))
    assert verdicts[ConditionType.READY].reason is Reason.ROLLING_OUT
    assert "there is no room for both, so replicas are replaced one by one" in verdicts[ConditionType.READY].message
    assert verdicts[ConditionType.PROGRESSING].status == "True"
    # The traffic has moved, and the old replica holds its device until its last request is through.
    ending = pods(A, ending=1) + pods(B, ready=1, starting=1, problem=full)
    verdicts = judge(situation(B2, [revision(A, 1), revision(B, 2)], ending, [deployment(A, 0), deployment(B, 2)]))
    assert verdicts[ConditionType.READY].reason is Reason.STARTING
    # Nothing else ends: then the missing device is what is wrong.
    alone = pods(B, ready=1, starting=1, problem=full)
    verdicts = judge(situation(B2, [revision(B, 2)], alone, [deployment(B, 2)]))
    assert verdicts[ConditionType.READY].reason is Reason.DEGRADED


def test_a_revision_that_has_the_traffic_is_not_said_to_take_over_from_itself() -> None:
    both = pods(A, ready=1) + pods(B, ready=1)
    before = judge(situation(B, [revision(A, 1), revision(B)], both, [deployment(A, 1), deployment(B, 1)]))
    assert f"{A.revision} serves while {B.revision} takes over" in before[ConditionType.READY].message
    after = judge(situation(B, [revision(A, 1), revision(B, 2)], both, [deployment(A, 1), deployment(B, 1)]))
    assert after[ConditionType.READY].reason is Reason.ROLLING_OUT
    assert (
        f"{B.revision} serves while replicas of another revision are still to go" in after[ConditionType.READY].message
    )


def test_an_evicted_pod_tells_something_only_where_its_successor_does_not() -> None:
    evicted = Problem(Reason.POD_REFUSED, "Evicted", "pod old")
    gone = PodView("old", "default", A.pools[0].hash, False, False, True, evicted)
    alone = situation(A, [revision(A, 1)], [gone])
    assert judge(alone)[ConditionType.READY].reason is Reason.POD_REFUSED
    later = situation(A, [revision(A, 1)], [gone, *pods(A, starting=1, problem=CRASH)])
    assert judge(later)[ConditionType.READY].reason is Reason.CRASH_LOOP
    status = status_of(alone, [], NOW, URL)
    assert (status["replicas"], status["readyReplicas"]) == (0, 0)


def test_an_evicted_pod_is_history_once_its_successor_is_ready() -> None:
    evicted = Problem(Reason.EVICTED, "low on memory", "pod old")
    gone = PodView("old", "default", A.pools[0].hash, False, False, True, evicted, ended="2026-01-01T00:00:10Z")
    starting = replace(pods(A, starting=1)[0], name="new", created="2026-01-01T00:00:11Z")
    other = replace(pods(A, ready=1)[0], name="other", created="2025-12-01T00:00:00Z")
    three = replace(A, replicas={"default": 3})
    seen = [gone, starting, other]
    assert judge(situation(three, [revision(A, 1)], seen))[ConditionType.READY].reason is Reason.DEGRADED
    later = [gone, replace(starting, ready=True), other]
    assert judge(situation(three, [revision(A, 1)], later))[ConditionType.READY].reason is Reason.STARTING


def test_how_many_replicas_have_the_same_problem_is_told() -> None:
    crashing = pods(A, starting=3, problem=CRASH)
    words = judge(situation(replace(A, replicas={"default": 3}), [revision(A, 1)], crashing))
    assert "pod p: it crashes (and 2 replicas more)" in words[ConditionType.READY].message


def test_the_problem_of_a_pod_that_ends_is_nobodys() -> None:
    ending = replace(pods(A, starting=1, problem=CRASH)[0], terminating=True)
    seen = situation(A, [revision(A, 1)], [ending, *pods(A, starting=1)])
    assert judge(seen)[ConditionType.READY].reason is Reason.STARTING


def test_the_whole_status() -> None:
    both = desired(pools=[{"name": "long", "replicas": 2}])
    seen = situation(
        both,
        [revision(A, 1), revision(both, 4)],
        pods(both, ready=1, ending=1) + pods(both, ready=1, starting=1, pool=1) + pods(A, ending=2),
        [deployment(both, 1), deployment(both, 2, pool=1)],
    )
    status = status_of(seen, [], NOW, URL)
    conditions = status.pop("conditions")
    assert status == {
        "observedGeneration": 7,
        "replicas": 3,
        "readyReplicas": 2,
        "selector": "paceline.io/service=chat",
        "address": {"url": "http://router/demo/chat/v1"},
        "currentRevision": both.revision,
        "updatedRevision": both.revision,
        "pools": [
            {"name": "default", "hash": both.pools[0].hash, "desired": 1, "ready": 1, "draining": 3},
            {"name": "long", "hash": both.pools[1].hash, "desired": 2, "ready": 1, "draining": 0},
        ],
        "traffic": {
            "generation": 4,
            "entries": [
                {"pool": "default", "revision": both.revision, "weight": 100},
                {"pool": "long", "revision": both.revision, "weight": 100},
            ],
        },
    }
    assert [c["type"] for c in conditions] == ["Ready", "TrafficReady", "RevisionReady", "Progressing"]
    assert {c["lastTransitionTime"] for c in conditions} == {STAMP}
    assert {c["observedGeneration"] for c in conditions} == {7}


def test_a_condition_keeps_its_time_while_its_status_is_the_same() -> None:
    before = status_of(TABLE["first start"][0], [], NOW, URL)["conditions"]
    failing = status_of(TABLE["first start fails"][0], before, NOW + 60, URL)["conditions"]
    serving = status_of(TABLE["asked-for revision serves everywhere"][0], failing, NOW + 120, URL)["conditions"]
    times = [[c["lastTransitionTime"][14:19] for c in conditions] for conditions in (before, failing, serving)]
    assert times == [
        ["00:00", "00:00", "00:00", "00:00"],
        ["00:00", "00:00", "00:00", "01:00"],
        ["02:00", "02:00", "02:00", "01:00"],
    ]


def test_the_status_is_a_function_of_what_is_seen_only() -> None:
    for seen, *_ in TABLE.values():
        first = status_of(seen, [], NOW, URL)
        assert status_of(seen, first["conditions"], NOW + 1000, URL) == first


def test_a_pinned_revision_that_serves_is_ready_and_says_that_it_is_pinned() -> None:
    first = revision(A, 3)
    assert first.parsed is not None
    held = pinned(B, first.parsed)
    verdict = judge(situation(held, [first], pods(A, ready=1), [deployment(A, 1)]))[ConditionType.READY]
    assert (verdict.status, verdict.reason) == ("True", Reason.PINNED)
    assert verdict.message == f"{A.revision} serves, 1 of 1 ready; spec.rollout.order pins it"


def test_a_pinned_revision_takes_its_counts_from_the_spec() -> None:
    first = revision(A, 3)
    assert first.parsed is not None
    held = pinned(replace(B, replicas={"default": 4}), first.parsed)
    assert (held.revision, dict(held.replicas), held.pools) == (A.revision, {"default": 4}, A.pools)
    assert dict(pinned(replace(B, replicas={"other": 4}), first.parsed).replicas) == {"default": 1}
