import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import certifi
import pytest
from aiohttp import web

from paceline_kube import (
    CONFIGMAPS,
    INFERENCESERVICES,
    PODS,
    AioKubeClient,
    AlreadyExists,
    ApiError,
    Conflict,
    Gone,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    connect,
)
from paceline_kube.testing import FakeApiServer, Refusal

Handler = Callable[[web.Request], Awaitable[web.Response]]


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "demo"}, "data": data}


async def test_objects_are_created_read_changed_and_deleted(client: AioKubeClient) -> None:
    made = await client.create(CONFIGMAPS, config_map("a", x="1"))
    assert (made["apiVersion"], made["kind"]) == ("v1", "ConfigMap")
    patched = await client.patch(CONFIGMAPS, "a", {"data": {"y": "2"}}, "demo")
    assert patched["data"] == {"x": "1", "y": "2"}
    assert await client.get(CONFIGMAPS, "a", "demo") == patched
    await client.delete(CONFIGMAPS, "a", "demo", uid=patched["metadata"]["uid"])
    with pytest.raises(NotFound):
        await client.get(CONFIGMAPS, "a", "demo")


async def test_a_status_is_written_though_the_crd_lacks_a_field_of_it(
    server: FakeApiServer, client: AioKubeClient
) -> None:
    body = {"metadata": {"name": "chat", "namespace": "demo"}, "spec": {"replicas": 1}}
    await client.create(INFERENCESERVICES, body)
    await client.patch(INFERENCESERVICES, "chat", {"status": {"replicas": 1}}, "demo", subresource="status")
    assert "fieldValidation=Ignore" in server.requests[-1]


async def test_every_write_of_an_object_asks_for_strict_validation(
    server: FakeApiServer, client: AioKubeClient
) -> None:
    await client.create(CONFIGMAPS, config_map("a"))
    await client.apply(CONFIGMAPS, config_map("a", x="1"), field_manager="tests")
    changed = await client.patch(CONFIGMAPS, "a", {"data": {"x": "2"}}, "demo")
    await client.replace(CONFIGMAPS, {**changed, "data": {}})
    assert len(server.requests) == 4
    assert all("fieldValidation=Strict" in request for request in server.requests)


async def test_apply_names_its_manager_and_forces_only_on_demand(server: FakeApiServer, client: AioKubeClient) -> None:
    await client.apply(CONFIGMAPS, config_map("a"), field_manager="tests", dry_run=True)
    await client.apply(CONFIGMAPS, config_map("a"), field_manager="tests", force=True)
    assert "fieldManager=tests" in server.requests[0]
    assert "force=false" in server.requests[0]
    assert "dryRun=All" in server.requests[0]
    assert "force=true" in server.requests[1]
    assert "dryRun" not in server.requests[1]


async def test_a_taken_name_is_not_a_conflict(client: AioKubeClient) -> None:
    await client.create(CONFIGMAPS, config_map("a"))
    with pytest.raises(AlreadyExists):
        await client.create(CONFIGMAPS, config_map("a"))


async def test_a_stale_write_is_a_conflict(client: AioKubeClient) -> None:
    made = await client.create(CONFIGMAPS, config_map("a"))
    await client.patch(CONFIGMAPS, "a", {"data": {"x": "1"}}, "demo")
    with pytest.raises(Conflict):
        await client.replace(CONFIGMAPS, made)


@pytest.mark.parametrize("precondition", [{"uid": "another"}, {"resource_version": "1"}])
async def test_a_delete_hits_only_the_object_it_means(client: AioKubeClient, precondition: dict[str, str]) -> None:
    await client.create(CONFIGMAPS, config_map("a"))
    with pytest.raises(Conflict):
        await client.delete(CONFIGMAPS, "a", "demo", **precondition)
    assert await client.get(CONFIGMAPS, "a", "demo")


async def test_status_is_written_without_touching_the_spec(client: AioKubeClient) -> None:
    body = {"metadata": {"name": "chat", "namespace": "demo"}, "spec": {"replicas": 1}}
    await client.create(INFERENCESERVICES, body)
    status = {"metadata": body["metadata"], "spec": {"replicas": 9}, "status": {"replicas": 1}}
    after = await client.apply(INFERENCESERVICES, status, field_manager="tests", subresource="status")
    assert (after["spec"], after["status"]) == ({"replicas": 1}, {"replicas": 1})


