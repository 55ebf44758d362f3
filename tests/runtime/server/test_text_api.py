"""Text completions, models and tokens over HTTP; the engine follows a script."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai_wire import ANSWER, MESSAGES, Strict, Usage, chat, error_of, events


class TextChoice(Strict):
    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: None
    stop_reason: str | int | None = None


class Text(Strict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    system_fingerprint: str


class TextChunk(Strict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    system_fingerprint: str


async def test_completions_take_text_and_token_ids_one_or_many(front_end: Any) -> None:
    async with front_end() as front:
        ids = front.core.encode("the lazy dog")
        for prompt, prompts in (
            ("the lazy dog", [ids]),
            (ids, [ids]),
            (["the lazy dog", "fox"], [ids, front.core.encode("fox")]),
            ([ids, ids[:1]], [ids, ids[:1]]),
        ):
            front.core.requests.clear()
            response = await front.http.post("/v1/completions", json={"model": "org/tiny", "prompt": prompt})
            body = Text.model_validate_json(response.content)
            assert [request.prompt_token_ids for request in front.core.requests] == prompts
            assert [choice.index for choice in body.choices] == list(range(len(prompts)))
            assert body.usage.prompt_tokens == sum(map(len, prompts))
            assert all(choice.text == ANSWER for choice in body.choices)
            stream = await front.http.post(
                "/v1/completions", json={"model": "org/tiny", "prompt": prompt, "stream": True}
            )
            chunks = [TextChunk.model_validate_json(item) for item in events(stream.text)[:-1]]
            for n in range(len(prompts)):
                mine = [choice for chunk in chunks for choice in chunk.choices if choice.index == n]
                assert "".join(choice.text for choice in mine) == ANSWER
                assert [choice.finish_reason for choice in mine if choice.finish_reason] == ["stop"]


@pytest.mark.parametrize("prompt", ["", [], [[]], ["", ""], [""], [1, "a"], [1.5], [True], 5, [[1], "a"], ["a"] * 100])
async def test_prompts_that_are_none_are_refused(front_end: Any, prompt: Any) -> None:
    async with front_end() as front:
        response = await front.http.post("/v1/completions", json={"model": "org/tiny", "prompt": prompt, "echo": True})
        assert response.status_code == 400
        assert (error_of(response).param or "").startswith("prompt")
        assert front.core.requests == []


@pytest.mark.parametrize("token_id", [-1, 384, 99_999_999, 2**70])
async def test_token_ids_outside_the_vocabulary_are_refused_with_the_range(front_end: Any, token_id: int) -> None:
    async with front_end() as front:
        body = json.dumps({"model": "org/tiny", "prompt": [1, token_id]})
        response = await front.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400
        assert front.core.requests == []


async def test_max_tokens_zero_with_echo_gives_the_prompt_back(front_end: Any) -> None:
    async with front_end() as front:
        request = {"model": "org/tiny", "prompt": "abc", "max_tokens": 0, "echo": True}
        body = Text.model_validate_json((await front.http.post("/v1/completions", json=request)).content)
        assert (body.choices[0].text, body.choices[0].finish_reason) == ("abc", "length")
        assert body.usage.completion_tokens == 0
        stream = await front.http.post("/v1/completions", json={**request, "stream": True})
        chunks = [TextChunk.model_validate_json(item) for item in events(stream.text)[:-1]]
        assert "".join(chunk.choices[0].text for chunk in chunks) == "abc"
        assert chunks[-1].choices[0].finish_reason == "length"
        refused = await front.http.post("/v1/completions", json={**request, "echo": False})
        assert (refused.status_code, error_of(refused).param) == (400, "max_tokens")
        assert front.core.requests == []


async def test_echo_shows_the_prompt_before_the_answer(front_end: Any) -> None:
    async with front_end() as front:
        answer = await front.sdk.completions.create(model="org/tiny", prompt="dog: ", echo=True)
        assert answer.choices[0].text == "dog: " + ANSWER


async def test_models_are_listed_and_found_by_ids_with_slashes(front_end: Any) -> None:
    async with front_end() as front:
        listed = await front.sdk.models.list()
        assert [model.id for model in listed.data] == ["org/tiny"]
        assert (await front.sdk.models.retrieve("org/tiny")).id == "org/tiny"
        one = await front.http.get("/v1/models/org/tiny")
        assert one.json() == (await front.http.get("/v1/models/org%2Ftiny")).json()
        for path in ("a%20b", "..%2Fadmin", "", "org", "org/tiny/"):
            response = await front.http.get(f"/v1/models/{path}")
            assert response.status_code == 404
            assert error_of(response).code == "model_not_found"


async def test_an_unknown_model_is_a_404_that_the_sdk_knows(front_end: Any) -> None:
    async with front_end() as front:
        with pytest.raises(openai.NotFoundError) as caught:
            await front.sdk.chat.completions.create(model="gpt-x", messages=MESSAGES)
        assert caught.value.code == "model_not_found"
        response = await front.http.post("/v1/completions", json={"model": "gpt-x", "prompt": "a"})
        assert (response.status_code, error_of(response).param) == (404, "model")


async def test_tokenize_and_detokenize_are_each_others_inverse(front_end: Any) -> None:
    async with front_end() as front:
        text = "naïve <|im_end|> 日本語"
        tokens = (await front.http.post("/tokenize", json={"prompt": text})).json()
        assert tokens["count"] == len(tokens["tokens"])
        assert tokens["max_model_len"] == 256
        back = await front.http.post("/detokenize", json={"tokens": tokens["tokens"]})
        assert back.json() == {"prompt": text}
        chat_tokens = (await front.http.post("/tokenize", json={"messages": MESSAGES})).json()
        await front.sdk.chat.completions.create(**chat())
        assert chat_tokens["tokens"] == front.core.requests[0].prompt_token_ids
        for body in ({}, {"prompt": "a", "messages": MESSAGES}):
            assert (await front.http.post("/tokenize", json=body)).status_code == 400
        assert (await front.http.post("/detokenize", json={"tokens": [-1]})).status_code == 400
