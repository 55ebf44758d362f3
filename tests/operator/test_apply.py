"""Applying around another manager's claims, and never for a service that is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from paceline_crds.service import InferenceService
from paceline_kube import DEPLOYMENTS, INFERENCEREVISIONS, INFERENCESERVICES
from paceline_kube.testing import FakeApiServer
from paceline_operator.apply import Applier, ServiceGone, project
from paceline_operator.observed import Observed
from paceline_operator.plan import ApplyDeployment, CreateRevision, Delete, child_name
from paceline_operator.render import Carried, render
from paceline_operator.written import Written

SERVICE = {
    "apiVersion": "paceline.io/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "chat", "namespace": "demo"},
    "spec": {"model": {"source": "package://m"}},
}
DESIRED = render(InferenceService.from_object(SERVICE), Carried(), "r:1")


class Told(list[str]):
    def event(self, about: Any, *, type: str, reason: str, message: str) -> None:
        self.append(reason)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


def applier(server: FakeApiServer, uid: str) -> Applier:
    written = Written(lambda: 0.0)
    observed = Observed("demo", "chat", uid, 1)
    return Applier(server.client(), Told(), written, SERVICE, observed, DESIRED)


@pytest.mark.parametrize(
    "action",
    [CreateRevision(DESIRED.revision), ApplyDeployment("chat-default-x", DESIRED.pools[0], 1, None)],
)
async def test_nothing_is_made_for_a_service_that_is_gone_or_another(server: FakeApiServer, action: Any) -> None:
    with pytest.raises(ServiceGone):
        await applier(server, "old").take(action)
    await server.client().create(INFERENCESERVICES, SERVICE, "demo")
    with pytest.raises(ServiceGone):
        await applier(server, "old").take(action)
    client = server.client()
    for kind in (INFERENCEREVISIONS, DEPLOYMENTS):
        assert (await client.list(kind, "demo")).items == []


async def test_deleting_what_is_gone_is_no_error(server: FakeApiServer) -> None:
    name = child_name("chat", DESIRED.pools[0])
    await applier(server, "u").take(Delete("deployment", name, "u", "1"))


@pytest.mark.parametrize(
    ("ours", "live", "expected"),
    [
        ({"a": 1, "b": {"c": 2}}, {"a": 9, "b": {"c": 8, "d": 7}, "e": 6}, {"a": 9, "b": {"c": 8}}),
        ({"a": 1, "gone": 2}, {"a": 9}, {"a": 9}),
        (
            {"containers": [{"name": "runtime", "image": "ours"}]},
            {"containers": [{"name": "sidecar", "image": "s"}, {"name": "runtime", "image": "theirs", "x": 1}]},
            {"containers": [{"name": "runtime", "image": "theirs"}]},
        ),
        ({"args": ["--config", "x"]}, {"args": ["--debug"]}, {"args": ["--debug"]}),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]},
            {"volumeMounts": [{"name": "v", "mountPath": "/b", "readOnly": True}]},
            {"volumeMounts": [{"name": "v", "mountPath": "/b"}]},
        ),
        ({"a": {"b": 1}}, {"a": None}, {"a": None}),
    ],
)
def test_our_fields_take_the_values_that_are_there(ours: Any, live: Any, expected: Any) -> None:
    assert project(ours, live) == expected