async def test_a_list_is_fetched_page_by_page_and_items_say_their_kind(server: FakeApiServer) -> None:
    client = server.client(page_size=3)
    for i in range(8):
        await client.create(CONFIGMAPS, config_map(f"c{i}"))
    server.requests.clear()
    listed = await client.list(CONFIGMAPS, "demo")
    assert [item["metadata"]["name"] for item in listed.items] == [f"c{i}" for i in range(8)]
    assert {(item["apiVersion"], item["kind"]) for item in listed.items} == {("v1", "ConfigMap")}
    assert len(server.requests) == 3
    assert listed.resource_version == str(server.version)


async def test_a_list_whose_pages_expire_is_read_again_in_one(server: FakeApiServer) -> None:
    client = server.client(page_size=2)
    for i in range(5):
        await client.create(CONFIGMAPS, config_map(f"c{i}"))
    server.refuse(Refusal(410, "Expired", "continue token too old"), path="configmaps", method="GET")
    listed = await client.list(CONFIGMAPS, "demo")
    assert len(listed.items) == 5


async def test_selectors_reach_the_server(server: FakeApiServer, client: AioKubeClient) -> None:
    await server.put("/api/v1/pods", {"metadata": {"name": "a", "namespace": "x", "labels": {"app": "1"}}})
    await server.put("/api/v1/pods", {"metadata": {"name": "b", "namespace": "x"}})
    listed = await client.list(PODS, label_selector="app=1", field_selector="spec.nodeName=n1")
    assert [item["metadata"]["name"] for item in listed.items] == ["a"]
    assert "fieldSelector=spec.nodeName%3Dn1" in server.requests[-1]


async def test_too_many_requests_carries_the_wait(server: FakeApiServer, client: AioKubeClient) -> None:
    server.refuse(Refusal(429, "TooManyRequests", "slow down", {"Retry-After": "4"}))
    with pytest.raises(TooManyRequests) as caught:
        await client.get(PODS, "p", "demo")
    assert caught.value.retry_after == 4.0


async def test_a_closed_port_is_unreachable() -> None:
    async with FakeApiServer() as server:
        client = server.client()
    with pytest.raises(Unreachable):
        await client.get(PODS, "p", "demo")
    await client.close()


async def test_a_slow_answer_is_given_up_after_the_timeout(server: FakeApiServer) -> None:
    client = server.client(timeout=0.1)
    server.delay(lambda _: 2.0)
    with pytest.raises(Unreachable):
        await client.get(PODS, "p", "demo")


async def test_a_watch_tells_changes_bookmarks_and_its_end(server: FakeApiServer, client: AioKubeClient) -> None:
    since = str(server.version)
    await server.put("/api/v1/pods", {"metadata": {"name": "a", "namespace": "x"}})
    await server.put("/api/v1/pods", {"metadata": {"name": "a", "namespace": "x"}, "spec": {"nodeName": "n"}})
    await server.remove("/api/v1/pods", "x", "a")
    watch = client.watch(PODS, resource_version=since, timeout_seconds=1)
    events = [event async for event in watch]
    assert [event.type for event in events[:4]] == ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    assert events[-1].resource_version == str(server.version)


async def test_an_expired_watch_is_gone_in_the_stream_and_as_a_status(
    server: FakeApiServer, client: AioKubeClient
) -> None:
    await server.forget_history()
    with pytest.raises(Gone):
        await anext(client.watch(PODS, resource_version="1", timeout_seconds=1))
    server.refuse(Refusal(410, "Expired"), watch=True)
    with pytest.raises(Gone):
        await anext(client.watch(PODS, resource_version=str(server.version), timeout_seconds=1))


async def test_a_silent_watch_is_given_up_after_the_inactivity_time(
    server: FakeApiServer, client: AioKubeClient
) -> None:
    server.silence()
    watch = client.watch(PODS, resource_version=str(server.version), timeout_seconds=60, inactivity_seconds=0.1)
    with pytest.raises(Unreachable):
        await anext(watch)


