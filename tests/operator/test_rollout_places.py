"""How many more replicas find a place, as the scheduler and the quotas would have it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline_kube import NODES, PODS, RESOURCEQUOTAS, Forbidden, JsonObject
from paceline_operator.rollout.places import Places, free, takes

GPU = "nvidia.com/gpu"


def node(name: str = "n", ready: str = "True", labels: dict[str, str] | None = None, **spec: Any) -> JsonObject:
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "10", GPU: "4"},
        },
    }


def pod(on: str | None = "n", phase: str = "Running", **limits: str) -> JsonObject:
    spec: JsonObject = {"containers": [{"resources": {"limits": limits}}]}
    return {"spec": {**spec, **({"nodeName": on} if on else {})}, "status": {"phase": phase}}


def template(spec: JsonObject | None = None, **limits: str) -> JsonObject:
    return {"spec": {"containers": [{"resources": {"limits": limits}}], **(spec or {})}}


def quota(hard: dict[str, str], used: dict[str, str], **spec: Any) -> JsonObject:
    return {"spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used}}


def test_what_runs_takes_its_place_and_what_has_ended_does_not() -> None:
    one = template(**{GPU: "1"})
    assert free(one, [node()], [], ()) == 4
    running, ended = pod(**{GPU: "3"}), pod(phase="Succeeded", **{GPU: "3"})
    assert free(one, [node()], [running, ended, pod(on=None, **{GPU: "4"})], ()) == 1
    assert free(one, [node(), node("m")], [running], ()) == 5
    assert free(template(**{GPU: "3"}), [node(), node("m")], [running], ()) == 1, "a replica is on one node"


def test_the_scarcest_resource_counts_and_so_do_places_for_pods() -> None:
    assert free(template(cpu="3", **{GPU: "1"}), [node()], [], ()) == 2
    assert free(template(), [node()], [pod() for _ in range(7)], ()) == 3
    first: JsonObject = {"initContainers": [{"resources": {"requests": {"memory": "40Gi"}}}]}
    assert free(template(first, memory="1Gi"), [node()], [], ()) == 1


@pytest.mark.parametrize(
    ("one", "spec", "takes_it"),
    [
        (node(ready="Unknown"), {}, False),
        (node(unschedulable=True), {}, False),
        (node(labels={"zone": "a"}), {"nodeSelector": {"zone": "a"}}, True),
        (node(labels={"zone": "b"}), {"nodeSelector": {"zone": "a"}}, False),
        (node(taints=[{"key": "gpu", "effect": "NoSchedule"}]), {}, False),
        (node(taints=[{"key": "gpu", "effect": "PreferNoSchedule"}]), {}, True),
        (node(taints=[{"key": "gpu", "effect": "NoSchedule"}]), {"tolerations": [{"operator": "Exists"}]}, True),
        (
            node(taints=[{"key": "gpu", "value": "a", "effect": "NoExecute"}]),
            {"tolerations": [{"key": "gpu", "value": "b"}]},
            False,
        ),
    ],
)
def test_nodes_that_would_not_have_it_do_not_count(one: JsonObject, spec: JsonObject, takes_it: bool) -> None:
    assert takes(one, spec) is takes_it


@pytest.mark.parametrize(
    ("operator", "values", "takes_it"),
    [
        ("In", ["h100", "h200"], True),
        ("NotIn", ["h100"], False),
        ("Exists", None, True),
        ("DoesNotExist", None, False),
    ],
)
def test_required_node_affinity_is_read(operator: str, values: list[str] | None, takes_it: bool) -> None:
    expression = {"key": "gpu", "operator": operator, **({"values": values} if values else {})}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    assert takes(node(labels={"gpu": "h100"}), spec) is takes_it


def test_a_quota_allows_no_more_than_is_left_of_it() -> None:
    one = template(cpu="2", **{GPU: "1"})
    assert free(one, [node()], [], [quota({f"requests.{GPU}": "3"}, {f"requests.{GPU}": "2"})]) == 1
    assert free(one, [node()], [], [quota({"limits.cpu": "5"}, {"limits.cpu": "1"})]) == 2
    assert free(one, [node()], [], [quota({"pods": "5"}, {"pods": "5"})]) == 0
    assert free(one, [node()], [], [quota({"pods": "0"}, {}, scopes=["BestEffort"])]) == 4
    assert free(one, [node()], [], [quota({"services": "0"}, {})]) == 4


class Lists:
    """A client that has these lists, or may not read them."""

    def __init__(self, nodes: list[JsonObject] | None) -> None:
        self.nodes, self.asked = nodes, 0

    async def list(self, resource: Any, namespace: str | None = None) -> Any:
        self.asked += 1
        if self.nodes is None:
            raise Forbidden(403, "Forbidden", "nodes is forbidden")
        return type("List", (), {"items": {NODES: self.nodes, PODS: [], RESOURCEQUOTAS: []}[resource]})


def pool(pool_hash: str, **limits: str) -> Any:
    return type("Pool", (), {"hash": pool_hash, "pod_template": template(**limits)})


async def test_the_cluster_is_asked_once_in_a_while() -> None:
    client, now = Lists([node()]), [0.0]
    places = Places(client, lambda: now[0], 30.0)  # type: ignore[arg-type]
    for _ in range(3):
        assert await places.free(("demo", "chat"), [pool("a", **{GPU: "1"})]) == 4
    assert client.asked == 3
    assert await places.free(("demo", "chat"), [pool("b", **{GPU: "2"})]) == 2
    now[0] = 31.0
    assert await places.free(("demo", "chat"), [pool("b", **{GPU: "2"}), pool("c", **{GPU: "4"})]) == 1
    assert client.asked == 9


async def test_what_may_not_be_read_is_not_known() -> None:
    places = Places(Lists(None), lambda: 0.0, 30.0)  # type: ignore[arg-type]
    assert await places.free(("demo", "chat"), [pool("a")]) is None
    broken = node()
    broken["status"]["allocatable"]["cpu"] = "lots"
    assert (
        await Places(Lists([broken]), lambda: math.inf, 30.0).free(  # type: ignore[arg-type]
            ("demo", "chat"), [pool("a", cpu="1")]
        )
        is None
    )
