"""What requests of one shape do to those of others is recorded on the way, and shown at the admin port."""

from __future__ import annotations

from typing import Any

import httpx
from starlette.testclient import TestClient

from paceline_crds.routing import Shape
from paceline_router.flow.exchange import WATCH_SECONDS
from paceline_router.processes.merging import merge_splits
from paceline_router.report.admin import make_app
from paceline_router.report.tokens import AdminToken
from paceline_router.shape.split_condition import condition_of

PATH = "/v1/chat/completions"


class Source:
    error: str | None = None

    def age(self) -> float | None:
        return 0.0


async def test_requests_are_counted_by_shape_and_the_advice_is_not_known_on_thin_traffic(
    router: Any, peer: Any, helpers: Any
) -> None:
    service = await router(await peer())
    living = service.plane.living[helpers.KEY]
    async with httpx.AsyncClient(base_url=service.url) as client:
        for n in (1, 4, 4):
            # Of requests within a millisecond one is watched.
            living.watch_from = 0.0
            body = {"model": helpers.MODEL, "messages": [{"role": "user", "content": "hi"}], "n": n, "stream": True}
            assert (await client.post(PATH, json=body)).status_code == 200
    await service.idle()
    with TestClient(make_app(service.plane, Source(), AdminToken(value="t"))) as admin:
        page = admin.get("/v1/paceline/split", headers={"authorization": "Bearer t"}).json()
        assert page["conditions"]["demo/chat"]["reason"] == "NotEnoughRequests"
    advice = page["services"][helpers.KEY]["default"]
    assert advice["requests"] == 3
    assert advice["split"] == []
    shares = {finding["shape"]: finding for finding in advice["shapes"]}
    parallel = shares[Shape.STRUCTURED_OR_PARALLEL.value]
    assert (round(parallel["requestsShare"], 2), parallel["answer"]) == (0.67, "not known")


async def test_a_busy_service_is_watched_by_a_part_of_its_requests(router: Any, peer: Any, helpers: Any) -> None:
    service = await router(await peer())
    living = service.plane.living[helpers.KEY]
    living.watch_from = service.plane.now() + 3600.0
    body = {"model": helpers.MODEL, "messages": []}
    async with httpx.AsyncClient(base_url=service.url) as client:
        assert (await client.post(PATH, json=body)).status_code == 200
        assert living.watchers == {}
        living.watch_from = 0.0
        before = service.plane.now()
        assert (await client.post(PATH, json=body)).status_code == 200
    assert living.watch_from >= before + WATCH_SECONDS
    await service.idle()
    assert living.watchers["default"].window(service.plane.now()).halves[-1].requests[0] == 1


def test_of_several_processes_the_one_that_saw_most_advises() -> None:
    few = {"requests": 10, "split": [], "shapes": []}
    most = {"requests": 500, "split": ["VeryLong"], "shapes": [{"answer": "yes"}]}
    pages = [{"services": {"demo/chat": {"default": few}}}, {"services": {"demo/chat": {"default": most, "long": few}}}]
    assert merge_splits(pages)["services"]["demo/chat"] == {"default": most, "long": few}
    assert merge_splits(pages[::-1])["services"]["demo/chat"] == {"default": most, "long": few}
    assert merge_splits(pages)["conditions"]["demo/chat"] == condition_of({"default": most, "long": few})
