"""A replica without our load report is asked for its metrics page."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paceline_router.flow.polling import poll

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
    polling = asyncio.create_task(poll(service.plane))
    async with asyncio.timeout(20):
        await done.wait()
        while backend.stale(service.plane.now()):
            await asyncio.sleep(0.01)
    polling.cancel()
    assert asked[:2] == ["/v1/paceline/load", "/metrics"]
    assert backend.others == others
    assert backend.reported is (others > 0)
