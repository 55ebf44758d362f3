"""What the API server, or admission in its name, does not accept is told in the status, whatever its code."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from paceline_kube import DEPLOYMENTS, ApiError, NotFound, Store
from paceline_kube import INFERENCESERVICES as SERVICES
from paceline_kube.errors import error_from_status
from paceline_kube.testing import FakeApiServer, Refusal
from paceline_operator.acting import LASTING_SECONDS
from paceline_operator.failures import is_refusal, refusal
from paceline_operator.reconcile import REFUSED_RETRY_SECONDS, Reconciler
from paceline_operator.settings import Settings
from paceline_operator.stores import Caches, child_indexes, service_indexes

BY_A_WEBHOOK = 'admission webhook "no.example.test" denied the request: not today'
UNREACHABLE = 'Internal error occurred: failed calling webhook "down.example.test": connection refused'
BY_A_POLICY = "deployments \"d\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"


class Told(list[tuple[str, str]]):
    def event(self, about: Any, *, type: str, reason: str, message: str) -> None:
        self.append((reason, message))


class Desk:
    """A reconciler of one service; the caches hold nothing but the service."""

    def __init__(self, server: FakeApiServer) -> None:
        self.client = server.client()
        self.told = Told()
        stores = {
            name: Store(child_indexes()) for name in ("revisions", "deployments", "configmaps", "pods", "budgets")
        }
        self.caches = Caches(services=Store(service_indexes()), routers=Store(), **stores)
        settings = Settings(runtime_image="r:1", namespace="paceline-system")
        self.reconciler = Reconciler(self.client, self.caches, self.told, lambda: 1000.0, settings)

    async def create(self) -> None:
        body = {"metadata": {"name": "chat"}, "spec": {"model": {"source": "package://m"}}}
        made = await self.client.create(SERVICES, body, "demo")
        self.caches.services.put(made)

    async def ready(self) -> dict[str, Any]:
        service = await self.client.get(SERVICES, "chat", "demo")
        conditions = (service.get("status") or {}).get("conditions") or [{}]
        return dict(conditions[0])


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def desk(server: FakeApiServer) -> Desk:
    desk = Desk(server)
    await desk.create()
    return desk


@pytest.mark.parametrize("path", ["inferencerevisions", "configmaps", "deployments"])
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, BY_A_WEBHOOK),
        (404, BY_A_WEBHOOK),
        (409, BY_A_WEBHOOK),
        (410, BY_A_WEBHOOK),
        (429, BY_A_WEBHOOK),
        (503, BY_A_WEBHOOK),
        (500, UNREACHABLE),
        (413, BY_A_POLICY),
        (413, "Request entity too large: limit is 3145728"),
        (500, "etcdserver: request is too large"),
        (500, "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2 vs. 1)"),
    ],
)
async def test_what_is_not_accepted_is_told_and_not_tried_again_at_once(
    server: FakeApiServer, desk: Desk, path: str, status: int, words: str
) -> None:
    server.refuse(Refusal(status, "", words, times=99), method="POST", path=path)
    server.refuse(Refusal(status, "", words, times=99), method="PATCH", path=path)
    again = await desk.reconciler.reconcile("demo", "chat")
    ready = await desk.ready()
    assert (ready["status"], ready["reason"]) == ("False", "PodRefused")
    assert words in ready["message"]
    assert again is not None
    assert again >= 10, "no busy loop"


async def test_what_was_refused_is_tried_again_though_nothing_changes(server: FakeApiServer, desk: Desk) -> None:
    """A quota that is raised, a policy that is lifted: nothing tells the operator."""
    server.refuse(Refusal(403, "Forbidden", BY_A_POLICY, times=2), method="POST", path="inferencerevisions")
    await desk.reconciler.reconcile("demo", "chat")
    desk.caches.services.put(await desk.client.get(SERVICES, "chat", "demo"))
    assert await desk.reconciler.reconcile("demo", "chat") == REFUSED_RETRY_SECONDS
    await desk.reconciler.reconcile("demo", "chat")
    assert (await desk.ready())["reason"] == "Starting"


async def test_an_error_that_mostly_passes_is_told_once_it_lasts(
    server: FakeApiServer, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.refuse(Refusal(500, "InternalError", "the disk is on fire", times=99), method="POST", path="configmaps")
    with pytest.raises(ApiError):
        await desk.reconciler.reconcile("demo", "chat")
    assert await desk.ready() == {}
    later = time.monotonic() + LASTING_SECONDS + 1
    monkeypatch.setattr("paceline_operator.acting.time.monotonic", lambda: later)
    await desk.reconciler.reconcile("demo", "chat")
    assert "the disk is on fire" in (await desk.ready())["message"]


async def test_a_child_that_another_owner_took_is_told_once_it_stays_so(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.reconciler.reconcile("demo", "chat")
    [made] = (await desk.client.list(DEPLOYMENTS, "demo")).items
    made["metadata"] |= {"resourceVersion": "999999", "ownerReferences": [{"uid": "theirs", "controller": True}]}
    desk.caches.deployments.put(made)
    await desk.reconciler.reconcile("demo", "chat")
    assert (await desk.ready())["reason"] == "Starting", "it may be a child of a former service, which goes by itself"
    later = time.monotonic() + LASTING_SECONDS + 1
    monkeypatch.setattr("paceline_operator.acting.time.monotonic", lambda: later)
    await desk.reconciler.reconcile("demo", "chat")
    ready = await desk.ready()
    assert ready["reason"] == "ResourceConflict"
    assert "belongs to another owner and has to go first" in ready["message"]
    assert "ResourceConflict" in {reason for reason, _ in desk.told}


async def test_a_child_that_was_deleted_meanwhile_is_no_error_and_a_kind_that_is_not_served_is_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, Any] = {"message": 'inferencerevisions "r" not found', "details": {"name": "r"}}

    async def gone(*_: Any, **__: Any) -> Any:
        raise error_from_status(404, said)

    monkeypatch.setattr(desk.client, "patch", gone)
    again = await desk.reconciler.reconcile("demo", "chat")
    assert again is not None
    assert again < 1
    said = {"message": "404 page not found"}
    with pytest.raises(NotFound):
        await desk.reconciler.reconcile("demo", "chat")


async def test_a_budget_that_is_refused_is_told_by_an_event_and_nothing_waits_for_it(
    server: FakeApiServer, desk: Desk
) -> None:
    words = "exceeded quota: q, requested: count/poddisruptionbudgets.policy=1, used: 0, limited: 0"
    server.refuse(Refusal(403, "Forbidden", words, times=99), method="POST", path="poddisruptionbudgets")
    await desk.reconciler.reconcile("demo", "chat")
    assert (await desk.ready())["reason"] == "Starting"
    [message] = [message for reason, message in desk.told if reason == "TidyingRefused"]
    assert words in message


def test_a_conflict_or_a_busy_server_is_no_refusal() -> None:
    for status, words in ((409, "the object has been modified"), (429, "too many requests"), (500, "leader changed")):
        assert not is_refusal(error_from_status(status, {"message": words}))


def test_a_right_that_is_missing_and_an_object_that_is_too_large_are_told_with_what_to_do() -> None:
    missing = refusal("create revision r", 'revisions is forbidden: User "system:serviceaccount:x:y" cannot create')
    assert missing.sentence.endswith("give the operator this right (the chart's ClusterRole has it)")
    assert "write less under spec.pod" in refusal("create revision r", "Request entity too large: limit is 1").sentence
