"""What counts as drift, what does not, and what is done about it: pure."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.conditions import Reason
from paceline_crds.revision import InferenceRevision, InferenceRevisionSpec
from paceline_crds.service import InferenceService, ObjectMeta
from paceline_operator import children
from paceline_operator.actions import ApplyDeployment, Delete, child_name
from paceline_operator.apply import overlay
from paceline_operator.drift.compare import Drift, Item, Report, World, compare
from paceline_operator.drift.fields import differences
from paceline_operator.drift.repair import INTERVAL_SECONDS, MOST_SECONDS, TOLD_AFTER, Last, after, repair
from paceline_operator.drift.verdict import drift_status, in_sync
from paceline_operator.drift.world import world_of
from paceline_operator.gather import gather
from paceline_operator.observed import Entry, Observed, Ownership, RevisionView, Traffic
from paceline_operator.render import Carried, Desired, render

UID = "service-uid"


def desired(**spec: Any) -> Desired:
    body = {"model": {"source": "package://m"}, "runtime": {"maxNumSeqs": 8}, **spec}
    obj = {"metadata": {"name": "chat", "namespace": "demo"}, "spec": body}
    return render(InferenceService.from_object(obj), Carried(), "r:1")


ASKED = desired(pod={"env": [{"name": "A", "value": "1"}], "resources": {"limits": {"cpu": "1000m"}}})
POOL = ASKED.pools[0]
NAME = child_name("chat", POOL)
OBSERVED = Observed("demo", "chat", UID, 1)


def defaulted(value: Any) -> Any:
    """As the API server stores it: with fields that nobody asked for."""
    if isinstance(value, dict):
        return {**{key: defaulted(item) for key, item in value.items()}, "filledIn": True}
    return [defaulted(item) for item in value] if isinstance(value, list) else value


def deployment() -> dict[str, Any]:
    made = copy.deepcopy(children.deployment(OBSERVED, NAME, POOL, 2))
    made["spec"]["template"] = defaulted(made["spec"]["template"])
    # A quantity comes back in its plain form.
    made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1"
    return made


def config_map() -> dict[str, Any]:
    return copy.deepcopy(children.config_map(OBSERVED, NAME, POOL))


def pod(name: str = "p", ready: bool = True) -> dict[str, Any]:
    template = deployment()["spec"]["template"]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": dict(template["metadata"]["labels"])},
        "spec": template["spec"],
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def effective(**changes: Any) -> dict[str, Any]:
    parameters = {
        name: {"value": value, "origin": POOL.config.origins.get(name, "default")}
        for name, value in POOL.config.parameters.model_dump(mode="json").items()
    }
    body = {
        "model": {"source": "package://m", "servedName": "chat"},
        "model_digest": "sha256:a",
        "parameters": parameters,
    }
    for name, (value, origin) in changes.items():
        parameters[name] = {"value": value, "origin": origin}
    return body


def world(**changes: Any) -> World:
    base = World(
        service="chat",
        pools={POOL.hash: POOL},
        wanted=frozenset([POOL.hash]),
        deployments=(deployment(),),
        config_maps=(config_map(),),
        pods=(pod(),),
        reports={"uid-p": Report(effective())},
    )
    return replace(base, **changes)


def container(obj: dict[str, Any]) -> dict[str, Any]:
    spec = obj["spec"].get("template", obj)["spec"]
    found: dict[str, Any] = spec["containers"][0]
    return found


def test_what_runs_as_recorded_is_no_drift() -> None:
    found = compare(world())
    assert found == Drift(checked=1, running=1)
    verdict = in_sync(found)
    assert (verdict.status, verdict.reason) == ("True", Reason.IN_SYNC)


Edit = Callable[[dict[str, Any]], object]

BY_HAND: list[tuple[str, Edit, str, str, str]] = [
    # what, the edit of a Deployment, field, recorded, found
    (
        "another image",
        lambda d: container(d).update(image="r:2"),
        "spec.template.spec.containers[runtime].image",
        "r:1",
        "r:2",
    ),
    (
        "a variable more",
        lambda d: container(d)["env"].append({"name": "PACELINE_NATIVE", "value": "0"}),
        "spec.template.spec.containers[runtime].env[PACELINE_NATIVE]",
        "absent",
        "0",
    ),
    (
        "a variable changed",
        lambda d: container(d)["env"].__setitem__(-1, {"name": "A", "value": "2"}),
        "spec.template.spec.containers[runtime].env[A].value",
        "1",
        "2",
    ),
    (
        "a variable less",
        lambda d: container(d)["env"].pop(),
        "spec.template.spec.containers[runtime].env[A]",
        "1",
        "absent",
    ),
    (
        "another limit",
        lambda d: container(d)["resources"]["limits"].update(cpu="2"),
        "spec.template.spec.containers[runtime].resources.limits.cpu",
        "1000m",
        "2",
    ),
    (
        "other arguments",
        lambda d: container(d).update(args=["--config", "/elsewhere"]),
        "spec.template.spec.containers[runtime].args",
        '["--config", "/etc/paceline/config.json"]',
        '["--config", "/elsewhere"]',
    ),
    (
        "a volume from elsewhere",
        lambda d: d["spec"]["template"]["spec"]["volumes"][0]["configMap"].update(name="other"),
        "spec.template.spec.volumes[paceline-config].configMap.name",
        NAME,
        "other",
    ),
    (
        "a weaker sandbox",
        lambda d: d["spec"]["template"]["spec"]["securityContext"].update(runAsNonRoot=False),
        "spec.template.spec.securityContext.runAsNonRoot",
        "true",
        "false",
    ),
]


@pytest.mark.parametrize(
    ("edit", "field", "recorded", "found"), [row[1:] for row in BY_HAND], ids=[r[0] for r in BY_HAND]
)
def test_a_deployment_edited_by_hand_is_told_by_field(edit: Edit, field: str, recorded: str, found: str) -> None:
    edited = deployment()
    edit(edited)
    [item] = compare(world(deployments=(edited,))).items
    assert item == Item(f"Deployment/{NAME}", field, recorded, found)


def test_what_others_add_beside_our_fields_is_theirs() -> None:
    edited = deployment()
    edited["spec"]["template"]["metadata"]["annotations"] = {"kubectl.kubernetes.io/restartedAt": "now"}
    edited["spec"]["template"]["metadata"]["labels"]["other.io/x"] = "1"
    edited["spec"]["template"]["spec"]["schedulerName"] = "other"
    assert compare(world(deployments=(edited,))).items == ()


def test_a_config_map_with_other_data_is_told_by_parameter() -> None:
    edited = config_map()
    edited["data"]["config.json"] = edited["data"]["config.json"].replace('"maxNumSeqs": 8', '"maxNumSeqs": 64')
    [item] = compare(world(config_maps=(edited,))).items
    assert item == Item(f"ConfigMap/{NAME}", "parameters.maxNumSeqs", "8", "64")
    edited["data"] = {"config.json": "{"}
    [item] = compare(world(config_maps=(edited,))).items
    assert item.field == "config.json"


def test_a_pod_with_another_environment_than_recorded_is_told() -> None:
    odd = pod()
    container({"spec": {"template": odd}})["env"].append({"name": "PACELINE_NATIVE", "value": "0"})
    # What admission adds to pods is its own affair.
    container({"spec": {"template": odd}})["env"].append({"name": "INJECTED", "value": "x"})
    odd["spec"]["containers"].append({"name": "sidecar"})
    [item] = compare(world(pods=(odd,))).items
    assert (item.subject, item.field, item.replace) == ("p", "env[PACELINE_NATIVE]", True)


def test_a_pod_of_a_revision_that_nothing_asks_for_is_told() -> None:
    left = pod("old")
    left["metadata"]["labels"]["paceline.io/pool-hash"] = "feedfeed00"
    found = compare(world(pods=(pod(), left)))
    assert found.items == (Item("old", "paceline.io/pool-hash", POOL.hash, "feedfeed00", replace=True),)


def test_a_replica_that_reports_other_values_is_told_with_where_they_came_from() -> None:
    report = Report(effective(maxNumSeqs=(64, "environment")))
    [item] = compare(world(reports={"uid-p": report})).items
    assert item == Item("p", "runtime.maxNumSeqs", "8", "64 (from environment)", replace=True)


def test_what_a_replica_found_out_where_nobody_chose_is_no_drift() -> None:
    """A length that the model or the cache does not hold is lowered, and said so."""
    lowered = Report(effective(maxModelLen=(1024, "ledger")))
    assert compare(world(reports={"uid-p": lowered})).items == ()
    chosen = Report(effective(maxNumSeqs=(4, "ledger")))
    assert len(compare(world(reports={"uid-p": chosen})).items) == 1, "this one the spec chose"


def test_another_spelling_of_a_size_is_no_drift() -> None:
    assert POOL.config.parameters.kv_cache_memory == "1Gi"
    report = Report(effective(kvCacheMemory=("1024Mi", "default")))
    assert compare(world(reports={"uid-p": report})).items == ()


def test_a_replica_with_other_weights_than_the_others_is_told() -> None:
    pods = tuple(pod(name) for name in "abc")
    reports = {f"uid-{name}": Report(effective()) for name in "ab"}
    reports["uid-c"] = Report(effective() | {"model_digest": "sha256:b"})
    [item] = compare(world(pods=pods, reports=reports)).items
    assert item == Item("c", "model_digest", "sha256:a", "sha256:b", replace=True)


def test_two_halves_with_different_weights_are_both_told() -> None:
    reports = {"uid-a": Report(effective()), "uid-b": Report(effective() | {"model_digest": "sha256:b"})}
    found = compare(world(pods=(pod("a"), pod("b")), reports=reports))
    assert [item.subject for item in found.items] == ["a", "b"]


def test_nothing_is_in_sync_before_a_replica_has_said_so() -> None:
    starting = compare(world(pods=(pod(ready=False),)))
    assert (in_sync(starting).status, in_sync(starting).reason) == ("Unknown", Reason.NOT_KNOWN)
    assert in_sync(starting).message == "no replica is ready to say what it runs with"
    assert in_sync(compare(world(pods=()))).message == "no replica is there to say it"


def test_a_replica_that_reports_nothing_is_not_known_and_never_in_sync() -> None:
    silent = {"uid-p": Report(None, "it answered 404")}
    found = compare(world(reports=silent))
    assert (found.items, found.unknown) == ((), {"p": "it answered 404"})
    verdict = in_sync(found)
    assert (verdict.status, verdict.reason) == ("Unknown", Reason.NOT_KNOWN)
    assert "p: it answered 404" in verdict.message
    assert compare(world(reports={})).unknown == {"p": "it has not been asked yet"}
    assert compare(world(pods=(pod(ready=False),), reports={})).unknown == {}, "it has nothing in effect yet"


def test_the_status_shows_ten_and_counts_all() -> None:
    items = tuple(Item(f"p{n}", "f", "a", "b") for n in range(25))
    shown = drift_status(Drift(items))
    assert shown is not None
    assert shown.items is not None
    assert (shown.count, len(shown.items)) == (25, 10)
    assert drift_status(None) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "a", "1", "1000m"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "env", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_a_value_never_differs_from_itself(value: Any) -> None:
    assert list(differences(value, copy.deepcopy(value))) == []


@given(values, values)
def test_what_was_overlaid_is_as_recorded(ours: Any, live: Any) -> None:
    if isinstance(ours, dict) and isinstance(live, dict):
        again = overlay(ours, live)
        assert list(differences(ours, again)) == []
        assert set(live) <= set(again), "what we never set stays"


# Repair


def observed(*pods: tuple[str, bool, bool]) -> Observed:
    """Pods as (name, ready, terminating)."""
    spec = InferenceRevisionSpec(service="chat", pools=list(ASKED.pools))
    traffic = Traffic(1, ASKED.revision, (Entry("default", ASKED.revision),), 0.0)
    revision = RevisionView(
        ASKED.revision,
        "u",
        "1",
        "",
        Ownership.OURS,
        InferenceRevision(metadata=ObjectMeta(name=ASKED.revision), spec=spec),
        traffic,
    )
    made = []
    for name, ready, terminating in pods:
        obj = pod(name, ready)
        if terminating:
            obj["metadata"]["deletionTimestamp"] = "now"
        made.append(obj)
    seen = deployment()
    seen["metadata"] |= {"uid": "d", "resourceVersion": "5"}
    config = config_map()
    config["metadata"] |= {"uid": "c", "resourceVersion": "6"}
    service = {"metadata": {"name": "chat", "namespace": "demo", "uid": UID, "generation": 1}}
    found = gather(service, read=lambda _: None, revisions=[], deployments=[seen], config_maps=[config], pods=made)
    return replace(found, revisions=(revision,))


ODD_POD = Drift((Item("a", "runtime.maxNumSeqs", "8", "64", replace=True),))
ODD_DEPLOYMENT = Drift((Item(f"Deployment/{NAME}", "image", "r:1", "r:2"),))
ODD_CONFIG = Drift((*ODD_POD.items, Item(f"ConfigMap/{NAME}", "x", "1", "2")))


def test_a_pod_is_replaced_only_while_all_others_of_its_pool_are_ready() -> None:
    step = repair(observed(("a", True, False), ("b", True, False)), ODD_POD, 1000.0, None)
    assert step.action == Delete("pod", "a", "uid-a", "")
    short = repair(observed(("a", True, False), ("b", False, False)), ODD_POD, 1000.0, None)
    assert short.action is None
    assert "b of the same pool" in short.waiting
    ending = repair(observed(("a", True, False), ("b", True, True)), ODD_POD, 1000.0, None)
    assert ending.action is None


def test_steps_that_cost_a_replica_keep_their_interval() -> None:
    there = observed(("a", True, False))
    assert repair(there, ODD_POD, 1000.0, Last(999.0)).action is None
    assert "the next repair is in 59 s" in repair(there, ODD_POD, 1000.0, Last(999.0)).waiting
    assert repair(there, ODD_POD, 1000.0, Last(1000.0 - INTERVAL_SECONDS)).action is not None


def test_a_config_map_is_made_anew_first_and_without_waiting() -> None:
    step = repair(observed(("a", True, False)), ODD_CONFIG, 1000.0, Last(999.0))
    assert step.action == Delete("config", NAME, "c", "6")


def test_an_edited_deployment_is_put_back_by_force() -> None:
    step = repair(observed(("a", True, False)), ODD_DEPLOYMENT, 1000.0, None)
    assert step.action == ApplyDeployment(NAME, POOL, 2, 2, "d", "5", force=True)
    assert step.action.sentence == f"put the template of {NAME} right"


def test_nothing_is_done_where_nothing_differs() -> None:
    assert repair(observed(), Drift(unknown={"a": "silent"}), 0.0, None).action is None


def test_only_living_objects_of_ours_are_compared() -> None:
    seen = observed(("a", True, False), ("b", True, True))
    foreign = {**deployment(), "metadata": {"name": "foreign"}}
    found = world_of(seen, ASKED.pools, [deployment(), foreign], [config_map()], [pod("a"), pod("b"), pod("c")])
    assert [p["metadata"]["name"] for p in found.pods] == ["a"]
    assert [d["metadata"]["name"] for d in found.deployments] == [NAME]
    assert found.wanted == {POOL.hash}


def fight(drift: Drift, steps: int) -> list[Last]:
    """Repairs of a difference that is there again each time."""
    now, last = 1000.0, None
    found: list[Last] = []
    there = observed(("a", True, False))
    for _ in range(steps):
        if last is not None:
            assert repair(there, drift, now + last.interval - 1, last).action is None
            now += last.interval
        step = repair(there, drift, now, last)
        assert step.costs
        last = after(step, there, drift, now, last)
        found.append(last)
    return found


def test_what_comes_back_on_each_new_replica_is_put_right_less_and_less_often_and_told() -> None:
    """As where admission gives every pod another image: replacing them for ever cures nothing."""
    now, last, intervals, told = 1000.0, None, [], []
    for count in range(9):
        there = observed((f"p{count}", True, False))
        odd = Drift((Item(f"p{count}", "image", "r:1", "mirror/r:1", replace=True),))
        step = repair(there, odd, now, last)
        assert step.costs
        last = after(step, there, odd, now, last)
        intervals.append(last.interval)
        told.append(bool(last.futile))
        now += last.interval
    assert intervals == [min(INTERVAL_SECONDS * 2**count, MOST_SECONDS) for count in range(9)]
    assert told == [count >= TOLD_AFTER for count in range(9)]
    assert last is not None
    assert "image is mirror/r:1" in last.futile


def test_a_deployment_that_somebody_sets_anew_each_time_is_put_right_less_and_less_often() -> None:
    returns = [last.returns for last in fight(ODD_DEPLOYMENT, 4)]
    assert returns == [0, 1, 2, 3]


def test_replicas_that_differ_alike_from_the_start_are_put_right_one_after_the_other_without_delay() -> None:
    names = tuple("abcd")
    now, last = 1000.0, None
    for name in names:
        there = observed(*((other, True, False) for other in names))
        odd = Drift((Item(name, "image", "r:1", "r:2", replace=True),))
        step = repair(there, odd, now, last)
        assert step.costs
        last = after(step, there, odd, now, last)
        assert (last.interval, last.futile) == (INTERVAL_SECONDS, "")
        now += last.interval


def test_another_difference_is_put_right_at_the_usual_pace() -> None:
    [*_, last] = fight(ODD_DEPLOYMENT, 4)
    there = observed(("a", True, False))
    other = Drift((Item("a", "image", "r:1", "r:9", replace=True),))
    step = repair(there, other, last.at + last.interval, last)
    assert after(step, there, other, last.at + last.interval, last).interval == INTERVAL_SECONDS


# Knobs that follow load.


def tuned(value: int, started: Any, origin: str = "spec") -> dict[str, Any]:
    """A report of a replica whose `maxNumSeqs` was changed while it ran."""
    body = effective()
    body["parameters"]["maxNumSeqs"] = {
        "value": value,
        "origin": "tuned",
        "set": {"value": started, "origin": origin},
    }
    return body


RANGES = {"default": {"maxNumSeqs": (2, 8)}}


def test_a_value_that_was_changed_within_its_range_is_no_drift_and_is_known_to_be_changed() -> None:
    found = compare(world(reports={"uid-p": Report(tuned(4, 8))}, ranges=RANGES))
    assert found == Drift(checked=1, running=1, tuned=frozenset(["p"]))
    assert in_sync(found).reason is Reason.IN_SYNC


@pytest.mark.parametrize(
    ("ranges", "wanted"),
    [
        ({}, "8"),
        ({"default": {"maxNumSeqs": (5, 8)}}, "5 to 8, by autoRanges"),
        ({"other": {"maxNumSeqs": (2, 8)}}, "8"),
    ],
    ids=["no range", "another range", "of another pool"],
)
def test_a_value_that_was_changed_and_is_in_no_range_is_drift_that_costs_no_pod(
    ranges: dict[str, Any], wanted: str
) -> None:
    found = compare(world(reports={"uid-p": Report(tuned(4, 8))}, ranges=ranges))
    assert found.items == (Item("p", "runtime.maxNumSeqs", wanted, "4 (changed while it runs)"),)
    assert found.tuned == frozenset(["p"])
    assert repair(OBSERVED, found, 0.0, None).action is None


def test_what_a_replica_was_started_with_is_compared_though_it_was_changed_since() -> None:
    found = compare(world(reports={"uid-p": Report(tuned(4, 6, "environment"))}, ranges=RANGES))
    assert found.items == (Item("p", "runtime.maxNumSeqs", "8", "6 (from environment)", replace=True),)
