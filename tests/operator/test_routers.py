"""Asking routers over HTTP, and the Secret that lets one ask."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from paceline_kube import INFERENCESERVICES, PODS, SECRETS
from paceline_kube.testing import FakeApiServer
from paceline_operator.observed import RouterView
from paceline_operator.routers import ADMIN_SECRET, Routers, ensure_admin_secret, view_of

NAMESPACE = "paceline-system"


def secret(token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": ADMIN_SECRET, "namespace": NAMESPACE},
        "data": {"token": base64.b64encode(token.encode()).decode()},
    }


def pod(name: str = "router-0", *, ready: bool = True, address: str = "127.0.0.1", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, **metadata},
        "status": {"podIP": address, "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Any]]:
    """Start an HTTP server that answers as told; gives its port."""
    runners: list[web.AppRunner] = []

    async def start(handler: Any) -> int:
        app = web.Application()
        app.router.add_get("/v1/paceline/routes", handler)
        runner = web.AppRunner(app)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    yield start
    for runner in runners:
        await runner.cleanup()


async def ask(client: Any, port: int, *pods: Any) -> tuple[RouterView, ...]:
    routers = Routers(client, NAMESPACE, port)
    try:
        return await routers.ask(pods or [pod()], "demo", "chat")
    finally:
        await routers.close()


def routes(generation: Any = 3, **answer: Any) -> dict[str, Any]:
    return {"synced": True, "services": {"demo/chat": {"generation": generation, "replicas": []}}, **answer}


async def test_the_secret_is_made_once_and_then_read(server: FakeApiServer) -> None:
    client = server.client()
    token = await ensure_admin_secret(client, NAMESPACE)
    assert len(token) >= 40
    assert await ensure_admin_secret(client, NAMESPACE) == token
    stored = await client.get(SECRETS, ADMIN_SECRET, NAMESPACE)
    assert base64.b64decode(stored["data"]["token"]).decode() == token


async def test_a_router_is_asked_with_the_token_and_tells_its_generation(server: FakeApiServer, serve: Any) -> None:
    client = server.client()
    await client.create(SECRETS, secret("t1"), NAMESPACE)

    async def handler(request: web.Request) -> web.Response:
        if request.headers["Authorization"] != "Bearer t1":
            return web.Response(status=401)
        return web.json_response(routes())

    assert await ask(client, await serve(handler)) == (RouterView("router-0", 3),)


async def test_a_token_that_was_made_anew_is_read_again(server: FakeApiServer, serve: Any) -> None:
    client = server.client()
    await client.create(SECRETS, secret("old"), NAMESPACE)
    accepted = "old"

    async def handler(request: web.Request) -> web.Response:
        good = request.headers["Authorization"] == f"Bearer {accepted}"
        return web.json_response(routes()) if good else web.Response(status=401)

    routers = Routers(client, NAMESPACE, await serve(handler))
    assert await routers.ask([pod()], "demo", "chat") == (RouterView("router-0", 3),)
    await client.delete(SECRETS, ADMIN_SECRET, NAMESPACE)
    await client.create(SECRETS, secret("new"), NAMESPACE)
    accepted = "new"
    assert await routers.ask([pod()], "demo", "chat") == (RouterView("router-0", 3),)
    accepted = "something else"
    assert await routers.ask([pod()], "demo", "chat") == (RouterView("router-0", None, "it answered 401"),)
    await routers.close()


async def test_only_ready_routers_are_asked(server: FakeApiServer, serve: Any) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(routes())

    pods = (
        pod("b"),
        pod("a"),
        pod("starting", ready=False),
        pod("stopping", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("nowhere", address=""),
    )
    assert await ask(server.client(), await serve(handler), *pods) == (
        RouterView("a", 3),
        RouterView("b", 3),
        RouterView("nowhere", None, "it has no address"),
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (web.Response(status=404), "it answered 404"),
        (web.json_response([]), "its answer is no object"),
        (web.json_response({"synced": False, "services": {}}), "it has not read the cluster yet"),
        (web.Response(text="<html>"), "unexpected mimetype"),
    ],
)
async def test_a_router_that_cannot_be_asked_says_why(
    server: FakeApiServer, serve: Any, answer: web.Response, words: str
) -> None:
    async def handler(request: web.Request) -> web.Response:
        return answer

    [view] = await ask(server.client(), await serve(handler))
    assert view.generation is None
    assert words in view.error


@pytest.mark.parametrize(
    "body", ['{"synced": NaN}', '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", '{"a": "' + "x" * (17 << 20) + '"}']
)
async def test_an_answer_that_is_no_json_or_has_no_end_is_none(server: FakeApiServer, serve: Any, body: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    client = server.client()
    await client.create(SECRETS, secret("t1"), NAMESPACE)
    port = await serve(answer)
    routers = Routers(client, NAMESPACE, port)
    assert await routers.answers([pod()], "/v1/paceline/routes") == {"router-0": None}
    assert await routers.recorded(f"http://127.0.0.1:{port}/v1/paceline/routes") is None
    await routers.close()


async def test_a_router_that_is_not_there_says_so(server: FakeApiServer, serve: Any) -> None:
    [view] = await ask(server.client(), 1)
    assert view.error


@pytest.mark.parametrize("answer", [routes(None), {"synced": True, "services": {}}])
def test_a_service_that_a_router_does_not_know_has_no_generation(answer: Any) -> None:
    assert view_of("r", answer, "demo/chat") == RouterView("r", None)


def test_a_router_takes_replicas_that_are_ready_and_do_not_drain() -> None:
    def replica(name: str, *, ready: bool = True, draining: bool = False) -> dict[str, Any]:
        return {
            "name": name,
            "uid": name,
            "pool": "default",
            "revision": "chat-a",
            "ready": ready,
            "draining": draining,
        }

    answer = routes()
    answer["services"]["demo/chat"]["replicas"] = [
        replica("a"),
        replica("b", ready=False),
        replica("c", draining=True),
    ]
    assert view_of("r", answer, "demo/chat").takes == {("a", "chat-a")}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"synced": True},
        routes("7"),
        routes(services={"demo/chat": {"generation": 1.5, "replicas": []}}),
        routes(services={"demo/chat": {"generation": 1}}),
        routes(services={"demo/chat": {"generation": 1, "replicas": [{"name": "a"}]}}),
        routes(services={"demo/chat": None}),
    ],
)
def test_an_answer_of_another_form_is_no_view(answer: Any) -> None:
    with pytest.raises(ValueError, match=r"it has|its answer"):
        view_of("r", answer, "demo/chat")


@pytest.mark.cluster
async def test_a_roll_waits_for_a_router_and_says_so(world: Any, make_service: Any, serve: Any) -> None:
    """A router pod that answers with an old generation holds the old replicas; when it follows, they stop."""
    follows = 1

    async def handler(request: web.Request) -> web.Response:
        revision = (await world.get(INFERENCESERVICES, "chat"))["status"]["currentRevision"]
        replicas = [
            {"name": p["metadata"]["name"], "revision": revision, "ready": True, "draining": False}
            for p in await world.all(PODS)
        ]
        entry = {"generation": follows, "replicas": replicas}
        return web.json_response({"synced": True, "services": {f"{world.namespace}/chat": entry}})

    port = await serve(handler)
    router = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "router-0", "labels": {"app.kubernetes.io/component": "router"}},
        "spec": {"containers": [{"name": "router", "image": "r"}]},
    }
    await world.client.create(PODS, router, world.namespace)
    await world.set_pod(router, pod()["status"] | {"phase": "Running", "podIPs": [{"ip": "127.0.0.1"}]})
    async with world.operator(router_admin_port=port), world.kubelet():
        await world.apply(make_service())
        first = await world.until_ready()
        await world.apply(make_service(runtime={"maxNumSeqs": 8}))

        async def waits() -> bool:
            progressing = await world.condition(type="Progressing")
            return "router-0 follows generation 2 of the traffic (now 1)" in progressing["message"]

        await world.until(waits, "the status says what is waited for")
        ready = await world.condition()
        assert (ready["status"], ready["reason"]) == ("False", "RollingOut")
        service = await world.get(INFERENCESERVICES, "chat")
        assert service["status"]["traffic"]["generation"] == 2
        assert service["status"]["readyReplicas"] == 2
        follows = 2
        done = await world.until_ready()
        assert done["status"]["currentRevision"] != first["status"]["currentRevision"]


async def test_pages_are_those_of_the_routers_that_can_be_asked(server: FakeApiServer, serve: Any) -> None:
    client = server.client()
    await client.create(SECRETS, secret("t1"), NAMESPACE)

    async def handler(request: web.Request) -> web.Response:
        right = request.headers["Authorization"] == "Bearer t1"
        return web.json_response({"from": "router"}) if right else web.Response(status=401)

    routers = Routers(client, NAMESPACE, await serve(handler))
    try:
        pods = [pod("a"), pod("b", address=""), pod("c", address="127.0.0.77"), pod("d", ready=False)]
        assert await routers.pages(pods, "/v1/paceline/routes") == [{"from": "router"}]
    finally:
        await routers.close()


@pytest.mark.parametrize("stored", [b"\xff\xfe\x00", "schlüssel".encode(), b"two\nlines", b""])
async def test_a_token_that_no_header_can_carry_is_told_and_ends_nothing(
    server: FakeApiServer, serve: Any, stored: bytes
) -> None:
    client = server.client()
    await client.create(SECRETS, {**secret(""), "data": {"token": base64.b64encode(stored).decode()}}, NAMESPACE)

    async def handler(request: web.Request) -> web.Response:
        return web.json_response(routes())

    routers = Routers(client, NAMESPACE, await serve(handler))
    try:
        await routers.prepare()
        [view] = await routers.ask([pod()], "demo", "chat")
        assert "delete it, and the operator makes another" in view.error
        await client.delete(SECRETS, ADMIN_SECRET, NAMESPACE)
        assert await routers.ask([pod()], "demo", "chat") == (RouterView("router-0", 3),)
    finally:
        await routers.close()


async def test_a_line_end_after_the_token_is_no_part_of_it(server: FakeApiServer) -> None:
    """`kubectl create secret --from-file` keeps it, and the routers leave it out as well."""
    client = server.client()
    await client.create(SECRETS, secret("t1\n"), NAMESPACE)
    assert await ensure_admin_secret(client, NAMESPACE) == "t1"
