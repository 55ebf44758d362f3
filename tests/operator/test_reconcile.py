"""One pass against an API server in this process: what it hands over, what it tells, what it survives."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from paceline_kube import (
    CONFIGMAPS,
    DEPLOYMENTS,
    INFERENCEREVISIONS,
    INFERENCESERVICES,
    PODDISRUPTIONBUDGETS,
    Store,
    Unreachable,
)
from paceline_kube.testing import FakeApiServer
from paceline_operator.findings import Findings
from paceline_operator.reconcile import Reconciler
from paceline_operator.settings import Settings
from paceline_operator.stores import Caches, child_indexes, service_indexes
from paceline_operator.views import Views
from paceline_operator.written import Written

KINDS = {
    "services": INFERENCESERVICES,
    "revisions": INFERENCEREVISIONS,
    "deployments": DEPLOYMENTS,
    "configmaps": CONFIGMAPS,
    "budgets": PODDISRUPTIONBUDGETS,
}


class Told(list[tuple[str, str]]):
    def event(self, about: Any, *, type: str, reason: str, message: str) -> None:
        self.append((type, reason))


class Desk:
    """A reconciler whose caches are filled when a test says so: as late as watches may be."""

    def __init__(self, server: FakeApiServer) -> None:
        self.client = server.client()
        self.told = Told()
        self.keys: str | None = ""
        self.caches = Caches(
            services=Store(service_indexes()),
            revisions=Store(child_indexes()),
            deployments=Store(child_indexes()),
            configmaps=Store(child_indexes()),
            pods=Store(child_indexes()),
            budgets=Store(child_indexes()),
            routers=Store(),
        )
        self.restart()

    def restart(self, image: str = "r:1") -> None:
        """Another process, with caches as full as those of the one before."""
        self.caches = replace(self.caches, views=Views(), written=Written(time.monotonic))
        settings = Settings(runtime_image=image, namespace="paceline-system")
        self.reconciler = Reconciler(
            self.client, self.caches, self.told, lambda: 1000.0, settings, Findings(keys=lambda _: self.keys)
        )

    async def refresh(self, *only: str) -> None:
        for name in only or KINDS:
            getattr(self.caches, name).replace((await self.client.list(KINDS[name], "demo")).items)

    async def create(self, **spec: Any) -> None:
        body = {"metadata": {"name": "chat"}, "spec": {"model": {"source": "package://m"}, **spec}}
        await self.client.create(INFERENCESERVICES, body, "demo")
        await self.refresh("services")

    async def edit(self, **spec: Any) -> None:
        await self.client.patch(INFERENCESERVICES, "chat", {"spec": spec}, "demo")
        await self.refresh("services")

    async def reconcile(self) -> float | None:
        return await self.reconciler.reconcile("demo", "chat")

    async def service(self) -> Any:
        return await self.client.get(INFERENCESERVICES, "chat", "demo")

    async def status(self) -> Any:
        return (await self.service())["status"]


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
def desk(server: FakeApiServer) -> Desk:
    return Desk(server)


def writes(server: FakeApiServer) -> int:
    return sum(1 for request in server.requests if not request.startswith("GET "))


async def test_a_pass_on_caches_that_lag_repeats_nothing(server: FakeApiServer, desk: Desk) -> None:
    await desk.create()
    assert await desk.reconcile() is not None, "it looks again until the caches show its writes"
    before = writes(server)
    # Not one of the watches has told anything yet.
    for _ in range(3):
        await desk.reconcile()
    assert writes(server) == before
    assert (await desk.status())["traffic"]["generation"] == 1
    await desk.refresh()
    assert await desk.reconcile() is None
    assert writes(server) == before


async def test_a_leader_that_was_held_up_overwrites_no_status_that_was_told_since(desk: Desk) -> None:
    await desk.create()
    former, _ = desk.reconciler, desk.restart()
    await desk.reconcile()
    told = await desk.status()
    # It judges the service as its own caches have it: before the other leader's first word.
    assert await former.reconcile("demo", "chat") == pytest.approx(1.0), "it looks again"
    assert await desk.status() == told
    await desk.refresh()
    await desk.client.patch(INFERENCESERVICES, "chat", {"metadata": {"labels": {"a": "b"}}}, "demo")
    await desk.client.patch(INFERENCESERVICES, "chat", {"status": {"readyReplicas": 9}}, "demo", subresource="status")
    assert await former.reconcile("demo", "chat") is None, "nothing to tell, as it knows the world"
    await desk.refresh("services")
    await former.reconcile("demo", "chat")
    assert (await desk.status())["readyReplicas"] == 0


async def test_a_service_that_is_unknown_or_going_is_left_alone(server: FakeApiServer, desk: Desk) -> None:
    assert await desk.reconcile() is None
    await desk.create()
    [service] = desk.caches.services.list()
    going = {**service, "metadata": {**service["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    going["metadata"]["resourceVersion"] = "999999"
    desk.caches.services.put(going)
    before = writes(server)
    assert await desk.reconcile() is None
    assert writes(server) == before


async def test_a_service_deleted_a_moment_ago_gets_no_children(desk: Desk) -> None:
    await desk.create()
    await desk.client.delete(INFERENCESERVICES, "chat", "demo")
    assert await desk.reconcile() is None
    for kind in (INFERENCEREVISIONS, DEPLOYMENTS, CONFIGMAPS):
        assert (await desk.client.list(kind, "demo")).items == []


async def test_a_service_made_anew_takes_nothing_over_from_the_former(desk: Desk) -> None:
    """Its children are foreign until the garbage collector is through; its image is not carried along either."""
    await desk.create()
    await desk.reconcile()
    await desk.client.delete(INFERENCESERVICES, "chat", "demo")
    desk.restart(image="r:2")
    await desk.create(runtime={"maxNumSeqs": 8})
    await desk.refresh()
    await desk.reconcile()
    revisions = (await desk.client.list(INFERENCEREVISIONS, "demo")).items
    assert sorted(r["spec"]["pools"][0]["image"] for r in revisions) == ["r:1", "r:2"]
    assert (await desk.status())["traffic"]["generation"] == 1


async def test_an_operator_that_ends_after_any_write_is_followed_by_one_that_finishes(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass is cut after its first, second, … write; the next process ends where an undisturbed one does."""

    async def run(cut_after: int | None) -> Any:
        async with FakeApiServer() as fresh:
            desk = Desk(fresh)
            await desk.create(pools=[{"name": "long"}])
            cut(desk, cut_after)
            with nullcontext() if cut_after is None else pytest.raises(Unreachable):
                await desk.reconcile()
            desk.client = fresh.client()
            desk.restart()
            for _ in range(3):
                await desk.refresh()
                await desk.reconcile()
            status = await desk.status()
            names = [
                sorted(o["metadata"]["name"] for o in (await desk.client.list(kind, "demo")).items)
                for kind in (INFERENCEREVISIONS, DEPLOYMENTS, CONFIGMAPS)
            ]
            return names, status["traffic"], [(c["type"], c["status"], c["reason"]) for c in status["conditions"]]

    def cut(desk: Desk, after: int | None) -> None:
        left = [after]
        for name in ("create", "apply", "patch"):
            real: Callable[..., Any] = getattr(desk.client, name)

            async def limited(*args: Any, real: Callable[..., Any] = real, **kwargs: Any) -> Any:
                if left[0] is not None:
                    if left[0] == 0:
                        raise Unreachable("the process was killed")
                    left[0] -= 1
                return await real(*args, **kwargs)

            monkeypatch.setattr(desk.client, name, limited)

    undisturbed = await run(None)
    for writes_ in range(7):
        assert await run(writes_) == undisturbed


