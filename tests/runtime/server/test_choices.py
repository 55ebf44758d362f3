"""Several answers to a prompt, log-probabilities, and the fields that steer sampling; the engine follows a script."""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import Any

import msgspec
import pytest

from paceline_runtime.messages import AddRequest, FinishReason, TokenLogprob

MESSAGES = [{"role": "user", "content": "which fox?"}]


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "org/tiny", "messages": MESSAGES, **more}


def text(prompt: Any, **more: Any) -> dict[str, Any]:
    return {"model": "org/tiny", "prompt": prompt, **more}


def strict(body: bytes) -> Any:
    """JSON as a browser reads it: no NaN, no Infinity."""
    return msgspec.json.decode(body)


def stream_of(body: str) -> list[dict[str, Any]]:
    assert body.endswith("data: [DONE]\n\n")
    return [strict(line[6:].encode()) for line in body.splitlines() if line.startswith("data: {")]


async def several(core: Any, request: AddRequest) -> None:
    """Each answer names its number; the later ones end earlier."""
    count = 1 + len(request.fork_ids)
    words = [core.encode(f"fox {n}" + " dog" * (count - n)) for n in range(count)]
    for at in range(max(map(len, words))):
        for n, ids in enumerate(words):
            if at < len(ids):
                last = at == len(ids) - 1
                core.output(
                    request, ids[at : at + 1], FinishReason.LENGTH if last else None, choice=n, num_cached_tokens=2
                )


# --- n ---


async def test_n_answers_share_one_engine_request_and_come_by_index(front_end: Any) -> None:
    async with front_end(several) as front:
        answer = await front.sdk.chat.completions.create(**chat(n=3, temperature=0))
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert [choice.message.content for choice in answer.choices] == [
            "fox 0 dog dog dog", "fox 1 dog dog", "fox 2 dog"
        ]  # fmt: skip
        [request] = front.core.requests
        assert len(request.fork_ids) == 2
        assert len({request.request_id, *request.fork_ids}) == 3


async def test_usage_counts_the_prompt_once_and_sums_the_answers(front_end: Any) -> None:
    """C169: one last event without choices, summed over n; all others have `usage: null`."""
    async with front_end(several) as front:
        body = strict((await front.http.post("/v1/chat/completions", json=chat(n=2))).content)
        usage = body["usage"]
        assert usage["prompt_tokens"] == len(front.core.requests[0].prompt_token_ids)
        made = sum(len(front.core.encode(choice["message"]["content"])) for choice in body["choices"])
        assert usage["completion_tokens"] == made
        assert usage["prompt_tokens_details"] == {"cached_tokens": 2}
        stream = await front.http.post(
            "/v1/chat/completions", json=chat(n=2, stream=True, stream_options={"include_usage": True})
        )
        *events, last = stream_of(stream.text)
        assert all(event["usage"] is None and len(event["choices"]) == 1 for event in events)
        assert (last["choices"], last["usage"]) == ([], usage)
        for n in range(2):
            mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == n]
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            assert [choice["finish_reason"] for choice in mine][-1] == "length"
            assert [choice["finish_reason"] for choice in mine].count(None) == len(mine) - 1


async def test_usage_in_every_event_grows_for_who_asks(front_end: Any) -> None:
    async with front_end() as front:
        options = {"include_usage": True, "continuous_usage_stats": True}
        response = await front.http.post("/v1/chat/completions", json=chat(stream=True, stream_options=options))
        made = [event["usage"]["completion_tokens"] for event in stream_of(response.text)]
        assert made == sorted(made)
        assert made[-1] == len(front.core.encode("the quick brown fox")) + 1


async def test_prompts_times_n_answers_are_numbered_prompt_by_prompt(front_end: Any) -> None:
    async def script(core: Any, request: AddRequest) -> None:
        for n in range(2):
            core.output(request, [request.prompt_token_ids[0], 60 + n], FinishReason.LENGTH, choice=n)

    async with front_end(script) as front:
        body = (await front.http.post("/v1/completions", json=text([[70], [80]], n=2, return_token_ids=True))).json()
        assert [choice["token_ids"] for choice in body["choices"]] == [[70, 60], [70, 61], [80, 60], [80, 61]]
        assert [choice["prompt_token_ids"] for choice in body["choices"]] == [[70], [70], [80], [80]]
        assert body["usage"]["prompt_tokens"] == 2
        refused = await front.http.post("/v1/completions", json=text(["a"] * 32, n=16))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")


