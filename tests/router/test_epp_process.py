"""One request as the messages of `ext_proc` tell of it, with decisions from a script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf", reason="the endpoint picker needs the extra `epp` (protobuf)")

from paceline_router.epp import ext_proc_pb2 as pb
from paceline_router.epp.picks import Ask
from paceline_router.epp.process import CHUNK, Processing
from paceline_router.wire.answers import Answer, Refusal

BODY = b'{"model": "m", "messages": []}'
TWO_WAY = pb.ProtocolConfiguration(
    request_body_mode=pb.FULL_DUPLEX_STREAMED, response_body_mode=pb.FULL_DUPLEX_STREAMED
)
BUFFERED = pb.ProtocolConfiguration(request_body_mode=pb.BUFFERED)


class Pick:
    """A choice that remembers what it was told."""

    def __init__(self, body: bytes) -> None:
        self.endpoints = ["10.0.0.1:8000", "10.0.0.2:8000"]
        self.headers = [("x-paceline-request-id", b"r1")]
        self.body = body
        self.told: list[tuple[int, str | None]] = []
        self.seen = b""
        self.ends = 0

    def answered(self, status: int, headers: Mapping[str, bytes], served: str | None) -> Sequence[tuple[str, bytes]]:
        self.told.append((status, served))
        return [("x-paceline-pool", b"default")]

    def saw(self, part: bytes) -> None:
        self.seen += part

    def over(self) -> None:
        self.ends += 1


class Script:
    """Decides as told."""

    ready = True
    max_body_bytes = 1_000_000

    def __init__(self, outcome: Any = None) -> None:
        self.asked: list[Ask] = []
        self.picked: list[Pick] = []
        self.outcome = outcome

    async def pick(self, ask: Ask) -> Any:
        self.asked.append(ask)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if isinstance(self.outcome, Answer):
            return self.outcome
        self.picked.append(Pick(self.outcome if isinstance(self.outcome, bytes) else ask.body))
        return self.picked[-1]


def take(processing: Processing, message: Any) -> Sequence[Any]:
    """What a message is answered with, by a decision that does not wait."""
    try:
        processing.take(message).send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


def header_map(**values: str | bytes) -> pb.HeaderMap:
    named = {":method": "POST", ":path": "/v1/chat/completions"}
    named |= {name.replace("_", "-"): value for name, value in values.items()}  # type: ignore[misc]
    raw = {name: value.encode() if isinstance(value, str) else value for name, value in named.items()}
    return pb.HeaderMap(headers=[pb.HeaderValue(key=name, raw_value=value) for name, value in raw.items()])


def begin(config: Any = BUFFERED, end: bool = False, subset: Any = None, **values: str | bytes) -> Any:
    message = pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=header_map(**values), end_of_stream=end))
    if config is not None:
        message.protocol_config.CopyFrom(config)
    if subset is not None:
        message.metadata_context.filter_metadata["envoy.lb.subset_hint"].update(
            {"x-gateway-destination-endpoint-subset": subset}
        )
    return message


def body(data: bytes = BODY, end: bool = True) -> Any:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=data, end_of_stream=end))


def answer_headers(status: bytes = b"200", end: bool = False, served: str | None = None) -> Any:
    headers = pb.HeaderMap(headers=[pb.HeaderValue(key=":status", raw_value=status)])
    message = pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=headers, end_of_stream=end))
    if served is not None:
        message.metadata_context.filter_metadata["envoy.lb"].update({"x-gateway-destination-endpoint-served": served})
    return message


def set_by(mutation: Any) -> dict[str, bytes]:
    overwrite = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    assert all(option.append_action == overwrite for option in mutation.set_headers)
    return {option.header.key: option.header.raw_value for option in mutation.set_headers}


def test_a_buffered_request_is_placed_when_its_body_is_there() -> None:
    script = Script()
    processing = Processing(script)
    (first,) = take(processing, begin(x_paceline_session="s1", x_request_id="abc", cookie="secret"))
    assert first.WhichOneof("response") == "request_headers"
    assert not first.request_headers.response.header_mutation.set_headers
    (second,) = take(processing, body())
    common = second.request_body.response
    assert set_by(common.header_mutation) == {
        "x-gateway-destination-endpoint": b"10.0.0.1:8000,10.0.0.2:8000",
        "x-paceline-request-id": b"r1",
    }
    assert {"authorization", "cookie"} <= set(common.header_mutation.remove_headers)
    assert not common.HasField("body_mutation")
    (lb,) = second.dynamic_metadata.fields.items()
    assert lb[0] == "envoy.lb"
    fields = lb[1].struct_value.fields
    assert fields["x-gateway-destination-endpoint"].string_value == "10.0.0.1:8000,10.0.0.2:8000"
    (ask,) = script.asked
    assert (ask.method, ask.path, ask.body, ask.request_id) == (b"POST", b"/v1/chat/completions", BODY, b"abc")
    assert ask.headers == {"x-paceline-session": b"s1"}
    assert ask.subset is None


def test_an_envoy_that_does_not_say_how_it_is_set_up_is_taken_to_buffer() -> None:
    processing = Processing(Script())
    assert len(take(processing, begin(None))) == 1
    (placed,) = take(processing, body())
    assert placed.WhichOneof("response") == "request_body"


def test_a_changed_body_has_its_length_with_it() -> None:
    processing = Processing(Script(b'{"model":"other"}'))
    take(processing, begin())
    (placed,) = take(processing, body())
    common = placed.request_body.response
    assert common.body_mutation.body == b'{"model":"other"}'
    assert set_by(common.header_mutation)["content-length"] == b"17"


def test_a_streamed_request_is_answered_headers_first_when_it_is_whole() -> None:
    script = Script()
    processing = Processing(script)
    assert not take(processing, begin(TWO_WAY))
    assert not take(processing, body(b"x" * CHUNK, end=False))
    headers, one, two = take(processing, body(b"y" * 10))
    assert headers.WhichOneof("response") == "request_headers"
    assert headers.dynamic_metadata.fields["envoy.lb"]
    streamed = [message.request_body.response.body_mutation.streamed_response for message in (one, two)]
    assert [(part.body, part.end_of_stream) for part in streamed] == [(b"x" * CHUNK, False), (b"y" * 10, True)]
    assert script.asked[0].body == b"x" * CHUNK + b"y" * 10


def test_a_streamed_request_with_trailers_ends_with_them() -> None:
    processing = Processing(Script())
    take(processing, begin(TWO_WAY))
    take(processing, body(end=False))
    trailers = pb.ProcessingRequest(request_trailers=pb.HttpTrailers())
    kinds = [message.WhichOneof("response") for message in take(processing, trailers)]
    assert kinds == ["request_headers", "request_body", "request_trailers"]


@given(st.lists(st.binary(max_size=CHUNK), max_size=8))
def test_streamed_bodies_come_back_to_the_byte(parts: list[bytes]) -> None:
    processing = Processing(Script())
    take(processing, begin(TWO_WAY))
    for part in parts:
        assert not take(processing, body(part, end=False))
    _, *chunks = take(processing, body(b"", end=True))
    pieces = [chunk.request_body.response.body_mutation.streamed_response for chunk in chunks]
    assert b"".join(piece.body for piece in pieces) == b"".join(parts)
    assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(len(piece.body) <= CHUNK for piece in pieces)


def test_a_request_without_a_body_is_placed_at_once() -> None:
    (placed,) = take(Processing(Script()), begin(end=True))
    mutation = placed.request_headers.response.header_mutation
    assert set_by(mutation)["x-gateway-destination-endpoint"]


@pytest.mark.parametrize("config", [BUFFERED, TWO_WAY])
def test_too_large_a_body_is_413(config: Any) -> None:
    script = Script()
    script.max_body_bytes = 10
    processing = Processing(script)
    take(processing, begin(config))
    (refused,) = take(processing, body(b"x" * 11, end=False))
    assert refused.immediate_response.status.code == 413
    assert processing.over
    assert not script.asked


@pytest.mark.parametrize("mode", [pb.NONE, pb.STREAMED, pb.BUFFERED_PARTIAL, pb.GRPC])
def test_other_ways_to_pass_the_body_are_refused_in_words(mode: int) -> None:
    (refused,) = take(Processing(Script()), begin(pb.ProtocolConfiguration(request_body_mode=mode)))
    assert refused.immediate_response.status.code == 500
    assert "BUFFERED or FULL_DUPLEX_STREAMED" in json.loads(refused.immediate_response.body)["error"]["message"]


def test_a_refusal_is_the_gateways_answer() -> None:
    processing = Processing(Script(Refusal(429, "Slow down.", type="rate_limit_error", retry_after=7)))
    take(processing, begin())
    (refused,) = take(processing, body())
    immediate = refused.immediate_response
    assert immediate.status.code == 429
    assert set_by(immediate.headers) == {"content-type": b"application/json", "retry-after": b"7"}
    assert json.loads(immediate.body)["error"]["message"] == "Slow down."
    assert not take(processing, answer_headers(b"429"))


def test_an_answer_that_needs_no_replica_is_the_gateways_too() -> None:
    (given_back,) = take(Processing(Script(Answer(200, {"object": "list"}))), begin(end=True))
    assert given_back.immediate_response.status.code == 200
    assert json.loads(given_back.immediate_response.body) == {"object": "list"}


def test_a_failure_of_ours_is_a_500_without_its_words() -> None:
    processing = Processing(Script(ValueError("secret")))
    take(processing, begin())
    (failed,) = take(processing, body())
    assert failed.immediate_response.status.code == 500
    assert b"secret" not in failed.immediate_response.body


@pytest.mark.parametrize(
    ("given_as", "expected"),
    [
        (["10.0.0.1:80", "10.0.0.2:80"], {"10.0.0.1:80", "10.0.0.2:80"}),
        ("10.0.0.1:80, 10.0.0.2:80", {"10.0.0.1:80", "10.0.0.2:80"}),
        ([], set()),
        ("", set()),
        (["", 5, None], set()),
    ],
)
def test_the_subset_hint(given_as: Any, expected: set[str]) -> None:
    script = Script()
    take(Processing(script), begin(end=True, subset=given_as))
    assert script.asked[0].subset == expected


def test_a_header_given_twice_is_refused() -> None:
    message = begin(end=True, x_paceline_session="a")
    message.request_headers.headers.headers.add(key="x-paceline-session", raw_value=b"b")
    (refused,) = take(Processing(Script()), message)
    assert refused.immediate_response.status.code == 400


def placed(config: Any = BUFFERED) -> tuple[Processing, Pick]:
    script = Script()
    processing = Processing(script)
    take(processing, begin(config))
    take(processing, body())
    return processing, script.picked[0]


def test_the_answer_is_told_and_its_headers_are_set() -> None:
    processing, pick = placed()
    (message,) = take(processing, answer_headers(b"200", served="10.0.0.2:8000"))
    mutation = message.response_headers.response.header_mutation
    assert set_by(mutation) == {"x-paceline-pool": b"default"}
    assert list(mutation.remove_headers) == ["x-paceline-load"]
    assert pick.told == [(200, "10.0.0.2:8000")]
    assert pick.ends == 0


def test_envoys_attribute_says_who_answered_too() -> None:
    processing, pick = placed()
    message = answer_headers(b"200")
    message.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": "10.0.0.2:8000"})
    take(processing, message)
    assert pick.told == [(200, "10.0.0.2:8000")]


def last_of(kind: str) -> Any:
    return {
        "headers": answer_headers(end=True),
        "body": pb.ProcessingRequest(response_body=pb.HttpBody(body=b"x", end_of_stream=True)),
        "trailers": pb.ProcessingRequest(response_trailers=pb.HttpTrailers()),
    }[kind]


@pytest.mark.parametrize("kind", ["headers", "body", "trailers"])
def test_the_last_part_of_the_answer_ends_the_request_once(kind: str) -> None:
    processing, pick = placed()
    if kind != "headers":
        take(processing, answer_headers())
    assert len(take(processing, last_of(kind))) == 1
    assert pick.ends == 1
    processing.end()
    assert pick.ends == 1


def test_a_gateway_that_goes_away_ends_the_request() -> None:
    processing, pick = placed()
    processing.end()
    assert pick.ends == 1


def test_answers_come_back_as_they_were_only_where_the_gateway_waits_for_them() -> None:
    part = pb.ProcessingRequest(response_body=pb.HttpBody(body=b"data: x\n\n"))
    both, pick = placed(TWO_WAY)
    (message,) = take(both, part)
    assert message.response_body.response.body_mutation.streamed_response.body == b"data: x\n\n"
    assert pick.seen == b"data: x\n\n"
    one, _ = placed(BUFFERED)
    (message,) = take(one, part)
    assert not message.response_body.response.HasField("body_mutation")


def test_an_observer_gets_no_answers_and_no_decision() -> None:
    script = Script()
    message = begin(end=True)
    message.observability_mode = True
    assert not take(Processing(script), message)
    assert not script.asked


def test_messages_out_of_order_do_no_harm() -> None:
    processing = Processing(Script())
    for message in (last_of("trailers"), last_of("headers"), last_of("body"), pb.ProcessingRequest()):
        assert len(take(processing, message)) <= 1
    processing.end()
