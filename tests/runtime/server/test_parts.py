"""The front end's small decisions: liveness, the configuration's hash, request records, the engine's socket."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_runtime.config import resolve
from paceline_runtime.messages import AddRequest, EffectiveValue, ModelFacts, Ready, SamplingParams, TokenOutput
from paceline_runtime.server.engine_client import EngineClient
from paceline_runtime.server.health import Signs, live_bound, liveness, ready_bound
from paceline_runtime.server.replica import config_hash, effective_config
from paceline_runtime.server.request_headers import read
from paceline_runtime.server.requests import RequestLog, RequestRecord
from paceline_runtime.server.submission import EngineGone


@pytest.mark.parametrize(
    ("state", "ok"),
    [
        ({"core_alive": False}, False),
        ({"ready": False, "heard_at": None, "progress_at": None}, True),
        ({"ready": False, "core_alive": False}, False),
        ({}, True),
        ({"heard_at": 939.0}, False),
        ({"heard_at": 941.0}, True),  # a long step
        ({"heard_at": None}, False),
        ({"progress_at": 939.0}, False),  # it talks, but its requests do not move
        ({"progress_at": 941.0}, True),
        ({"probed_at": 939.0}, False),  # it steps, but never gets to a request that goes before all others
        ({"probed_at": 941.0}, True),
        ({"busy": False}, True),
        ({"busy": False, "heard_at": 989.0}, False),  # without work it has no excuse
        ({"busy": False, "progress_at": 989.0}, False),
        ({"busy": False, "probed_at": 989.0}, False),
        ({"busy": False, "probed_at": 991.0}, True),
    ],
)
def test_liveness_is_judged_by_progress(state: dict[str, Any], ok: bool) -> None:
    healthy = {"core_alive": True, "ready": True, "busy": True, "heard_at": 999.0, "progress_at": 999.0}
    assert liveness(Signs(**{**healthy, **state}), now=1000.0, bound=60.0).ok is ok


def test_a_slow_machine_gets_the_time_that_its_own_steps_take() -> None:
    assert (live_bound(120, 1), ready_bound(120, 1)) == (120, 30)
    assert (live_bound(120, 60), ready_bound(120, 60)) == (180, 180)
    assert (live_bound(5, 1), ready_bound(5, 1)) == (5, 5)


def ready(**changes: Any) -> Ready:
    facts = ModelFacts(
        digest="sha256:a", path="/m", architecture="Llama", vocab_size=9, max_position=9, parameters=1,
        eos_token_ids=[], bos_token_id=None,
    )  # fmt: skip
    parameters = {
        "maxModelLen": EffectiveValue(256, changes.pop("origin", "spec")),
        "numBlocks": EffectiveValue(changes.pop("blocks", 7), "measured"),
    }
    return Ready(
        parameters=parameters, model=facts, dtype="float32", device=changes.pop("device", "cpu"), load_seconds=1.0,
        warmup_seconds=1.0,
    )  # fmt: skip


def test_the_configurations_hash_covers_values_and_not_what_a_machine_made_of_them() -> None:
    def digest(source: str = "file:///m", **changes: Any) -> str:
        return config_hash(effective_config(resolve(source=source, environ={}), ready(**changes)))

    assert digest() == digest(blocks=8) == digest(device="cuda") == digest(origin="environment")
    assert digest() != digest(source="file:///other")


@given(ids=st.lists(st.sampled_from("abc"), max_size=30))
def test_the_request_log_keeps_what_runs_and_the_last_few(ids: list[str]) -> None:
    log = RequestLog(kept=3)
    records = [RequestRecord(request_id, "completions", False, 1) for request_id in ids]
    for n, record in enumerate(records):
        log.opened(record)
        if n % 2:
            log.closed(record)
    running = [record for n, record in enumerate(records) if not n % 2]
    assert len(log) == len(running)
    for request_id in set(ids):
        newest = [record for record in records if record.request_id == request_id][-1]
        if newest in running or newest in [record for record in records if record not in running][-3:]:
            assert log.find(request_id) is newest


@given(
    raw=st.lists(
        st.tuples(
            st.sampled_from(
                [b"x-request-id", b"x-paceline-deadline-ms", b"x-paceline-tenant", b"x-paceline-request-id"]
            ),
            st.binary(max_size=20),
        )
    )
)
def test_any_header_gives_an_id_that_can_be_repeated_or_a_fault(raw: list[tuple[bytes, bytes]]) -> None:
    context = read(raw)
    assert context.request_id.isascii()
    assert context.request_id.isprintable()
    assert 0 < len(context.request_id) <= 128
    if context.deadline_seconds is not None:
        assert context.deadline_seconds >= 0


async def test_an_engine_that_talks_nonsense_is_an_engine_that_is_gone(tmp_path: Path) -> None:
    client = EngineClient()
    path = tmp_path / "s"
    await client.listen(path)
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"\xff\xff\xff\xff nonsense")
    await asyncio.wait_for(client.gone, 5)
    with pytest.raises(EngineGone):
        await client.ready
    with pytest.raises(EngineGone):
        client.submit([([1], SamplingParams())])
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()


async def test_outputs_of_one_request_never_reach_another(front_end: Any) -> None:
    seen: list[AddRequest] = []

    async def crossing(core: Any, request: AddRequest) -> None:
        seen.append(request)
        if len(seen) == 2:
            for turn in range(3):
                for n, one in enumerate(seen):
                    core.output(one, [10 + n + turn])

    async with front_end(crossing) as front:
        first = front.replica.engine.submit([([1], SamplingParams())])
        second = front.replica.engine.submit([([2], SamplingParams())])

        async def collect(submission: Any) -> list[int]:
            tokens: list[int] = []
            while len(tokens) < 3:
                outputs: list[tuple[int, TokenOutput]] = await submission.next()
                tokens += [token for _, output in outputs for token in output.new_token_ids]
            submission.close()
            return tokens

        assert await asyncio.gather(collect(first), collect(second)) == [[10, 11, 12], [11, 12, 13]]
