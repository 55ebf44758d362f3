"""Bodies that are small in bytes and large in what is in them are refused before anything looks at it one by one."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from paceline_runtime.server.body import LARGE_BODY_BYTES, take_apart
from paceline_runtime.server.errors import ApiError
from paceline_runtime.server.replica import ServerOptions
from paceline_runtime.server.request_models import ChatRequest, CompletionRequest
from paceline_runtime.server.request_parsing import parse

MESSAGES = [{"role": "user", "content": "which fox?"}]


def chat(**more: Any) -> bytes:
    return json.dumps({"model": "org/tiny", "messages": MESSAGES, **more}).encode()


def parts(count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "a"}] * count}]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (chat(**{f"a{n}": 1 for n in range(200)}), "202 fields; 128 are allowed"),
        (chat(metadata={str(n): "a" for n in range(65)}), "'metadata' has 65 entries; 64 are allowed"),
        (chat(metadata={str(n): "a" for n in range(10_001)}), "10001 members; 10000 are allowed"),
        (chat(metadata={"a": [{}] * 50_001}), "more than 50000 objects and lists"),
        (chat(metadata={"a": [[[]] * 10] * 5001}), "more than 50000 objects and lists"),
        (chat(messages=parts(50_000)), "more than 50000 objects and lists"),
        (chat(allowed_token_ids=[5] * (2**20 + 1)), "1048577 entries; 1048576 are allowed"),
        (chat(messages=[{**MESSAGES[0], **{f"a{n}": 1 for n in range(10_001)}}]), "10003 members"),
    ],
)
def test_more_than_a_request_can_mean_is_refused_with_the_bound(body: bytes, words: str) -> None:
    with pytest.raises(ApiError, match=words) as refused:
        parse(ChatRequest, body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_value")


def test_what_is_within_the_bounds_is_taken() -> None:
    parse(ChatRequest, chat(metadata={str(n): "a" for n in range(64)}))
    parse(ChatRequest, chat(messages=parts(40_000)))
    parse(CompletionRequest, json.dumps({"model": "a", "prompt": [5] * 2**20}).encode())


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("messages", 1), ("allowed_token_ids", "a"), ("stop_token_ids", "a"), ("bad_words", 1), ("tools", 1)],
)
def test_of_many_wrong_entries_the_first_is_named(field: str, wrong: Any) -> None:
    with pytest.raises(ApiError) as refused:
        parse(ChatRequest, chat(**{field: [wrong] * 100_000}))
    assert refused.value.param in (f"{field}.0", field)


async def test_more_allowed_tokens_than_the_model_has_are_refused(front_end: Any) -> None:
    async with front_end() as front:
        size = front.core.vocab_size
        for ids, status in ((list(range(size)), 200), ([*range(size), 0], 400)):
            body = {"model": "org/tiny", "messages": MESSAGES, "allowed_token_ids": ids}
            response = await front.http.post("/v1/chat/completions", json=body)
            assert response.status_code == status
        assert response.json()["error"]["param"] == "allowed_token_ids"


async def test_large_bodies_are_taken_apart_off_the_event_loop() -> None:
    here = threading.get_ident()
    assert await take_apart(b" " * LARGE_BODY_BYTES, lambda _: threading.get_ident()) == here
    assert await take_apart(b" " * (LARGE_BODY_BYTES + 1), lambda _: threading.get_ident()) != here
    with pytest.raises(ApiError, match="JSON"):
        await take_apart(b" " * (LARGE_BODY_BYTES + 1), lambda body: parse(ChatRequest, body))


def test_the_usual_body_holds_a_prompt_of_128k_tokens_with_room() -> None:
    ids = json.dumps({"model": "org/tiny", "prompt": [151_935] * 131_072}).encode()
    assert 4 * len(ids) < ServerOptions().max_body_bytes