async def test_events_tell_what_went_wrong_once(desk: Desk) -> None:
    await desk.create(runtime={"maxBatchedTokens": 64}, pools=[{"name": "x", "runtime": {"maxNumSeqs": 65}}])
    for _ in range(3):
        await desk.reconcile()
        await desk.refresh()
    assert desk.told == [("Warning", "InvalidSpec")]
    assert (await desk.status())["conditions"][0]["message"].startswith("pool x: maxNumSeqs 65 is more than")


async def test_a_status_field_that_no_longer_applies_is_taken_away(desk: Desk) -> None:
    await desk.create()
    await desk.reconcile()
    assert "pools" in await desk.status()
    await desk.refresh()
    await desk.edit(runtime={"maxBatchedTokens": 64}, pools=[{"name": "x", "runtime": {"maxNumSeqs": 65}}])
    await desk.reconcile()
    assert "pools" not in await desk.status()


async def test_a_shared_served_name_is_told_to_both_until_it_is_over(desk: Desk) -> None:
    named = {"model": {"source": "package://m", "servedName": "acme/m"}}
    # Of two that were made in the same second the lower uid counts as older.
    metadata = {"name": "rival", "namespace": "demo", "uid": "0", "resourceVersion": "1"}
    rival = {"metadata": metadata, "spec": named}

    async def told() -> Any:
        await desk.refresh()
        desk.caches.services.put(rival)
        await desk.reconcile()
        return {c["type"]: c for c in (await desk.status())["conditions"]}.get("ModelNameConflict")

    await desk.create(**named)
    taken = await told()
    assert (taken["status"], taken["reason"]) == ("True", "NameTaken")
    assert "kept by demo/rival" in taken["message"]
    assert 'model "demo/chat" or the path /demo/chat/v1' in taken["message"]
    assert await told() == taken
    assert desk.told.count(("Warning", "ModelNameConflict")) == 1
    rival = {"metadata": {**metadata, "uid": "z", "resourceVersion": "999999"}, "spec": named}
    assert (await told())["reason"] == "NameKept"
    assert desk.told.count(("Warning", "ModelNameConflict")) == 2
    await desk.edit(model={"servedName": "acme/other"})
    assert await told() is None