async def test_answers_end_apart_and_one_stopped_by_text_stops_alone(front_end: Any, eventually: Any) -> None:
    async def script(core: Any, request: AddRequest) -> None:
        await core.say(request, "the fox")
        await core.say(request, "the dog jumps and jumps", pause=0.01, choice=1)

    async with front_end(script) as front:
        body = (await front.http.post("/v1/chat/completions", json=chat(n=2, stop="jumps"))).json()
        assert [choice["message"]["content"] for choice in body["choices"]] == ["the fox", "the dog "]
        assert [choice["stop_reason"] for choice in body["choices"]] == [None, "jumps"]
        await eventually(lambda: front.core.aborted == [front.core.requests[0].fork_ids[0]])


async def test_a_client_that_goes_away_stops_every_answer(front_end: Any, eventually: Any) -> None:
    """C134."""

    async def silent(core: Any, request: AddRequest) -> None:
        core.output(request, core.encode("fox"))

    async with front_end(silent) as front:
        asking = asyncio.create_task(front.http.post("/v1/chat/completions", json=chat(n=3)))
        await eventually(lambda: len(front.core.requests) == 1)
        asking.cancel()
        await eventually(lambda: len(front.core.aborted) == 3)
        assert front.replica.engine.open_requests == 0
        assert len(set(front.core.aborted)) == 3


# --- log-probabilities ---


def logprob(token_id: int, value: float = -0.5, top: tuple[tuple[int, float], ...] = ()) -> TokenLogprob:
    return TokenLogprob(token_id, value, 1, top)


def with_logprobs(words: str, value: float = -0.5) -> Any:
    """Answers with `words`, a token a step; each token's best alternatives are itself and 0."""

    async def script(core: Any, request: AddRequest) -> None:
        thought: list[TokenLogprob | None] = [None]
        thought += [
            logprob(token_id, -1.0, ((token_id, -1.0), (0, -math.inf))) for token_id in request.prompt_token_ids[1:]
        ]
        if request.sampling.prompt_logprobs is not None:
            for entry in thought:  # in pieces, as chunks of the prompt are computed
                core.output(request, [], prompt_logprobs=[entry])
        if request.sampling.max_tokens == 0:
            core.output(request, [], FinishReason.LENGTH)
            return
        for token_id in core.encode(words):
            if request.request_id not in core.open:
                return
            top = ((token_id, value), (0, -3.0))
            core.output(request, [token_id], logprobs=[logprob(token_id, value, top)])
        core.output(request, [core.eos], FinishReason.STOP, stop_token_id=core.eos, logprobs=[logprob(core.eos, -0.1)])

    return script


async def test_log_probabilities_of_a_chat_join_to_its_text_by_their_bytes(front_end: Any) -> None:
    """C154: a token that is part of a character has bytes and no text of its own."""
    async with front_end(with_logprobs("naïve 🎉!")) as front:
        body = strict((await front.http.post("/v1/chat/completions", json=chat(logprobs=True, top_logprobs=2))).content)
        content = body["choices"][0]["logprobs"]["content"]
        assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "naïve 🎉!"
        assert all(len(entry["top_logprobs"]) == 2 for entry in content)
        assert any(entry["token"].startswith("bytes:\\x") for entry in content)
        stream = await front.http.post("/v1/chat/completions", json=chat(logprobs=True, top_logprobs=2, stream=True))
        streamed = [
            entry
            for event in stream_of(stream.text)
            for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
        ]
        assert streamed == content
        answer = await front.sdk.chat.completions.create(**chat(logprobs=True))
        assert answer.choices[0].logprobs.content[0].top_logprobs == []  # C175
        assert front.core.requests[-1].sampling.logprobs == 0


