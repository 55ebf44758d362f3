"""Fixtures: a small API server in this process, and informers that are stopped at the end of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from paceline_kube import AioKubeClient, Informer, Resource, Timing
from paceline_kube.testing import FakeApiServer

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
def client(server: FakeApiServer) -> AioKubeClient:
    return server.client()


@pytest.fixture
def eventually() -> Eventually:
    """Wait until a condition holds; fails after ten seconds without it."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
async def start_informer(client: AioKubeClient) -> AsyncIterator[Callable[..., Informer]]:
    tasks: list[asyncio.Task[None]] = []

    def start(resource: Resource, **arguments: Any) -> Informer:
        arguments.setdefault("timing", Timing(backoff_first=0.01, backoff_most=0.05, inactivity=1.0))
        informer = Informer(arguments.pop("client", client), resource, **arguments)
        tasks.append(asyncio.create_task(informer.run()))
        return informer

    yield start
    for task in tasks:
        assert not task.done(), "an informer ended by itself"
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
