"""Replicas of other engines are asked for their metrics page, and what it says decides."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from paceline_router.choice.load import STALE_AFTER, ReplicaLoad
from paceline_router.engines.asking import ask_engine, hear_engine
from paceline_router.engines.load import MAX_PAGE, EngineLoad

PAGE = b'vllm:num_requests_running{model_name="m"} 4\nvllm:num_requests_waiting{model_name="m"} 2\n'


def page(body: bytes, status: str = "200 OK") -> Any:
    async def handler(request: Any) -> None:
        assert request.path == "/metrics"
        await request.answer(body, status)

    return handler


async def ask(peer: Any) -> EngineLoad | None:
    async with aiohttp.ClientSession() as session:
        return await ask_engine(session, f"127.0.0.1:{peer.port}")


async def test_the_page_is_read_to_its_end(peer: Any) -> None:
    long = b"# HELP a b\n" * 50_000
    assert await ask(await peer(page(long + PAGE), serves_get=True)) == EngineLoad("vllm", 4, 2)


@pytest.mark.parametrize("body", [b"", b"<html>", b"process_cpu_seconds_total 1\n", b"#" * (MAX_PAGE + 1)])
async def test_pages_that_tell_nothing(peer: Any, body: bytes) -> None:
    assert await ask(await peer(page(body), serves_get=True)) is None


@pytest.mark.parametrize("status", ["404 Not Found", "501 Not Implemented", "503 Service Unavailable", "302 Found"])
async def test_a_replica_without_the_page(peer: Any, status: str) -> None:
    assert await ask(await peer(page(PAGE, status), serves_get=True)) is None


async def test_a_replica_that_is_not_there() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask_engine(session, "127.0.0.1:1")


def test_what_is_said_counts_and_turns_stale() -> None:
    load = ReplicaLoad(100.0)
    load.begin(10, 10)
    assert hear_engine(load, EngineLoad("vllm", 4, 2), 101.0)
    assert load.others == 5
    assert not load.stale(101.0 + STALE_AFTER)
    assert load.stale(101.1 + STALE_AFTER)
    assert hear_engine(load, EngineLoad("vllm", 1, 0), 102.0)
    assert load.others == 0


def test_a_full_cache_weighs_and_so_does_a_long_context() -> None:
    def work(**known: Any) -> float:
        load = ReplicaLoad(100.0)
        assert hear_engine(load, EngineLoad("sglang", 4, 2, **known), 101.0)
        return load.work

    assert work(kv_percent=99) > work(kv_percent=50) == work()
    assert work(context_tokens=100_000) > work(context_tokens=1000)


@pytest.mark.parametrize("said", [EngineLoad("vllm", 4), EngineLoad("sglang", None, 3), EngineLoad("llama.cpp")])
def test_half_of_the_answer_is_none(said: EngineLoad) -> None:
    load = ReplicaLoad(100.0)
    assert not hear_engine(load, said, 101.0)
    assert not load.reported
