"""Sizes by the ledger, and what does not fit, on a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from paceline_kube import CONFIGMAPS, DEPLOYMENTS, INFERENCEREVISIONS, PODS, JsonObject

pytestmark = pytest.mark.cluster

GPU: dict[str, Any] = {
    "accelerator": {"resource": "nvidia.com/gpu"},
    "pod": {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
}


def model(size: str) -> JsonObject:
    return {"source": f"hf://meta-llama/Llama-3.1-{size}-Instruct@main"}


async def objects(world: Any) -> set[tuple[str, str]]:
    found = [obj for kind in (INFERENCEREVISIONS, DEPLOYMENTS, CONFIGMAPS, PODS) for obj in await world.all(kind)]
    return {(obj["metadata"]["name"], obj["metadata"]["uid"]) for obj in found}


async def test_what_does_not_fit_is_told_and_what_serves_goes_on(world, make_service) -> None:
    async with world.operator() as operator, world.kubelet():
        await world.apply(make_service(model=model("8B"), **GPU))
        first = await world.until_ready()
        [revision] = await world.all(INFERENCEREVISIONS)
        [pool] = revision["spec"]["pools"]
        assert pool["config"]["origins"]["kvCacheMemory"] == "ledger"
        assert "margin 16.0 GiB" in pool["ledger"]
        before = await objects(world)

        await world.apply(make_service(model=model("70B"), **GPU))
        refused = await world.until_ready(reason="DoesNotFit")
        ready = await world.condition()
        assert ready["status"] == "False"
        assert "weights 131.4 GiB" in ready["message"]
        assert "nearest that does: B200" in ready["message"]
        for kind in ("RevisionReady", "Progressing"):
            assert (await world.condition(type=kind))["reason"] == "DoesNotFit"
        assert (await world.condition(type="TrafficReady"))["status"] == "True"
        assert refused["status"]["traffic"] == first["status"]["traffic"]
        assert await objects(world) == before

        # An order goes back to what is kept, whatever the rest of the spec asks for.
        order = {"revision": revision["metadata"]["name"], "action": "Pin"}
        await world.apply(make_service(model=model("70B"), rollout={"order": order}, **GPU))
        await world.until_ready(reason="Pinned")

        await world.apply(make_service(model=model("8B"), **GPU))
        await world.until_ready()
        assert await objects(world) == before
        assert operator.errors == []
    assert operator.told.reasons().count("DoesNotFit") == 1