async def test_a_spec_that_cannot_be_rendered_is_told_of_a_shared_name_too(desk: Desk) -> None:
    await desk.create(runtime={"maxBatchedTokens": 64}, pools=[{"name": "x", "runtime": {"maxNumSeqs": 65}}])
    [service] = desk.caches.services.list()
    other = {**service["metadata"], "namespace": "other", "uid": "u"}
    desk.caches.services.put({"metadata": other, "spec": {"model": {"source": "package://m"}}})
    await desk.reconcile()
    reasons = [c["reason"] for c in (await desk.status())["conditions"] if c["type"] in ("Ready", "ModelNameConflict")]
    assert reasons[0] == "InvalidSpec"
    assert reasons[1] in ("NameKept", "NameTaken")


async def test_objects_of_others_are_not_touched_whatever_their_labels_and_names(desk: Desk) -> None:
    await desk.create()
    await desk.reconcile()
    [child] = (await desk.client.list(CONFIGMAPS, "demo")).items
    name = child["metadata"]["name"]
    for kind in (CONFIGMAPS, DEPLOYMENTS, INFERENCEREVISIONS):
        for obj in (await desk.client.list(kind, "demo")).items:
            await desk.client.delete(kind, obj["metadata"]["name"], "demo")
    desk.restart()
    labels = {"paceline.io/service": "chat"}
    await desk.client.create(CONFIGMAPS, {"metadata": {"name": "mine", "labels": labels}, "data": {"a": "b"}}, "demo")
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "mine"}}, "template": {}}
    await desk.client.create(DEPLOYMENTS, {"metadata": {"name": "mine", "labels": labels}, "spec": spec}, "demo")
    await desk.client.create(CONFIGMAPS, {"metadata": {"name": name}, "data": {"a": "b"}}, "demo")
    before = [await desk.client.get(CONFIGMAPS, of, "demo") for of in ("mine", name)]
    for _ in range(3):
        # The informers show what carries the label only.
        await desk.refresh()
        labelled = [o for o in desk.caches.configmaps.list() if o["metadata"].get("labels")]
        desk.caches.configmaps.replace(labelled)
        await desk.reconcile()
    assert [await desk.client.get(CONFIGMAPS, of, "demo") for of in ("mine", name)] == before
    [deployment] = (await desk.client.list(DEPLOYMENTS, "demo")).items
    assert deployment["spec"] == spec
    ready = (await desk.status())["conditions"][0]
    assert ready["reason"] == "ResourceConflict"
    assert f"ConfigMap {name} is there already" in ready["message"]
    await desk.client.delete(CONFIGMAPS, name, "demo")
    await desk.refresh()
    await desk.reconcile()
    assert {o["metadata"]["name"] for o in (await desk.client.list(CONFIGMAPS, "demo")).items} == {"mine", name}


async def test_keys_that_no_router_can_check_are_told_and_hold_over_a_restart_until_the_routers_were_asked(
    desk: Desk,
) -> None:
    async def traffic() -> Any:
        await desk.reconcile()
        await desk.refresh()
        return next(c for c in (await desk.status())["conditions"] if c["type"] == "TrafficReady")

    desk.keys = "the Secret demo/chat-keys does not exist"
    await desk.create(tenancy={"identity": {"from": "APIKey", "secretName": "chat-keys"}})
    assert (await traffic())["reason"] != "KeysUnreadable", "without a replica that is what is told"
    [deployment] = (await desk.client.list(DEPLOYMENTS, "demo")).items
    metadata = {"name": "p", "namespace": "demo", "uid": "p", "resourceVersion": "1"}
    metadata["labels"] = deployment["spec"]["template"]["metadata"]["labels"]
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    desk.caches.pods.put({"metadata": metadata, "status": {"phase": "Running", "conditions": [ready]}})
    await traffic()
    told = await traffic()
    assert (told["status"], told["reason"], told["message"]) == ("False", "KeysUnreadable", desk.keys)
    desk.restart()
    desk.keys = None
    assert await traffic() == told
    assert desk.told.count(("Warning", "KeysUnreadable")) == 1
    desk.keys = ""
    assert (await traffic())["reason"] == "Serving"


@pytest.mark.parametrize("spec", ["hello", [1, 2], 5, None, {"model": {"source": "package://m"}, "pools": {"a": 1}}])
async def test_a_spec_of_another_form_is_told_as_one_that_cannot_be_read(
    server: FakeApiServer, desk: Desk, spec: Any
) -> None:
    """As a CRD of before, or one that anybody loosened, may have let in."""
    await desk.create()
    await server.put("/apis/paceline.io/v1alpha1/inferenceservices", {**await desk.service(), "spec": spec})
    await desk.refresh("services")
    await desk.reconcile()
    assert (await desk.status())["conditions"][0]["reason"] == "InvalidSpec"


async def test_nothing_is_made_of_a_status_whoever_wrote_it(desk: Desk) -> None:
    await desk.create()
    odd = {"conditions": [{"type": "Ready", "status": "Perhaps"}, {"odd": 1}], "traffic": "no", "replicas": 7}
    await desk.client.patch(INFERENCESERVICES, "chat", {"status": odd}, "demo", subresource="status")
    await desk.refresh()
    await desk.reconcile()
    status = await desk.status()
    assert status["conditions"][0]["reason"] == "Starting"
    assert status["replicas"] == 0
