"""What only a real API server can show: ownership of fields, strict validation, expiry, tokens, preconditions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from paceline_kube import (
    CONFIGMAPS,
    DEPLOYMENTS,
    LEASES,
    NAMESPACES,
    SERVICE_ACCOUNTS,
    AioKubeClient,
    AlreadyExists,
    Change,
    Conflict,
    Forbidden,
    Informer,
    Invalid,
    NotFound,
    Unauthorized,
    connect,
)
from paceline_local.cluster import Cluster

pytestmark = pytest.mark.cluster


@pytest.fixture
async def real(control_plane: Cluster) -> AsyncIterator[AioKubeClient]:
    async with connect(control_plane.kubeconfig) as client:
        yield client


@pytest.fixture
async def namespace(real: AioKubeClient) -> AsyncIterator[str]:
    name = f"kube-{os.urandom(3).hex()}"
    await real.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    await real.delete(NAMESPACES, name)


def config_map(namespace: str, name: str = "a", **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "data": data}


def deployment(namespace: str, **spec: Any) -> dict[str, Any]:
    labels = {"app": "x"}
    return {
        "metadata": {"name": "d", "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "example.invalid/x:1"}]},
            },
            **spec,
        },
    }


async def test_another_managers_field_is_a_conflict_that_names_it(real: AioKubeClient, namespace: str) -> None:
    await real.apply(DEPLOYMENTS, deployment(namespace, replicas=1), field_manager="first")
    with pytest.raises(Conflict) as caught:
        await real.apply(DEPLOYMENTS, deployment(namespace, replicas=2), field_manager="second")
    (cause,) = caught.value.causes
    assert cause["field"] == ".spec.replicas"
    assert '"first"' in cause["message"]
    forced = await real.apply(DEPLOYMENTS, deployment(namespace, replicas=2), field_manager="second", force=True)
    assert forced["spec"]["replicas"] == 2


async def test_an_unknown_field_is_refused_by_every_way_of_writing(real: AioKubeClient, namespace: str) -> None:
    bad = {**config_map(namespace), "dataa": {}}
    with pytest.raises(Invalid, match="dataa"):
        await real.create(CONFIGMAPS, bad)
    with pytest.raises(Invalid, match="dataa"):
        await real.apply(CONFIGMAPS, bad, field_manager="tests")
    made = await real.create(CONFIGMAPS, config_map(namespace))
    with pytest.raises(Invalid, match="dataa"):
        await real.patch(CONFIGMAPS, "a", {"dataa": {}}, namespace)
    with pytest.raises(Invalid, match="dataa"):
        await real.patch(CONFIGMAPS, "a", [{"op": "add", "path": "/dataa", "value": {}}], namespace, kind="json")
    with pytest.raises(Invalid, match="dataa"):
        await real.replace(CONFIGMAPS, {**made, "dataa": {}})


async def test_a_broken_rule_is_invalid_and_names_the_field(real: AioKubeClient, namespace: str) -> None:
    with pytest.raises(Invalid) as caught:
        await real.create(DEPLOYMENTS, deployment(namespace, replicas=-1))
    assert [cause["field"] for cause in caught.value.causes] == ["spec.replicas"]


async def test_a_dry_run_changes_nothing(real: AioKubeClient, namespace: str) -> None:
    await real.apply(CONFIGMAPS, config_map(namespace), field_manager="tests", dry_run=True)
    with pytest.raises(NotFound):
        await real.get(CONFIGMAPS, "a", namespace)


async def test_taken_names_stale_writes_and_wrong_preconditions(real: AioKubeClient, namespace: str) -> None:
    made = await real.create(CONFIGMAPS, config_map(namespace))
    with pytest.raises(AlreadyExists):
        await real.create(CONFIGMAPS, config_map(namespace))
    changed = await real.patch(CONFIGMAPS, "a", {"data": {"x": "1"}}, namespace)
    with pytest.raises(Conflict):
        await real.replace(CONFIGMAPS, {**made, "data": {"x": "2"}})
    with pytest.raises(Conflict):
        await real.delete(CONFIGMAPS, "a", namespace, uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(Conflict):
        await real.delete(CONFIGMAPS, "a", namespace, resource_version=made["metadata"]["resourceVersion"])
    uid, version = changed["metadata"]["uid"], changed["metadata"]["resourceVersion"]
    await real.delete(CONFIGMAPS, "a", namespace, uid=uid, resource_version=version)


async def test_lists_are_paged_and_complete(control_plane: Cluster, real: AioKubeClient, namespace: str) -> None:
    await asyncio.gather(*(real.create(CONFIGMAPS, config_map(namespace, f"c{i:02}")) for i in range(23)))
    paged = AioKubeClient(real._api, page_size=5)
    listed = await paged.list(CONFIGMAPS, namespace, field_selector="metadata.name!=kube-root-ca.crt")
    assert [item["metadata"]["name"] for item in listed.items] == [f"c{i:02}" for i in range(23)]
    assert {item["kind"] for item in listed.items} == {"ConfigMap"}


async def test_a_watch_tells_what_came_after_the_list_and_ends(real: AioKubeClient, namespace: str) -> None:
    listed = await real.list(CONFIGMAPS, namespace)
    await real.create(CONFIGMAPS, config_map(namespace))
    events = [
        event
        async for event in real.watch(
            CONFIGMAPS,
            namespace,
            field_selector="metadata.name=a",
            resource_version=listed.resource_version,
            timeout_seconds=3,
        )
    ]
    # The server sends a bookmark before it ends a watch if it gets round to it.
    assert [event.type for event in events if event.type != "BOOKMARK"] == ["ADDED"]
    versions = [int(event.resource_version) for event in events]
    assert versions == sorted(versions)


async def test_an_informer_follows_the_real_server(
    real: AioKubeClient, namespace: str, eventually: Callable[..., Any]
) -> None:
    changes: list[Change] = []
    await real.create(CONFIGMAPS, config_map(namespace, "old"))
    informer = Informer(
        real,
        CONFIGMAPS,
        namespace=namespace,
        field_selector="metadata.name!=kube-root-ca.crt",
        on_change=changes.append,
    )
    task = asyncio.create_task(informer.run())
    await asyncio.wait_for(informer.synced.wait(), 10)
    await real.create(CONFIGMAPS, config_map(namespace, "new"))
    await real.patch(CONFIGMAPS, "new", {"data": {"x": "1"}}, namespace)
    await real.delete(CONFIGMAPS, "old", namespace)
    await eventually(lambda: len(changes) == 4)
    assert [(change.type, change.key[1]) for change in changes] == [
        ("added", "old"),
        ("added", "new"),
        ("modified", "new"),
        ("deleted", "old"),
    ]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_token_of_a_service_account_and_of_nobody(
    control_plane: Cluster, real: AioKubeClient, namespace: str
) -> None:
    await real.create(SERVICE_ACCOUNTS, {"metadata": {"name": "someone", "namespace": namespace}})
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 600},
    }
    answer = await real.create(SERVICE_ACCOUNTS, request, namespace, name="someone", subresource="token")
    credentials = await real.credentials()
    configuration = Configuration(host=real.server, ssl_ca_cert=credentials.ca_file, ca_cert_data=credentials.ca_data)
    configuration.client_session_kwargs = {"trust_env": False}
    configuration.api_key["BearerToken"] = "Bearer " + answer["status"]["token"]
    bearer = AioKubeClient(ApiClient(configuration))
    try:
        with pytest.raises(Forbidden, match="system:serviceaccount"):
            await bearer.get(CONFIGMAPS, "a", namespace)
        configuration.api_key["BearerToken"] = "Bearer nonsense"
        with pytest.raises(Unauthorized):
            await bearer.get(CONFIGMAPS, "a", namespace)
    finally:
        await bearer.close()


async def test_certificates_are_checked(control_plane: Cluster, real: AioKubeClient) -> None:
    assert (await real.credentials()).verify_tls
    assert real.server.startswith("https://")


@pytest.mark.parametrize("versioned", [False, True])
async def test_what_was_made_anew_or_is_gone_is_told_as_a_conflict(
    real: AioKubeClient, namespace: str, versioned: bool
) -> None:
    seen = await real.apply(DEPLOYMENTS, deployment(namespace, replicas=1), field_manager="tests")
    names = ("uid", "resourceVersion") if versioned else ("uid",)
    body = deployment(namespace, replicas=2)
    body["metadata"] |= {name: seen["metadata"][name] for name in names}
    await real.delete(DEPLOYMENTS, "d", namespace, propagation="Background")
    with pytest.raises(Conflict):
        await real.apply(DEPLOYMENTS, body, field_manager="tests")
    await real.apply(DEPLOYMENTS, deployment(namespace, replicas=1), field_manager="tests")
    with pytest.raises(Conflict) as conflict:
        await real.apply(DEPLOYMENTS, body, field_manager="tests", force=True)
    assert not [cause for cause in conflict.value.causes if cause.get("reason") == "FieldManagerConflict"]
    assert (await real.get(DEPLOYMENTS, "d", namespace))["spec"]["replicas"] == 1


async def test_a_lease_that_was_deleted_is_not_made_by_renewing_it(real: AioKubeClient, namespace: str) -> None:
    lease = {"metadata": {"name": "l", "namespace": namespace}, "spec": {"holderIdentity": "a"}}
    held = await real.create(LEASES, lease)
    await real.delete(LEASES, "l", namespace)
    with pytest.raises(Conflict):
        await real.replace(LEASES, held)