async def test_text_that_a_stop_string_takes_away_takes_its_log_probabilities_along(front_end: Any) -> None:
    async with front_end(with_logprobs("the quick brown fox")) as front:
        for stream in (False, True):
            response = await front.http.post(
                "/v1/chat/completions", json=chat(logprobs=True, stop="brown", stream=stream)
            )
            choices = (
                [event["choices"][0] for event in stream_of(response.text)] if stream else response.json()["choices"]
            )
            shown = [
                byte
                for choice in choices
                for entry in (choice["logprobs"] or {"content": []})["content"]
                for byte in entry["bytes"]
            ]
            # A token that is shown in part is there.
            assert bytes(shown).startswith(b"the quick ")
            assert b"the quick brown".startswith(bytes(shown))


async def test_minus_infinity_is_no_part_of_json(front_end: Any) -> None:
    """C153."""
    async with front_end(with_logprobs("fox", -math.inf)) as front:
        body = strict((await front.http.post("/v1/chat/completions", json=chat(logprobs=True, top_logprobs=2))).content)
        assert body["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


async def test_completions_echo_their_prompt_with_its_log_probabilities(front_end: Any) -> None:
    """C143, C162."""
    async with front_end(with_logprobs(" fox")) as front:
        for max_tokens, ending in ((0, ""), (5, " fox")):
            request = text("the dog", echo=True, logprobs=1, max_tokens=max_tokens)
            body = strict((await front.http.post("/v1/completions", json=request)).content)
            [choice] = body["choices"]
            assert choice["text"] == "the dog" + ending
            columns = choice["logprobs"]
            assert "".join(columns["tokens"]) == "the dog" + ending
            assert len({len(column) for column in columns.values()}) == 1
            assert (columns["token_logprobs"][0], columns["top_logprobs"][0]) == (None, None)
            assert all(value is not None for value in columns["token_logprobs"][1:])
            assert [choice["text"][at:][: len(name)] for at, name in zip(
                columns["text_offset"], columns["tokens"], strict=True
            )] == columns["tokens"]  # fmt: skip
            stream = await front.http.post("/v1/completions", json={**request, "stream": True})
            pieces = [event["choices"][0] for event in stream_of(stream.text)]
            assert "".join(piece["text"] for piece in pieces) == choice["text"]
            for name, column in columns.items():
                assert [value for piece in pieces if piece["logprobs"] for value in piece["logprobs"][name]] == column
            assert body["usage"]["completion_tokens"] == (0 if max_tokens == 0 else len(front.core.encode(" fox")) + 1)
        assert front.core.requests[0].sampling.prompt_logprobs == 1


async def test_prompt_log_probabilities_have_vllms_form(front_end: Any) -> None:
    """C160: as many as the prompt has tokens, the first `null`."""
    async with front_end(with_logprobs("fox")) as front:
        body = strict((await front.http.post("/v1/completions", json=text("the dog", prompt_logprobs=2))).content)
        entries = body["choices"][0]["prompt_logprobs"]
        assert len(entries) == len(front.core.requests[0].prompt_token_ids)
        assert entries[0] is None
        chosen = entries[1][str(front.core.requests[0].prompt_token_ids[1])]
        assert (chosen["logprob"], chosen["rank"]) == (-1.0, 1)
        assert entries[1]["0"]["logprob"] == -9999.0
        body = strict((await front.http.post("/v1/chat/completions", json=chat(prompt_logprobs=0))).content)
        assert all(len(entry) == 1 for entry in body["prompt_logprobs"][1:])


@pytest.mark.parametrize("logprobs", [True, 21, -1, "1"])
async def test_completions_take_a_number_of_log_probabilities(front_end: Any, logprobs: Any) -> None:
    """C175."""
    async with front_end() as front:
        response = await front.http.post("/v1/completions", json=text("a", logprobs=logprobs))
        assert (response.status_code, response.json()["error"]["param"]) == (400, "logprobs")


async def test_token_ids_come_to_who_asks(front_end: Any) -> None:
    async with front_end() as front:
        body = (await front.http.post("/v1/chat/completions", json=chat(return_token_ids=True))).json()
        want = [*front.core.encode("the quick brown fox"), front.core.eos]
        assert body["choices"][0]["token_ids"] == want
        assert body["prompt_token_ids"] == front.core.requests[0].prompt_token_ids
        stream = await front.http.post("/v1/chat/completions", json=chat(return_token_ids=True, stream=True))
        events = stream_of(stream.text)
        assert [token for event in events for token in event["choices"][0].get("token_ids", ())] == want
        assert events[0]["prompt_token_ids"] == body["prompt_token_ids"]


# --- what steers sampling ---


async def test_fields_that_steer_sampling_reach_the_engine(front_end: Any) -> None:
    async with front_end() as front:
        more = {
            "presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.2, "logit_bias": {"7": -100},
            "allowed_token_ids": [5, 6], "min_tokens": 2, "max_tokens": 9, "seed": 0, "stop_token_ids": [8],
        }  # fmt: skip
        assert (await front.http.post("/v1/chat/completions", json=chat(**more))).status_code == 200
        sampling = front.core.requests[0].sampling
        assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -1, 1.2)
        assert (sampling.logit_bias, sampling.allowed_token_ids) == ({7: -100.0}, (5, 6))
        assert (sampling.min_tokens, sampling.seed, sampling.logprobs, sampling.prompt_logprobs) == (2, 0, None, None)


