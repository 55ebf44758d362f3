"""A replica without our load report is asked for its metrics page."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paceline_router.flow import polling
from paceline_router.flow.dataplane import DataPlane
from paceline_router.flow.polling import BATCH, BATCH_PAUSE, poll
from paceline_router.settings import Settings
from paceline_router.table.records import Replica, Service, Table

PAGE = b'vllm:num_requests_running{model_name="m"} 4\nvllm:num_requests_waiting{model_name="m"} 2\n'


@pytest.mark.parametrize(("page", "others"), [(PAGE, 6), (b"something_else 1\n", 0), (None, 0)])
async def test_an_engine_of_others_is_heard(router: Any, peer: Any, page: bytes | None, others: int) -> None:
    asked: list[str] = []
    done = asyncio.Event()

    async def handler(request: Any) -> None:
        asked.append(request.path)
        if request.path == "/metrics" and page is not None:
            await request.answer(page)
        else:
            await request.answer({}, "404 Not Found")
        if request.path == "/metrics":
            done.set()

    service = await router(await peer(handler, serves_get=True))
    backend = service.plane.backends["r0"]
    backend.fresh_until = 0.0
    asking = asyncio.create_task(poll(service.plane))
    async with asyncio.timeout(20):
        await done.wait()
        while backend.stale(service.plane.now()):
            await asyncio.sleep(0.01)
    asking.cancel()
    assert asked[:2] == ["/v1/paceline/load", "/metrics"]
    assert backend.others == others
    assert backend.reported is (others > 0)


async def test_a_large_fleet_is_polled_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or requests would wait for a pass through all of it."""
    asked: list[Any] = []
    go_on = asyncio.Event()
    passes: list[float] = []

    async def ask(session: Any, plane: Any, backend: Any) -> None:
        asked.append(backend)

    async def pause(seconds: float) -> None:
        passes.append(seconds)
        await (asyncio.Event() if seconds == polling.POLL_SECONDS else go_on).wait()

    monkeypatch.setattr(polling, "_ask", ask)
    plane = DataPlane(Settings())
    replicas = [
        Replica(f"u{n}", f"p{n}", "demo/chat", "default", "", "127.0.0.1", 1 + n, True, False) for n in range(3 * BATCH)
    ]
    table = Table(services={"demo/chat": Service("demo/chat", "m")}, replicas={r.uid: r for r in replicas})
    plane.use(table)
    sleep = asyncio.sleep
    monkeypatch.setattr(polling.asyncio, "sleep", pause)
    running = asyncio.create_task(poll(plane))
    async with asyncio.timeout(60):
        while len(asked) < BATCH:
            await sleep(0.001)
        assert (len(asked), passes) == (BATCH, [BATCH_PAUSE])
        go_on.set()
        while len(asked) < len(replicas):
            await sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
