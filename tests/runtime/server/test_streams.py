"""Streams when something goes wrong: faults, clients that go away, clients that do not read (C180, C134)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai_wire import Error, chat, error_of, events

from paceline_runtime.messages import AddRequest, FinishReason, RejectCode, Rejected
from paceline_runtime.server import submission


async def test_a_refusal_of_one_prompt_of_many_ends_the_whole_request(front_end: Any, eventually: Any) -> None:
    async def second_refused(core: Any, request: AddRequest) -> None:
        if request is core.requests[0]:
            core.output(request, core.encode("fox"))
            await asyncio.sleep(0.3)
            core.send(Rejected(core.requests[1].request_id, "the queue is full", RejectCode.QUEUE_FULL))

    async with front_end(second_refused) as front:
        body = {"model": "org/tiny", "prompt": ["a", "b"], "stream": True}
        response = await front.http.post("/v1/completions", json=body)
        last = events(response.text)[-1]
        assert Error.model_validate_json(last).error.message == "the queue is full"
        await eventually(lambda: front.core.aborted == [front.core.requests[0].request_id])
        front.core.requests.clear()
        assert (await front.http.post("/v1/completions", json={**body, "stream": False})).status_code == 503


@pytest.mark.parametrize("after", [1, 50])
async def test_a_fault_in_the_middle_of_a_stream_is_an_error_the_sdk_raises(front_end: Any, after: int) -> None:
    async def fail(core: Any, request: AddRequest) -> None:
        for token_id in (core.encode("fox ") * 50)[:after]:
            core.output(request, [token_id])
        await asyncio.sleep(0.3)  # until then nothing is sent that a status could not still take back
        core.output(request, [], FinishReason.ERROR, message="the step failed")

    async with front_end(fail) as front:
        response = await front.http.post("/v1/chat/completions", json=chat(stream=True))
        *data, last = events(response.text)
        assert Error.model_validate_json(last).error.message == "the step failed"
        assert all(json.loads(item)["object"] == "chat.completion.chunk" for item in data)
        assert len(data) > 1
        with pytest.raises(openai.APIError, match="the step failed"):
            async for _ in await front.sdk.chat.completions.create(**chat(stream=True)):
                pass
        assert (await front.http.post("/v1/chat/completions", json=chat())).status_code == 500


async def test_no_status_line_is_sent_before_the_first_token(front_end: Any) -> None:
    release = asyncio.Event()

    async def wait(core: Any, request: AddRequest) -> None:
        await release.wait()
        core.output(request, [], FinishReason.ERROR, message="no first token")

    async with front_end(wait) as front:
        asking = asyncio.create_task(front.http.post("/v1/chat/completions", json=chat(stream=True)))
        await asyncio.sleep(0.3)
        assert not asking.done()
        release.set()
        response = await asking
        assert (response.status_code, error_of(response).message) == (500, "no first token")


async def test_each_token_is_sent_when_it_is_made(front_end: Any) -> None:
    steps: asyncio.Queue[int] = asyncio.Queue()

    async def stepwise(core: Any, request: AddRequest) -> None:
        for token_id in core.encode("quick brown"):
            await steps.get()
            core.output(request, [token_id])
        core.output(request, [core.eos], FinishReason.STOP, stop_token_id=core.eos)

    async with front_end(stepwise) as front:
        tokens = front.core.encode("quick brown")
        steps.put_nowait(0)
        stream = await front.sdk.chat.completions.create(**chat(stream=True))
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if chunk.choices[0].delta.content:
                steps.put_nowait(0)  # the next token is made only after this one was seen
        assert text == "quick brown"
        assert len(tokens) > 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_stops_the_engines_work(front_end: Any, eventually: Any, stream: bool) -> None:
    async def endless(core: Any, request: AddRequest) -> None:
        while request.request_id in core.open:
            core.output(request, core.encode("fox"))
            await asyncio.sleep(0.01)

    async with front_end(endless) as front:
        asking = asyncio.create_task(front.http.post("/v1/chat/completions", json=chat(stream=stream)))
        await eventually(lambda: len(front.core.requests) == 1 and front.core.step > 10)
        asking.cancel()
        await eventually(lambda: len(front.core.aborted) == 1)
        assert front.replica.engine.open_requests == 0
        load = (await front.http.get("/v1/paceline/load")).json()
        assert (load["running"], load["waiting"]) == (0, 0)
        await eventually(
            lambda: (
                b'vllm:request_success_total{finished_reason="abort",model_name="org/tiny"} 1.0'
                in front.replica.metrics.render()[0]
            )
        )


async def test_a_client_that_goes_away_before_the_first_token_stops_the_engines_work(
    front_end: Any, eventually: Any
) -> None:
    async def silent(core: Any, request: AddRequest) -> None:
        core.send_nothing = True

    async with front_end(silent) as front:
        asking = asyncio.create_task(front.http.post("/v1/chat/completions", json=chat(stream=True)))
        await eventually(lambda: len(front.core.requests) == 1)
        asking.cancel()
        await eventually(lambda: len(front.core.aborted) == 1)


async def test_a_reader_that_does_not_read_does_not_hold_the_engine(front_end: Any, eventually: Any) -> None:
    """The engine makes everything at once; the answer waits in the front end for its reader."""
    many = 4000

    async def burst(core: Any, request: AddRequest) -> None:
        fox = core.encode("fox")
        for _ in range(many):
            core.output(request, fox)
        core.output(request, [core.eos], FinishReason.STOP, stop_token_id=core.eos)

    async with front_end(burst) as front:
        async with front.http.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as response:
            await eventually(lambda: front.replica.engine.open_requests == 0)
            other = await front.http.get("/health/ready")
            assert other.status_code == 200
            text = (await response.aread()).decode()
        assert text.count('"content":"fox"') == many


async def test_a_stream_whose_client_leaves_too_much_unread_is_ended_with_words(
    front_end: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(submission, "UNREAD_TOKENS", 100)

    async def endless(core: Any, request: AddRequest) -> None:
        fox = core.encode("fox") * 10
        while request.request_id in core.open:
            core.output(request, fox)
            await asyncio.sleep(0)

    async with front_end(endless) as front:
        async with front.http.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as response:
            await eventually(lambda: len(front.core.aborted) == 1)
            assert front.replica.engine.open_requests == 0
            text = (await response.aread()).decode()
        last = Error.model_validate_json(events(text)[-1]).error
        assert last.code == "slow_reader"
        assert b'paceline_slow_readers_total{model_name="org/tiny"} 1.0' in front.replica.metrics.render()[0]
        assert b'finished_reason="abort",model_name="org/tiny"} 1.0' in front.replica.metrics.render()[0]


async def test_half_a_character_at_the_end_is_shown_as_the_replacement_character(front_end: Any) -> None:
    async def half(core: Any, request: AddRequest) -> None:
        core.output(request, core.encode("a🎉")[:-1], FinishReason.LENGTH)

    async with front_end(half) as front:
        answer = await front.sdk.chat.completions.create(**chat())
        assert answer.choices[0].message.content == "a\ufffd"


async def test_a_stream_of_the_sdk_closed_early_stops_the_engines_work(front_end: Any, eventually: Any) -> None:
    async def endless(core: Any, request: AddRequest) -> None:
        while request.request_id in core.open:
            core.output(request, core.encode("fox"))
            await asyncio.sleep(0.01)

    async with front_end(endless) as front:
        async with await front.sdk.chat.completions.create(**chat(stream=True)) as stream:
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
        await eventually(lambda: len(front.core.aborted) == 1)
        raw = await front.sdk.models.with_raw_response.list()
        assert raw.headers["x-request-id"]
