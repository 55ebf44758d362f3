"""Live is an engine that makes progress, or that answers a small question when nothing was made lately."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from paceline_runtime.config import resolve
from paceline_runtime.messages import AddRequest, EffectiveValue, ModelFacts, Ready, SamplingParams, StepOutputs
from paceline_runtime.server import health, replica
from paceline_runtime.server.core_process import CoreProcess
from paceline_runtime.server.engine_client import EngineClient

CHAT = {"model": "org/tiny", "messages": [{"role": "user", "content": "hi"}]}


async def test_a_quiet_engine_is_asked_for_one_token_that_is_no_request_of_anybody(front_end: Any) -> None:
    async with front_end() as front:
        assert (await front.http.get("/health/live")).status_code == 200
        [probe] = front.core.probes
        assert probe.sampling.max_tokens == 1
        assert (await front.http.get("/health/live")).status_code == 200
        assert len(front.core.probes) == 1  # it has just made a token
        assert front.replica.engine.open_requests == 0
        text = (await front.http.get("/metrics")).text
        assert 'vllm:request_success_total{finished_reason="length",model_name="org/tiny"} 0.0' in text
        assert 'vllm:time_to_first_token_seconds_count{model_name="org/tiny"} 0.0' in text


async def test_an_engine_that_made_tokens_lately_is_not_asked(front_end: Any) -> None:
    async with front_end() as front:
        await front.http.post("/v1/chat/completions", json=CHAT)
        assert (await front.http.get("/health/live")).status_code == 200
        assert front.core.probes == []


async def test_readiness_and_metrics_ask_nothing_of_the_engine(front_end: Any) -> None:
    async with front_end() as front:
        for path in ("/health/ready", "/health", "/ping", "/metrics"):
            assert (await front.http.get(path)).status_code == 200
        assert front.core.probes == []


async def test_an_idle_engine_that_talks_and_does_not_work_turns_red(
    front_end: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(health, "IDLE_SECONDS", 0.6)
    monkeypatch.setattr(replica, "PROBE_PATIENCE_SECONDS", 0.05)
    async with front_end() as front:
        front.core.deaf = True

        async def talk() -> None:
            while True:
                front.core.send(StepOutputs([], front.core.stats()))
                await asyncio.sleep(0.05)

        talking = asyncio.create_task(talk())
        assert (await front.http.get("/health/live")).status_code == 200
        await eventually(lambda: not front.replica.live(time.monotonic()).ok)
        response = await front.http.get("/health/live")
        assert (response.status_code, len(front.core.probes)) == (503, 1)
        assert "asked for one token" in response.json()["reason"]
        assert (await front.http.get("/health/ready")).status_code == 503
        talking.cancel()


async def test_a_full_queue_and_a_long_step_never_turn_it_red(
    front_end: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(health, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(replica, "PROBE_PATIENCE_SECONDS", 0.02)

    async def silent(core: Any, request: AddRequest) -> None:
        await asyncio.Event().wait()

    async with front_end(silent, liveness_seconds=60.0) as front:
        front.core.deaf = True
        asking = [asyncio.create_task(front.http.post("/v1/chat/completions", json=CHAT)) for _ in range(20)]
        for _ in range(10):
            await asyncio.sleep(0.05)
            assert (await front.http.get("/health/live")).status_code == 200
            assert (await front.http.get("/health/ready")).status_code == 200
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await eventually(lambda: front.replica.engine.open_requests == 0)
        # The engine has said nothing since: it may still be in the step that it began with them.
        assert front.replica.live(time.monotonic() + 30).ok


def ready(warmup: float, device: str = "cpu", **parameters: int) -> Ready:
    return Ready(
        parameters={name: EffectiveValue(value, "default") for name, value in parameters.items()},
        model=ModelFacts(
            digest="sha256:0",
            path="",
            architecture="LlamaForCausalLM",
            vocab_size=1,
            max_position=1,
            parameters=1,
            eos_token_ids=[],
            bos_token_id=None,
        ),
        dtype="float32",
        device=device,
        load_seconds=1.0,
        warmup_seconds=warmup,
    )


def test_a_slow_cpu_has_time_for_a_step_full_of_chunks_of_long_prompts() -> None:
    # Fifty seconds for one chunk of a prompt: a step with four of them is alive for far longer than two minutes.
    slow = health.longest_steps(ready(50.0, maxBatchedTokens=2048, prefillChunkTokens=512))
    assert slow == 200.0
    assert health.live_bound(120.0, slow) == 600.0
    assert health.ready_bound(120.0, slow) == 600.0
    # A GPU's warm-up ran the whole step, and a fast machine has what is configured.
    assert health.longest_steps(ready(50.0, "NVIDIA H200", maxBatchedTokens=2048, prefillChunkTokens=512)) == 50.0
    assert health.longest_steps(ready(0.5, maxBatchedTokens=256, prefillChunkTokens=512)) == 0.5
    assert health.live_bound(120.0, health.longest_steps(ready(0.5))) == 120.0


async def test_how_long_ago_the_engine_got_on_is_shown_and_how_long_it_may_be(front_end: Any, eventually: Any) -> None:
    async def silent(core: Any, request: AddRequest) -> None:
        await asyncio.Event().wait()

    async def shown(http: Any) -> tuple[float, float]:
        text = (await http.get("/metrics")).text
        names = ("paceline_engine_progress_age_seconds", "paceline_engine_step_bound_seconds")
        age, bound = (float(line.split()[-1]) for name in names for line in text.splitlines() if line.startswith(name))
        return age, bound

    async with front_end(silent, liveness_seconds=60.0) as front:
        asking = asyncio.create_task(front.http.post("/v1/chat/completions", json=CHAT))
        await eventually(lambda: front.core.requests)
        first, bound = await shown(front.http)
        await asyncio.sleep(0.05)
        later, _ = await shown(front.http)
        assert later >= first + 0.05
        assert bound == 60.0
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_the_real_engine_answers_past_a_full_queue(tiny_folder: Path, tmp_path: Path) -> None:
    config = resolve(
        source=str(tiny_folder),
        served_name="tiny",
        flags={"max_num_seqs": 2, "max_queued_requests": 30, "max_model_len": 512, "kv_cache_memory": "4Mi"},
        environ={},
    )
    file, path = tmp_path / "config.json", tmp_path / "s"
    file.write_text(config.model_dump_json(by_alias=True))
    engine = EngineClient()
    await engine.listen(path)
    core = CoreProcess(path, file)
    await asyncio.wait_for(engine.ready, 120)
    sampling = SamplingParams(max_tokens=500, ignore_eos=True)
    submission = engine.submit([([5], sampling)] * 30)
    assert await engine.probe(5, patience=60)
    assert engine.open_requests > 20  # it did not wait until they were through
    submission.close()
    engine.shutdown()
    assert await core.stop(30) == 0
    engine.close()
