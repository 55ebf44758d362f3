"""Objects of the user that look like ours, on the real API server: they are never touched."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paceline_crds.names import LABEL_SERVICE
from paceline_kube import CONFIGMAPS, DEPLOYMENTS

pytestmark = pytest.mark.cluster


def deployment(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "example.test/app:1"}]},
            },
        },
    }


async def test_what_only_wears_our_label_is_left_alone(world, make_service) -> None:
    labels = {LABEL_SERVICE: "chat"}
    helm = {**labels, "app.kubernetes.io/managed-by": "Helm"}
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "mine", "labels": labels},
        "data": {"a": "b"},
    }
    async with world.operator() as operator, world.kubelet():
        made = [
            (CONFIGMAPS, await world.client.create(CONFIGMAPS, config, world.namespace)),
            (DEPLOYMENTS, await world.client.create(DEPLOYMENTS, deployment("dep0", labels), world.namespace)),
            (DEPLOYMENTS, await world.client.create(DEPLOYMENTS, deployment("dep1", helm), world.namespace)),
        ]
        await world.apply(make_service())
        await world.until_ready()
        await world.apply(make_service(runtime={"maxNumSeqs": 3}))
        await world.until_ready()
        await asyncio.sleep(2)
        for resource, before in made:
            after = await world.client.get(resource, before["metadata"]["name"], world.namespace)
            assert after["metadata"]["uid"] == before["metadata"]["uid"]
            assert "ownerReferences" not in after["metadata"]
            assert after.get("data") == before.get("data")
            assert after.get("spec") == before.get("spec")
        assert operator.errors == []
