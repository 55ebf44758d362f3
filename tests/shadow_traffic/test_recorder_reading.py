"""What a pair says, read from the bytes of both answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_shadow_traffic.answers import Answer, Mode, ToolCall
from paceline_shadow_traffic.pair import Heard, batch, read_batch
from paceline_shadow_traffic.reading import answer_of, asked_of, failure_of, times_of


def test_a_stream_and_a_whole_answer_say_the_same(told: Any) -> None:
    assert answer_of(told.streamed("one ", "two"), told.CHAT) == answer_of(told.whole("one two"), told.CHAT)


def test_tool_calls_are_put_together_from_their_pieces(told: Any) -> None:
    deltas = [
        {"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 1, "function": {"name": "see", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
    ]
    raw = b"".join(b"data: %b\n\n" % json.dumps({"choices": [{"delta": delta}]}).encode() for delta in deltas)
    answer = answer_of(Heard(200, "", True, [(0.1, raw)], 0.2), told.CHAT)
    assert answer is not None
    assert answer.tool_calls == (ToolCall("look", '{"a":1}'), ToolCall("see", "{}"))
    calls = [{"function": {"name": "look", "arguments": '{"a":1}'}}, {"function": {"name": "see", "arguments": "{}"}}]
    again = answer_of(told.whole("", tool_calls=calls), told.CHAT)
    assert again is not None
    assert again.tool_calls == answer.tool_calls


def test_completions_are_read_as_well() -> None:
    heard = Heard(200, "", False, [(0.1, b'{"choices": [{"text": "yes", "finish_reason": "length"}]}')], 0.1)
    assert answer_of(heard, "/v1/completions") == Answer("yes", finish_reason="length")


def test_a_stream_that_ends_with_an_error_is_no_answer(told: Any) -> None:
    good = told.streamed("one")
    bad = Heard(200, "", True, [*good.pieces[:1], (0.3, b'data: {"error": {"message": "x"}}\n\n')], 0.3)
    assert answer_of(bad, told.CHAT) is None


@pytest.mark.parametrize(
    "raw", [b"", b"no json", b"[]", b'{"choices": []}', b'{"choices": [3]}', b"\xff\xfe", b"[" * 100_000]
)
@pytest.mark.parametrize("stream", [True, False])
def test_what_is_no_answer_is_not_known(raw: bytes, stream: bool, told: Any) -> None:
    raw = b"data: %b\n\n" % raw if stream else raw
    assert answer_of(Heard(200, "", stream, [(0.1, raw)], 0.1), told.CHAT) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "choices",
                        "message",
                        "delta",
                        "tool_calls",
                        "function",
                        "content",
                        "usage",
                        "n",
                        "temperature",
                        "response_format",
                        "json_schema",
                        "schema",
                        "tools",
                        "name",
                        "index",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_whatever_a_server_or_client_writes_is_read_without_an_error(value: Any) -> None:
    raw = json.dumps(value).encode()
    for stream, data in ((False, raw), (True, b"data: %b\n\n" % raw)):
        heard = Heard(200, "", stream, [(0.1, data)], 0.2)
        for path in ("/v1/chat/completions", "/v1/completions"):
            answer_of(heard, path)
        times_of(heard)
    if isinstance(value, dict):
        asked_of(value)


def test_times_of_a_stream_are_to_its_first_token_and_between_the_others(told: Any) -> None:
    times = times_of(told.streamed("a", "b", "c", gap=0.02, first=0.1))
    assert times is not None
    assert (times.ttft, times.tokens) == (0.1, 3)
    assert times.tpot == pytest.approx(0.02)
    assert times_of(told.whole("a")) is None


@pytest.mark.parametrize(
    ("body", "mode"),
    [
        ({"temperature": 0}, Mode.REPLAYED),
        ({"temperature": 0.0, "seed": 3}, Mode.REPLAYED),
        ({}, Mode.SAMPLED),
        ({"temperature": None}, Mode.SAMPLED),
        ({"temperature": 0.7, "seed": 3}, Mode.SAMPLED),
        ({"temperature": 0, "n": 2}, None),
    ],
)
def test_only_greedy_requests_are_compared_token_for_token(body: dict[str, Any], mode: Mode | None) -> None:
    asked = asked_of(body)
    assert (None if asked is None else asked.mode) is mode


def test_what_failed_is_said_in_a_word() -> None:
    assert failure_of(Heard(0, "timeout", False, [], 1.0)) == "timeout"
    assert failure_of(Heard(503, "", False, [], 1.0)) == "status 5xx"
    assert failure_of(Heard(200, "", False, [], 1.0)) is None


def test_a_batch_of_encoded_pairs_is_read_as_it_was(told: Any) -> None:
    import msgspec

    pairs = [told.pair(number, told.whole("a"), told.streamed("b")) for number in range(20)]
    assert read_batch(batch([msgspec.msgpack.encode(one) for one in pairs])) == pairs
