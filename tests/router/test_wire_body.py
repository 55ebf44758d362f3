"""What the router reads of a request's body, and that the engine reads the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_router.shape.asked import COMPLETIONS, text_of
from paceline_router.wire.answers import Refusal
from paceline_router.wire.requests import Body, body_for, parse_body
from paceline_runtime.server.errors import ApiError
from paceline_runtime.server.request_parsing import json_object

CHATS = b"/v1/chat/completions"
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":64,"n":2,"stream":true,"tools":[]}'


def test_what_routing_needs_is_read_and_texts_stay_as_they_came() -> None:
    body = parse_body(CHAT)
    assert (body.model, body.max_tokens, body.n, body.stream) == ("m", 64, 2, True)
    assert text_of(body, CHATS) == b'[{"role":"user","content":"hi"}]'
    assert (bytes(body.tools), bytes(body.response_format)) == (b"[]", b"")


@pytest.mark.parametrize(
    ("body", "chats", "completions"),
    [
        (b'{"prompt":"once"}', b'"once"', b'"once"'),
        (b'{"messages":null,"prompt":["a"]}', b'["a"]', b'["a"]'),
        (b'{"messages":[1],"prompt":null}', b"[1]", b"[1]"),
        (b'{"messages":[],"prompt":"long"}', b"[]", b'"long"'),
        (b'{"messages":null,"prompt":null}', b"", b""),
        (b"{}", b"", b""),
    ],
)
def test_the_text_is_that_which_the_endpoint_reads(body: bytes, chats: bytes, completions: bytes) -> None:
    parsed = parse_body(body)
    assert (text_of(parsed, CHATS), text_of(parsed, b"/tokenize")) == (chats, chats)
    assert text_of(parsed, COMPLETIONS) == completions


def test_the_text_of_a_conversation_that_grows_keeps_its_beginning() -> None:
    turns: list[dict[str, str]] = []
    earlier = b""
    for n in range(5):
        turns.append({"role": "user", "content": f"turn {n} é"})
        text = text_of(parse_body(json.dumps({"model": "m", "messages": turns}).encode()), CHATS)
        assert text.startswith(earlier[:-1])
        earlier = text


@pytest.mark.parametrize(
    ("body", "known"),
    [
        (b'{"model":"m","max_tokens":"5","n":1}', {"max_tokens": None, "n": 1}),
        (b'{"model":"m","stream":"yes","max_tokens":5}', {"stream": None, "max_tokens": 5}),
        (b'{"model":"m","n":[],"prompt":"x"}', {"n": None, "text": b'"x"'}),
        (b'{"model":"m","max_tokens":1.5,"messages":7}', {"max_tokens": None, "text": b"7"}),
        (b'{"model":"m","max_tokens":[1],"messages":null,"prompt":"x"}', {"text": b'"x"'}),
        (b'{"max_tokens":{},"model":null}', {"model": None}),
    ],
)
def test_a_wrong_type_beside_the_model_is_not_the_routers_to_refuse(body: bytes, known: dict[str, Any]) -> None:
    read = parse_body(body)
    assert {name: text_of(read, CHATS) if name == "text" else getattr(read, name) for name in known} == known
    assert read.model == json.loads(body).get("model")


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (b"", "not valid JSON", None),
        (b"{", "not valid JSON", None),
        (b"[]", "must be a JSON object", None),
        (b'"x"', "must be a JSON object", None),
        (b"null", "must be a JSON object", None),
        (b'{"model": 3}', "`model` must be a string", "model"),
        (b'{"model": ["m"]}', "`model` must be a string", "model"),
        (b'{"model":"m","model":3}', "`model` must be a string", "model"),
        (b'{"model":"\xff"}', "not valid JSON", None),
        (b'{"model":"\xff","n":"1"}', "not valid JSON", None),
        (b'{"model":"\\ud800"}', "not valid JSON", None),
        (b'{"model":"m","temperature":NaN}', "not valid JSON", None),
        (b'{"model":"m","messages":[Infinity]}', "not valid JSON", None),
        (b'{"model":"m","max_tokens":-Infinity}', "not valid JSON", None),
        (b'{"model":"m"}{"model":"n"}', "not valid JSON", None),
        (b'\xef\xbb\xbf{"model":"m"}', "not valid JSON", None),
        (b'{"model":"m","x":"\t"}', "not valid JSON", None),
        (b"[" * 100_000, "JSON|nested", None),
        (b'{"model":"m","messages":%b%b}' % (b"[" * 100_000, b"]" * 100_000), "nested too deeply", None),
        (b'{"model":"m","n":"1","x":%b%b}' % (b"[" * 100_000, b"]" * 100_000), "nested too deeply", None),
    ],
)
def test_a_bad_body_is_refused_in_words(body: bytes, message: str, param: str | None) -> None:
    with pytest.raises(Refusal, match=message) as refused:
        parse_body(body)
    assert refused.value.status == 400
    assert refused.value.answer.body["error"]["param"] == param
    try:
        model = json_object(body)["model"]
    except ApiError:
        return
    assert not isinstance(model, str)  # the engine would not take it either


@given(st.binary(max_size=200))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    refused = None
    try:
        parse_body(body)
    except Refusal as refusal:
        refused = refusal
    assert refused is None or refused.status == 400


VALUES = st.sampled_from(['"m"', '"other"', '"\\u006d"', "null", "3", "1.0", "true", "[]", '{"model":"inner"}'])
KEYS = st.sampled_from(
    ["model", "mod\\u0065l", "Model", "model ", "max_tokens", "n", "stream", "messages", "prompt", "x"]
)


@settings(max_examples=400)
@given(st.lists(st.tuples(KEYS, VALUES), max_size=8), st.sampled_from(["", " ", "\r\n\t"]))
def test_router_and_engine_take_the_same_one_of_fields_given_twice(fields: list[tuple[str, str]], space: str) -> None:
    body = ("{" + ",".join(f'{space}"{key}"{space}:{space}{value}' for key, value in fields) + "}").encode()
    engine = json_object(body)
    try:
        router = parse_body(body)
    except Refusal:
        assert not isinstance(engine.get("model"), str | None)
        return
    assert router.model == engine.get("model")
    for name, kind in (("max_tokens", int), ("n", int), ("stream", bool)):
        told = engine.get(name)
        assert getattr(router, name) == (told if type(told) is kind else None)
    for name in ("messages", "prompt"):
        assert json.loads(bytes(getattr(router, name)) or b"null") == engine.get(name)
    # And what the replica gets after the model has been rewritten is still the same request.
    assert json_object(body_for("served", router.model, body)) == {**engine, "model": "served"}


@pytest.mark.parametrize("escape", ["\\ud800", "\\uDBFF", "\\udc00", "\\uDfFf"])
@pytest.mark.parametrize("after", ["", " x", "\\n", "é", " " * 40, "\\u0041 and on it goes", "\\ud800"])
@pytest.mark.parametrize("field", ["prompt", "model", "user", "\\u0070rompt"])
def test_half_of_a_surrogate_pair_is_called_so_wherever_it_stands(field: str, after: str, escape: str) -> None:
    with pytest.raises(Refusal, match="is half of a surrogate pair") as refused:
        parse_body(f'{{"n":1,"{field}":"{escape}{after}"}}'.encode())
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "body",
    [
        rb'{"prompt":"\ud83d\ude00',
        rb'{"prompt":"\ud83d',
        rb'{"prompt":"\ud83d\ude00}',
        rb'{"prompt":"\ud83d\ude00\u12x"}',
        rb'{"prompt":"\u12"}',
    ],
)
def test_what_is_cut_off_or_misspelt_is_not_called_half_of_a_pair(body: bytes) -> None:
    with pytest.raises(Refusal, match="not valid JSON") as refused:
        parse_body(body)
    assert "half" not in str(refused.value)


def test_nothing_known_is_told_from_zero() -> None:
    assert (Body().max_tokens, Body().n, Body().stream, bytes(Body().messages)) == (None, None, None, b"")
    assert parse_body(b'{"max_tokens":0}').max_tokens == 0
