"""The unmodified OpenAI SDK and strict schemas against the front end; the engine follows a script."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai_wire import ANSWER, MESSAGES, Strict, Usage, chat, error_of, events

from paceline_router.wire.usage import usage_of
from paceline_runtime.messages import AddRequest, RejectCode, Rejected
from paceline_runtime.server.other_fields import LABELS, NEUTRAL
from paceline_runtime.server.request_models import ChatRequest, CompletionRequest


class Message(Strict):
    role: Literal["assistant"]
    content: str
    refusal: None


class Choice(Strict):
    index: int
    message: Message
    finish_reason: Literal["stop", "length"]
    logprobs: None
    stop_reason: str | int | None


class Chat(Strict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    system_fingerprint: str


class Delta(Strict):
    role: Literal["assistant"] = "assistant"
    content: str = ""


class ChunkChoice(Strict):
    index: int
    delta: Delta
    finish_reason: Literal["stop", "length"] | None
    logprobs: None
    stop_reason: str | int | None = None


class Chunk(Strict):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str


class ChunkWithUsage(Chunk):
    usage: Usage | None


async def test_a_chat_completion_has_every_field_of_the_schema(front_end: Any) -> None:
    async with front_end() as front:
        response = await front.http.post("/v1/chat/completions", json=chat())
        body = Chat.model_validate_json(response.content)
        assert body.choices[0].message.content == ANSWER
        assert body.choices[0].finish_reason == "stop"
        assert body.usage.completion_tokens == len(front.core.encode(ANSWER)) + 1
        assert body.usage.prompt_tokens == len(front.core.requests[0].prompt_token_ids)
        assert body.id == f"chatcmpl-{response.headers['x-request-id']}"
        answer = await front.sdk.chat.completions.create(**chat())
        assert answer.choices[0].message.content == ANSWER


async def test_a_stream_has_role_first_text_as_it_is_made_and_done_last(front_end: Any) -> None:
    async with front_end() as front:
        response = await front.http.post("/v1/chat/completions", json=chat(stream=True))
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        *data, done = events(response.text)
        chunks = [Chunk.model_validate_json(item) for item in data]
        assert done == "[DONE]"
        assert json.loads(data[0])["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(chunk.choices[0].delta.content for chunk in chunks) == ANSWER
        assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
        text = ""
        async for chunk in await front.sdk.chat.completions.create(**chat(stream=True)):
            text += chunk.choices[0].delta.content or ""
        assert text == ANSWER


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_usage_is_sent_only_to_those_who_ask(front_end: Any, options: Any) -> None:
    async with front_end() as front:
        response = await front.http.post("/v1/chat/completions", json=chat(stream=True, stream_options=options))
        for item in events(response.text)[:-1]:
            assert len(Chunk.model_validate_json(item).choices) == 1


async def test_a_router_is_told_the_tokens_of_every_stream_in_a_line_that_clients_pass_over(front_end: Any) -> None:
    routed = {"x-paceline-request-id": "r-1"}
    async with front_end() as front:

        async def stream(headers: dict[str, str], **more: Any) -> str:
            body = chat(stream=True, **more)
            return str((await front.http.post("/v1/chat/completions", json=body, headers=headers)).text)

        told, alone = await stream(routed), await stream({})
        *rest, said, done, _ = told.split("\n\n")
        assert done == "data: [DONE]"
        assert said.startswith(": {")
        made = len(front.core.encode(ANSWER)) + 1
        prompt = len(front.core.requests[0].prompt_token_ids)
        assert usage_of(told.encode()) == (prompt, made)
        assert all(block.startswith("data: ") for block in rest)
        assert usage_of(alone.encode()) is None
        asked = await stream(routed, stream_options={"include_usage": True})
        assert asked.count('"completion_tokens"') == 1
        text = ""
        async for chunk in await front.sdk.chat.completions.create(**chat(stream=True), extra_headers=routed):
            text += chunk.choices[0].delta.content or ""
        assert text == ANSWER


async def test_the_usage_event_has_no_choices_and_comes_once_before_done(front_end: Any) -> None:
    async with front_end() as front:
        response = await front.http.post(
            "/v1/chat/completions", json=chat(stream=True, stream_options={"include_usage": True})
        )
        *data, last, done = [*events(response.text)]
        assert done == "[DONE]"
        assert all(ChunkWithUsage.model_validate_json(item).usage is None for item in data)
        closing = ChunkWithUsage.model_validate_json(last)
        assert closing.choices == []
        assert closing.usage is not None
        assert closing.usage.total_tokens == closing.usage.prompt_tokens + closing.usage.completion_tokens


async def test_stream_options_without_stream_are_refused(front_end: Any) -> None:
    async with front_end() as front:
        response = await front.http.post("/v1/chat/completions", json=chat(stream_options={"include_usage": True}))
        error = error_of(response)
        assert (response.status_code, error.param, error.code) == (400, "stream_options", "invalid_value")


async def test_null_is_the_same_as_absent(front_end: Any) -> None:
    """C163: of every field that there is."""
    given = {"model", "messages", "prompt", "stream_options"}
    async with front_end() as front:
        for path, model, base in (
            ("/v1/chat/completions", ChatRequest, {"messages": MESSAGES}),
            ("/v1/completions", CompletionRequest, {"prompt": "a"}),
        ):
            front.core.requests.clear()
            nulls = dict.fromkeys({*model.model_fields, *LABELS, *NEUTRAL} - given)
            for more in ({}, nulls, {"stream": True, "stream_options": {"include_usage": None}}):
                response = await front.http.post(path, json={"model": "org/tiny", **base, **more})
                assert response.status_code == 200
            first, *others = front.core.requests
            assert all(request.sampling == first.sampling for request in others)


async def test_sampling_reaches_the_engine_as_asked(front_end: Any) -> None:
    async with front_end() as front:
        await front.sdk.chat.completions.create(
            **chat(max_completion_tokens=3, temperature=0, top_p=0.5, seed=-1, stop="xyz"),
            extra_body={"top_k": -1, "min_p": 0.1, "stop_token_ids": [5], "ignore_eos": True},
        )
        sampling = front.core.requests[0].sampling
        assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.seed) == (3, 0, 0.5, -1)
        assert (sampling.top_k, sampling.min_p, sampling.stop_token_ids, sampling.ignore_eos) == (0, 0.1, (5,), True)
        await front.sdk.completions.create(model="org/tiny", prompt="the")
        assert front.core.requests[1].sampling.max_tokens == 16


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"prompt_logprobs": 5, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"999999999": 5}}, "logit_bias"),
        ({"logit_bias": {"-1": 5}}, "logit_bias"),
        ({"logit_bias": {"abc": 5}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"05": 1, "5": 2}}, "logit_bias"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [384]}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words.0"),
        ({"bad_words": [" "]}, "bad_words.0"),
        ({"bad_words": "fox"}, "bad_words"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": 1.5}, "priority"),
        ({"user": 5}, "user"),
        ({"metadata": "a"}, "metadata"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"unheard_of": 1}}, "chat_template_kwargs.unheard_of"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"echo": True}, "echo"),
        ({"max_token": 5}, "max_token"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 10_000}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop_token_ids": [1_000_000]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": "a", "colour": "red"}]}, "messages.0.colour"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages.0.tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages.0.tool_calls"),
        ({"messages": [{"role": "assistant", "refusal": {}}]}, "messages.0.refusal"),
    ],
)  # fmt: skip
async def test_what_cannot_be_honoured_is_refused_by_its_name(front_end: Any, more: Any, param: str) -> None:
    async with front_end() as front:
        response = await front.http.post("/v1/chat/completions", json=chat(**more))
        assert response.status_code == 400
        assert error_of(response).param == param
        assert error_of(response).type == "invalid_request_error"
        assert front.core.requests == []
        with pytest.raises(openai.BadRequestError):
            await front.sdk.chat.completions.create(**chat(), extra_body=more)


async def test_values_that_ask_for_nothing_are_accepted(front_end: Any) -> None:
    async with front_end() as front:
        answer = await front.sdk.chat.completions.create(
            **chat(n=1, user="someone", presence_penalty=0, frequency_penalty=0.0, logprobs=False, store=False),
            response_format={"type": "text"},
            logit_bias={},
            metadata={"a": "b"},
            tool_choice="none",
        )
        assert answer.choices[0].message.content == ANSWER


async def test_histories_with_empty_null_and_list_content_work(front_end: Any) -> None:
    history = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": None, "annotations": None},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None, "refusal": "I will not"},
        {"role": "user", "content": "go on"},
        {"role": "user", "content": "please"},
    ]
    async with front_end() as front:
        response = await front.http.post("/v1/chat/completions", json=chat(messages=history))
        assert response.status_code == 200
        prompt = front.replica.tokenizer.decode_all(front.core.requests[0].prompt_token_ids)
        assert "<|im_start|>assistant\nI will not<|im_end|>" in prompt
        assert prompt.startswith("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\none\ntwo<|im_end|>\n")


async def test_a_refusal_of_the_template_is_a_400_with_its_words(front_end: Any) -> None:
    async with front_end() as front:
        response = await front.http.post(
            "/v1/chat/completions", json=chat(messages=[{"role": "tool", "content": "5", "tool_call_id": "1"}])
        )
        assert response.status_code == 400
        assert "this model knows no tools" in error_of(response).message


async def test_a_prompt_that_is_too_long_has_the_code_agents_wait_for(front_end: Any) -> None:
    async with front_end() as front:
        many = [{"role": "user", "content": "a"}] * 100_000
        response = await front.http.post("/v1/chat/completions", json=chat(messages=many))
        assert (response.status_code, error_of(response).code) == (400, "context_length_exceeded")
        for content in ("fox " * 2000, "x" * 200_000):
            for stream in (False, True):
                response = await front.http.post(
                    "/v1/chat/completions",
                    json=chat(messages=[{"role": "user", "content": content}], stream=stream),
                )
                error = error_of(response)
                assert response.status_code == 400
                assert (error.code, error.param) == ("context_length_exceeded", "messages")
        response = await front.http.post("/v1/completions", json={"model": "org/tiny", "prompt": [5] * 256})
        assert (error_of(response).code, error_of(response).param) == ("context_length_exceeded", "prompt")
        response = await front.http.post("/v1/completions", json={"model": "org/tiny", "prompt": [5] * 255})
        assert response.status_code == 200


@pytest.mark.parametrize(
    ("code", "status", "name"),
    [
        (RejectCode.CONTEXT_LENGTH, 400, "context_length_exceeded"),
        (RejectCode.INVALID, 400, "invalid_value"),
        (RejectCode.QUEUE_FULL, 503, "queue_full"),
        (RejectCode.TENANT_LIMIT, 429, "tenant_queue_full"),
        (RejectCode.DEADLINE, 504, "deadline_exceeded"),
        (RejectCode.DRAINING, 503, "draining"),
    ],
)
async def test_what_the_engine_refuses_has_its_status_streamed_or_not(
    front_end: Any, code: RejectCode, status: int, name: str | None
) -> None:
    async def refuse(core: Any, request: AddRequest) -> None:
        core.send(Rejected(request.request_id, "no room", code))

    async with front_end(refuse) as front:
        for stream in (False, True):
            response = await front.http.post("/v1/chat/completions", json=chat(stream=stream))
            assert response.status_code == status
            assert (error_of(response).message, error_of(response).code) == ("no room", name)
            assert ("retry-after" in response.headers) == (status in (429, 503))
            assert response.headers.get("x-should-retry") == ("false" if status == 504 else None)
        assert front.replica.engine.open_requests == 0
        assert front.core.aborted == []


async def test_stop_strings_end_the_answer_and_the_engines_work(front_end: Any) -> None:
    async def long(core: Any, request: AddRequest) -> None:
        await core.say(request, "seven wizards make toxic brew " * 5, pause=0.01)

    async with front_end(long) as front:
        for stop, want in (("ds make t", "seven wizar"), (["brew", "toxic"], "seven wizards make ")):
            answer = await front.sdk.chat.completions.create(**chat(stop=stop))
            assert answer.choices[0].message.content == want
            assert answer.choices[0].finish_reason == "stop"
            stream = await front.sdk.chat.completions.create(**chat(stop=stop, stream=True))
            pieces = [chunk.choices[0] async for chunk in stream]
            assert "".join(piece.delta.content or "" for piece in pieces) == want
            assert pieces[-1].finish_reason == "stop"
        assert sorted(front.core.aborted) == sorted(request.request_id for request in front.core.requests)


async def test_a_held_back_beginning_of_a_stop_string_is_shown_when_the_answer_ends(front_end: Any) -> None:
    async with front_end() as front:
        answer = await front.sdk.chat.completions.create(**chat(stop=["fox!"]))
        assert answer.choices[0].message.content == ANSWER


async def test_max_tokens_ends_with_length(front_end: Any) -> None:
    async with front_end() as front:
        answer = await front.sdk.chat.completions.create(**chat(max_tokens=2))
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2


async def test_the_sdk_asks_once_where_asking_again_is_of_no_use(front_end: Any) -> None:
    """C183."""

    async def late(core: Any, request: AddRequest) -> None:
        core.send(Rejected(request.request_id, "too late", RejectCode.DEADLINE))

    async with front_end(late) as front:
        sdk = front.sdk.with_options(max_retries=2)
        with pytest.raises(openai.InternalServerError):
            await sdk.chat.completions.create(**chat())
        assert len(front.core.requests) == 1
        before = front.replica.engine.load().sequence
        with pytest.raises(openai.InternalServerError) as caught:
            await sdk.embeddings.create(model="org/tiny", input="a")
        assert caught.value.status_code == 501
        assert front.replica.engine.load().sequence == before + 2  # one answer took the number between