async def test_a_cut_watch_is_unreachable_and_closing_one_frees_its_connection(
    server: FakeApiServer, client: AioKubeClient
) -> None:
    watch = client.watch(PODS, resource_version=str(server.version), timeout_seconds=60)
    await anext(watch)
    await server.cut()
    with pytest.raises(Unreachable):
        [event async for event in watch]
    async with aclosing(client.watch(PODS, resource_version=str(server.version), timeout_seconds=60)) as again:
        await anext(again)
    async with asyncio.timeout(5):
        while server._watches:
            await asyncio.sleep(0.01)


async def test_a_json_patch_must_be_a_list_and_the_others_must_not(client: AioKubeClient) -> None:
    with pytest.raises(ValueError, match="list of operations"):
        await client.patch(PODS, "p", {"a": 1}, "demo", kind="json")
    with pytest.raises(ValueError, match="list of operations"):
        await client.patch(PODS, "p", [], "demo")


async def test_a_body_without_a_name_or_namespace_says_what_is_missing(client: AioKubeClient) -> None:
    with pytest.raises(ValueError, match=r"metadata\.name"):
        await client.apply(PODS, {"metadata": {"namespace": "demo"}}, field_manager="tests")
    with pytest.raises(ValueError, match="namespace"):
        await client.create(PODS, {"metadata": {"name": "p"}})


async def test_a_page_that_is_no_json_is_an_error(
    serve: Callable[[Handler], Awaitable[str]], client: AioKubeClient
) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<html>log in first</html>")

    client._api.configuration.host = await serve(page)
    with pytest.raises(ApiError, match="did not answer with a JSON object"):
        await client.get(PODS, "p", "demo")


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[str]]]:
    """Serve one handler for every path, and give its address."""
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> str:
        app = web.Application()
        app.router.add_get("/{tail:.*}", handler)
        runner = web.AppRunner(app)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


@dataclass
class Guard:
    """An API server that wants one bearer token, and notes what it was given."""

    token: str = "first"
    url: str = ""
    seen: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.seen.append(request.headers.get("Authorization", ""))
        if self.seen[-1] != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "code": 401, "reason": "Unauthorized"}, status=401)
        return web.json_response({"kind": "Pod", "metadata": {"name": "p"}})


@pytest.fixture
async def guarded(serve: Callable[[Handler], Awaitable[str]]) -> Guard:
    guard = Guard()
    guard.url = await serve(guard.handle)
    return guard


def write_service_account(directory: Path, token: str) -> None:
    (directory / "token").write_text(token + "\n")
    (directory / "ca.crt").write_text(Path(certifi.where()).read_text())
    (directory / "namespace").write_text("demo")


async def test_a_rotated_service_account_token_is_read_again(
    guarded: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_service_account(tmp_path, "first")
    monkeypatch.setenv("PACELINE_SERVICEACCOUNT_DIR", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    async with connect() as client:
        assert isinstance(client, AioKubeClient)
        assert client.server == "https://127.0.0.1:1"
        client._api.configuration.host = guarded.url
        await client.get(PODS, "p", "demo")
        guarded.token = "second"
        with pytest.raises(Unauthorized):
            await client.get(PODS, "p", "demo")
        (tmp_path / "token").write_text("second")
        await client.get(PODS, "p", "demo")
    assert guarded.seen[-2:] == ["Bearer first", "Bearer second"]


async def test_an_explicit_kubeconfig_wins_over_the_service_account(
    guarded: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_service_account(tmp_path, "unused")
    monkeypatch.setenv("PACELINE_SERVICEACCOUNT_DIR", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    config = tmp_path / "kubeconfig"
    config.write_text(
        f"""
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "{guarded.url}"}}}}]
users: [{{name: u, user: {{token: first}}}}]
"""
    )
    async with connect(config) as client:
        assert (await client.get(PODS, "p", "demo"))["metadata"]["name"] == "p"


async def test_without_any_configuration_the_error_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="set KUBECONFIG"):
        async with connect():
            pass
