"""What the admin port tells the operator: demand as a stream, and what happened lately."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from finished_exchange import Over

from paceline_crds.routing import Shape
from paceline_crds.sketch import SCALE, Sketch
from paceline_router.flow.dataplane import DataPlane
from paceline_router.report import demand
from paceline_router.report.admin import MAX_HEAD_BYTES, AdminServer, make_app, metrics_page, routes_page
from paceline_router.report.demand import steady, stream
from paceline_router.report.samples import samples_page
from paceline_router.report.tokens import AdminToken
from paceline_router.settings import Settings
from paceline_router.table.policy import policy_from_spec

TOKEN = {"authorization": "Bearer secret"}


class Source:
    error: str | None = None

    def age(self) -> float | None:
        return 1.0


@pytest.fixture
def plane(helpers: Any) -> DataPlane:
    made = DataPlane(Settings())
    made.use(helpers.table_of(1, 2))
    return made


def waiting(**held: int) -> list[Any]:
    return [
        SimpleNamespace(service=f"demo/{name}", held=count, oldest_wait_ms=7 * count, arrivals=90)
        for name, count in held.items()
    ]


async def next_of(lines: AsyncIterator[bytes]) -> dict[str, Any]:
    async with asyncio.timeout(10):
        found: dict[str, Any] = json.loads(await anext(lines))
        return found


# Demand


async def test_demand_is_told_at_once_and_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(demand, "AT_LEAST_EVERY", 3600.0)
    now = waiting(chat=0, code=2)
    lines = stream(lambda: now)
    assert await next_of(lines) == {"service": "demo/chat", "held": 0, "oldest_wait_ms": 0, "arrivals": 90}
    assert (await next_of(lines))["service"] == "demo/code"
    now = waiting(chat=3, code=2)
    assert await next_of(lines) == {"service": "demo/chat", "held": 3, "oldest_wait_ms": 21, "arrivals": 90}
    now = waiting(chat=3, code=0)
    assert (await next_of(lines))["service"] == "demo/code"
    await lines.aclose()  # type: ignore[attr-defined]


async def test_demand_is_told_again_now_and_then_so_that_silence_means_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demand, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(demand, "AT_LEAST_EVERY", 0.002)
    lines = stream(lambda: waiting(chat=0))
    assert [(await next_of(lines))["held"] for _ in range(3)] == [0, 0, 0]
    empty = stream(lambda: waiting())
    async with asyncio.timeout(10):
        assert [await anext(empty) for _ in range(2)] == [b"\n", b"\n"]


def test_reading_begins_again_when_another_thread_was_caught_changing() -> None:
    tries = iter([RuntimeError("dictionary changed size during iteration")] * 3)

    def read() -> int:
        for exc in tries:
            raise exc
        return 7

    assert steady(read) == 7
    with pytest.raises(RuntimeError):
        steady(lambda: (_ for _ in ()).throw(RuntimeError("for ever")), tries=3)


async def test_the_stream_needs_the_token_and_ends_with_the_router(plane: DataPlane) -> None:
    server = AdminServer(plane, Source(), AdminToken(value="secret"), "127.0.0.1", 0)
    server.start()
    url = f"http://127.0.0.1:{server.port}/v1/paceline/demand"
    async with httpx.AsyncClient(timeout=10) as client:
        assert (await client.get(url)).status_code == 401
        async with client.stream("GET", url, headers=TOKEN) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "application/x-ndjson"
            lines = answer.aiter_lines()
            told = json.loads(await anext(lines))
            assert told == {"service": "demo/chat", "held": 0, "oldest_wait_ms": 0, "arrivals": 0}
            async with asyncio.timeout(20):
                await asyncio.to_thread(server.stop)


async def test_a_head_without_end_is_refused_before_it_fills_the_memory(plane: DataPlane) -> None:
    server = AdminServer(plane, Source(), AdminToken(value="secret"), "127.0.0.1", 0)
    server.start()
    try:
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nx: " + b"a" * (2 * MAX_HEAD_BYTES))
            with contextlib.suppress(ConnectionError):
                assert (await reader.readline()).startswith(b"HTTP/1.1 4")
            writer.close()
    finally:
        await asyncio.to_thread(server.stop)


# The table


def test_the_routes_page_says_which_shapes_go_to_which_pool_and_what_could_not_be_read(helpers: Any) -> None:
    spec = {"pools": [{"name": "long", "shapes": ["VeryLong"], "slo": {"ttft": {"p90": "soon"}}}]}
    plane = DataPlane(Settings())
    plane.use(helpers.table_of(1, 2, policy=policy_from_spec(spec)))
    page = routes_page(plane, Source())["services"]["demo/chat"]
    others = [shape.value for shape in Shape if shape is not Shape.VERY_LONG]
    assert page["pools"] == {
        "default": {"shapes": others, "replicas": 2, "ready": 2},
        "long": {"shapes": ["VeryLong"], "replicas": 0, "ready": 0},
    }
    [problem] = page["problems"]
    assert "pools[long].slo" in problem


# Lately


def test_samples_are_those_since_a_moment(plane: DataPlane) -> None:
    plane.observer.finished(Over(metrics=plane.metrics.service("demo/chat")))
    with TestClient(make_app(plane, Source(), AdminToken(value="secret"))) as client:
        url = "/v1/paceline/samples"
        assert client.get(url).status_code == 401
        page = client.get(url, headers=TOKEN).json()
        [row] = page["services"]["demo/chat"]["rows"]
        assert page["scale"] == SCALE
        assert Sketch.decode(row["ttft"]).count == 1
        later = client.get(url, params={"since": time.time() + 60}, headers=TOKEN).json()
        assert later["services"]["demo/chat"]["rows"] == []
        other = client.get(url, params={"service": "demo/none"}, headers=TOKEN).json()
        assert other["services"] == {}


@pytest.mark.parametrize("since", ["soon", "-1", "nan", "inf"])
def test_a_moment_that_is_none_is_refused_in_words(plane: DataPlane, since: str) -> None:
    with TestClient(make_app(plane, Source(), AdminToken(value="secret"))) as client:
        answer = client.get("/v1/paceline/samples", params={"since": since}, headers=TOKEN)
    assert answer.status_code == 400
    assert "since" in answer.json()["error"]["message"]


def test_reading_while_requests_end_never_fails_nor_goes_back(plane: DataPlane) -> None:
    """Counters only grow, whatever the data path does between two looks of another thread."""
    metrics = plane.metrics.service("demo/chat")
    stop = threading.Event()
    errors: list[BaseException] = []
    counts: list[tuple[int, int]] = []

    def totals() -> tuple[int, int]:
        page = steady(lambda: samples_page(plane.metrics, 0.0, time.time()))
        rows = page["services"]["demo/chat"]["rows"]
        return (
            sum(sum(row["outcomes"].values()) for row in rows),
            sum(Sketch.decode(row["duration"]).count for row in rows),
        )

    def read() -> None:
        try:
            while not stop.is_set():
                counts.append(totals())
                steady(lambda: metrics_page(plane, Source()))
        except BaseException as exc:
            errors.append(exc)

    reader = threading.Thread(target=read)
    reader.start()
    finished: Callable[[Any], None] = plane.observer.finished
    done = 0
    while len(counts) < 20 and not errors and done < 50_000:
        revision = f"chat-{done // 100 % 40}"
        finished(Over(metrics=metrics, revision=revision, prompt_version=f"v{done % 50}"))
        done += 1
        if done % 50 == 0:
            metrics.windows.close(metrics.cells, time.time())
    stop.set()
    reader.join()
    assert errors == []
    assert counts == sorted(counts)
    assert totals() == (done, done)


def test_a_token_that_is_no_text_lets_nobody_in_until_it_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xff\xfe")
    token = AdminToken(file, "of the environment")
    assert not token.matches("Bearer of the environment")
    file.write_text("secret word\n")
    assert token.matches("Bearer secret word")
