"""`GET /v1/paceline/requests/{id}`: why a request waited, was preempted or refused, in words and numbers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from paceline_runtime.messages import (
    AddRequest,
    EventKind,
    FinishReason,
    RejectCode,
    Rejected,
    RequestEvent,
    StepOutputs,
)
from paceline_runtime.server.requests import FIRST_EVENTS, LAST_EVENTS, Story

CHAT = {"model": "org/tiny", "messages": [{"role": "user", "content": "hi"}]}
HEADERS = {"x-paceline-request-id": "a-1", "x-paceline-tenant": "blue"}


def event(request: AddRequest, kind: EventKind, reason: str, message: str, **numbers: int) -> RequestEvent:
    return RequestEvent(
        request_id=request.request_id, kind=kind, at=time.monotonic(), reason=reason, message=message, numbers=numbers
    )


async def story_of(front: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await front.http.get("/v1/paceline/requests/a-1")).json()
    return found


async def test_a_request_says_what_it_waits_for_and_later_what_befell_it(front_end: Any, eventually: Any) -> None:
    go_on = asyncio.Event()

    async def script(core: Any, request: AddRequest) -> None:
        waits = event(request, EventKind.WAITS, "NoBlocks", "12 blocks are needed and 4 are free", needed=12, free=4)
        core.send(StepOutputs([], core.stats(), [waits]))
        await go_on.wait()
        admitted = event(request, EventKind.ADMITTED, "Admitted", "it is in the batch")
        lost = event(request, EventKind.PREEMPTED, "NoBlocks", "its blocks were taken", held=12)
        core.send(StepOutputs([], core.stats(), [admitted, lost]))
        core.output(request, core.encode("fox"), queue_seconds=0.5, prefill_seconds=0.25, num_preemptions=1)
        core.output(request, [core.eos], FinishReason.STOP, stop_token_id=core.eos)

    async with front_end(script) as front:
        asking = asyncio.create_task(front.http.post("/v1/chat/completions", json=CHAT, headers=HEADERS))
        await eventually(lambda: front.replica.requests.find("a-1") is not None)
        await eventually(lambda: front.replica.requests.find("a-1").story.waits_for() is not None)
        waiting = await story_of(front)
        assert waiting["state"] == "waiting"
        assert waiting["summary"].endswith(": 12 blocks are needed and 4 are free.")
        [first] = waiting["events"]
        assert (first["kind"], first["reason"], first["numbers"]) == ("waits", "NoBlocks", {"needed": 12, "free": 4})
        assert first["afterSeconds"] >= 0
        go_on.set()
        await asking
        over = await story_of(front)
        assert [item["kind"] for item in over["events"]] == ["waits", "admitted", "preempted"]
        assert (over["tenant"], over["preemptions"], over["state"]) == ("blue", 1, "stop")
        assert "Waited 0.500 s in the queue" in over["summary"]
        assert "lost its blocks once" in over["summary"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("asked_by", [{"x-paceline-explain": "1"}, {"x-paceline-request-id": "req-1"}])
async def test_the_time_spent_inside_is_told_to_who_asks_and_to_every_router(
    front_end: Any, stream: bool, asked_by: dict[str, str]
) -> None:
    async def script(core: Any, request: AddRequest) -> None:
        core.output(request, core.encode("fox"), queue_seconds=0.5, prefill_seconds=0.25)
        core.output(request, [core.eos], FinishReason.STOP, stop_token_id=core.eos)

    async with front_end(script) as front:
        body = {**CHAT, "stream": stream}
        told = await front.http.post("/v1/chat/completions", json=body, headers=asked_by)
        timing = told.headers["server-timing"]
        assert timing.startswith("queue;dur=500.0, prefill;dur=250.0, first-token;dur=")
        # The last span is the time until the answer began to be sent: a stream's has no end yet.
        assert timing.split(", ")[-1].startswith("first-token;dur=" if stream else "total;dur=")
        assert "server-timing" not in (await front.http.post("/v1/chat/completions", json=body)).headers


async def test_a_refusal_is_kept_with_its_words_and_numbers(front_end: Any) -> None:
    async def refuse(core: Any, request: AddRequest) -> None:
        core.send(Rejected(request.request_id, "8 requests wait and 8 may", RejectCode.QUEUE_FULL, 7.5))

    async with front_end(refuse) as front:
        response = await front.http.post("/v1/chat/completions", json=CHAT, headers=HEADERS)
        assert response.status_code == 503
        assert 8 <= int(response.headers["retry-after"]) <= 12
        story = await story_of(front)
        assert (story["state"], story["reason"]) == ("refused", "queue_full")
        assert story["summary"] == "Refused: 8 requests wait and 8 may"
        assert story["numbers"] == {"retryAfterSeconds": 7.5}


async def test_what_the_engine_drops_as_too_late_is_a_504_that_no_sdk_repeats(front_end: Any) -> None:
    async def drop(core: Any, request: AddRequest) -> None:
        dropped = event(request, EventKind.DROPPED, "Deadline", "2 s of work are left and 1 s is", left=1)
        core.send(StepOutputs([], core.stats(), [dropped]))
        core.output(request, [], FinishReason.DEADLINE, message="2 s of work are left and 1 s is")

    async with front_end(drop) as front:
        response = await front.http.post("/v1/chat/completions", json=CHAT, headers=HEADERS)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert response.headers["x-should-retry"] == "false"
        story = await story_of(front)
        assert (story["state"], story["message"]) == ("error", "2 s of work are left and 1 s is")
        assert story["events"][0]["kind"] == "dropped"


async def test_two_requests_with_one_id_are_both_served_and_the_newest_is_found(
    front_end: Any, eventually: Any
) -> None:
    """C133."""
    release = asyncio.Event()

    async def script(core: Any, request: AddRequest) -> None:
        await release.wait()
        await core.say(request, "the fox")

    async with front_end(script) as front:
        asking = [
            asyncio.create_task(front.http.post("/v1/chat/completions", json=CHAT, headers=HEADERS)) for _ in range(2)
        ]
        await eventually(lambda: len(front.core.requests) == 2)
        assert len({request.request_id for request in front.core.requests}) == 2
        release.set()
        answers = [(await answer).json() for answer in asking]
        assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["the fox"] * 2
        assert (await story_of(front))["state"] == "stop"


def test_a_long_story_keeps_its_beginning_and_its_end() -> None:
    story = Story()
    for n in range(100):
        story.add(0, RequestEvent(request_id="r", kind=EventKind.WAITS, at=float(n), reason="NoBlocks", message=str(n)))
    kept = [item["message"] for item in story.as_json(0.0)]
    assert kept == [str(n) for n in (*range(FIRST_EVENTS), *range(100 - LAST_EVENTS, 100))]
    assert story.left_out == 100 - FIRST_EVENTS - LAST_EVENTS
    assert story.waits_for() == "99"