async def test_bad_words_are_forbidden_as_beginnings_and_after_a_blank(front_end: Any) -> None:
    async with front_end() as front:
        await front.http.post("/v1/chat/completions", json=chat(bad_words=["fox", " dog"]))
        encode = front.core.encode
        assert set(front.core.requests[0].sampling.bad_words) == {
            tuple(encode(word)) for word in ("fox", " fox", "dog", " dog")
        }


async def test_a_stop_string_may_be_shown_and_waits_for_the_least_tokens(front_end: Any) -> None:
    async with front_end() as front:
        shown = await front.sdk.chat.completions.create(
            **chat(stop="quick"), extra_body={"include_stop_str_in_output": True}
        )
        assert shown.choices[0].message.content == "the quick"
        least = len(front.core.encode("the quick"))
        later = await front.sdk.chat.completions.create(**chat(stop=["quick", "fox"]), extra_body={"min_tokens": least})
        assert later.choices[0].message.content == "the quick brown "


async def test_special_tokens_and_stop_tokens_are_shown_to_who_asks(front_end: Any) -> None:
    async def script(core: Any, request: AddRequest) -> None:
        start = core.encode("<|im_start|>")
        core.output(request, [*core.encode("fox"), *start])
        core.output(request, start, FinishReason.STOP, stop_token_id=start[0])

    async with front_end(script) as front:
        [start] = front.core.encode("<|im_start|>")
        for more, want in (
            ({}, "fox"),
            ({"skip_special_tokens": False}, "fox<|im_start|>"),
            ({"skip_special_tokens": False, "include_stop_str_in_output": True}, "fox<|im_start|><|im_start|>"),
        ):
            body = (await front.http.post("/v1/chat/completions", json=chat(stop_token_ids=[start], **more))).json()
            assert body["choices"][0]["message"]["content"] == want
            assert body["choices"][0]["stop_reason"] == start


async def test_who_asks_and_how_urgently_reaches_the_engine(front_end: Any) -> None:
    async with front_end() as front:
        headers = {
            "x-paceline-tenant": "blue", "x-paceline-session": "s1", "x-paceline-priority": "high",
            "x-paceline-deadline-ms": "60000",
        }  # fmt: skip
        before = time.monotonic()
        await front.http.post("/v1/chat/completions", json=chat(priority=5, cache_salt="pepper"), headers=headers)
        await front.http.post("/v1/chat/completions", json=chat(priority=5))
        first, second = front.core.requests
        assert (first.tenant, first.session, first.priority, first.cache_salt) == ("blue", "s1", -1, "pepper")
        assert before + 60 <= first.deadline <= time.monotonic() + 60
        assert (second.tenant, second.priority, second.deadline, second.cache_salt) == ("", 5, None, "")
        refused = await front.http.post("/v1/chat/completions", json=chat(), headers={"x-paceline-priority": "urgent"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-paceline-priority")
        assert "high, normal, low" in refused.json()["error"]["message"]


async def test_an_event_is_always_one_line_of_strict_json(front_end: Any) -> None:
    async with front_end(with_logprobs('quote " back \\ line \n é')) as front:
        response = await front.http.post("/v1/chat/completions", json=chat(stream=True, logprobs=True, n=1))
        for block in response.text.removesuffix("\n\n").split("\n\n"):
            assert block.startswith("data: ")
            assert "\n" not in block
            if block != "data: [DONE]":
                json.loads(block[6:], parse_constant=lambda name: pytest.fail(name))
