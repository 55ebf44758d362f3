"""Long texts: the event loop goes on while they are tokenised, and there is a bound to each and to all of them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from paceline_runtime.server import prompt_encoding
from paceline_runtime.server.errors import ApiError
from paceline_runtime.server.prompt_encoding import PromptEncoder
from paceline_runtime.server.tokenizer import Tokenizer

PIECES = st.sampled_from(
    ["the quick ", "fox", "  ", "\n", "日本語", "🎉", "<|im_end|>", "e\u0301", "\x00", "1234567890"]
)


@pytest.fixture(scope="module")
def backend(tiny_folder: Any) -> Backend:
    return Backend.from_file(str(tiny_folder / "tokenizer.json"))


@settings(max_examples=40)
@given(pieces=st.lists(PIECES, min_size=1, max_size=20), times=st.integers(1, 60))
def test_long_texts_have_the_tokens_that_short_calls_give_them(
    tiny_tokenizer: Tokenizer, backend: Backend, pieces: list[str], times: int
) -> None:
    text = "".join(pieces) * times
    ids = backend.encode(text).ids
    assert tiny_tokenizer.encode(text) == ids
    assert tiny_tokenizer.encode(text, add_special_tokens=False) == backend.encode(text, add_special_tokens=False).ids
    assert tiny_tokenizer.decode(ids) == backend.decode(ids, skip_special_tokens=True)
    assert tiny_tokenizer.decode_all(ids) == backend.decode(ids, skip_special_tokens=False)


def test_other_threads_run_while_a_long_text_is_tokenised(tiny_tokenizer: Tokenizer) -> None:
    # The lock is held for far longer than it takes a thread to count to five, if it is held.
    done, counted = threading.Event(), []
    text = "the quick brown fox jumps over the lazy dog " * 20_000

    def encode() -> None:
        tiny_tokenizer.encode(text)
        done.set()

    worker = threading.Thread(target=encode)
    worker.start()
    while not done.wait(0.001):
        counted.append(1)
    worker.join()
    assert len(counted) > 5


async def test_the_event_loop_goes_on_while_long_texts_are_tokenised(
    front_end: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with front_end() as front:
        ticked = threading.Event()
        encode = front.replica.tokenizer.encode

        def waits_for_the_loop(text: str, **more: Any) -> list[int]:
            assert ticked.wait(10), "the event loop stands still"
            return encode(text, **more)

        monkeypatch.setattr(front.replica.tokenizer, "encode", waits_for_the_loop)
        asking = asyncio.create_task(front.http.post("/tokenize", json={"prompt": "fox " * 2000}))
        await asyncio.sleep(0.05)
        assert not asking.done()
        ticked.set()
        assert (await asking).json()["tokens"] == encode("fox " * 2000)


async def test_tokenize_refuses_texts_far_beyond_the_model(front_end: Any) -> None:
    async with front_end() as front:
        most = 4 * 256 * front.replica.tokenizer.longest_token_chars
        assert (await front.http.post("/tokenize", json={"prompt": "a" * most})).status_code == 200
        for body, param in (
            ({"prompt": "a" * (most + 1)}, "prompt"),
            ({"messages": [{"role": "user", "content": "a" * most}]}, "messages"),
        ):
            response = await front.http.post("/tokenize", json=body)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == param
            assert "characters" in response.json()["error"]["message"]


async def test_detokenize_takes_a_million_tokens_and_no_more(front_end: Any) -> None:
    async with front_end() as front:
        response = await front.http.post("/detokenize", json={"tokens": [5] * 1_000_000})
        assert response.json()["prompt"] == front.replica.tokenizer.decode_all([5]) * 1_000_000
        response = await front.http.post("/detokenize", json={"tokens": [5] * 1_000_001})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tokens")


async def test_large_texts_run_one_at_a_time_and_only_so_many_wait(
    front_end: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_encoding, "MAX_WAITING_CHARS", 3 * 300_000)
    async with front_end() as front:
        encoder = PromptEncoder(front.replica)
        running, most, go = 0, 0, threading.Event()

        def work() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            assert go.wait(10)
            running -= 1

        large = [asyncio.create_task(encoder.off_loop(300_000, work)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as refused:
            await encoder.off_loop(300_000, work)
        assert (refused.value.status, "retry-after" in refused.value.headers) == (503, True)
        assert await encoder.off_loop(5000, lambda: "small ones need not wait") == "small ones need not wait"
        go.set()
        await asyncio.gather(*large)
        assert most == 1
        await encoder.off_loop(300_000, lambda: None)
