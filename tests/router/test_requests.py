"""What a client asks for."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_router.table.records import Service
from paceline_router.table.routes import Lane, Route, Routes
from paceline_router.wire.answers import Refusal
from paceline_router.wire.heads import combined, drop_bad_trace, fault_of, passed_on
from paceline_router.wire.requests import (
    body_for,
    find_route,
    model_id,
    model_page,
    models_page,
    parse_body,
    parse_target,
)


def anyone(_route: Route) -> None:
    """Nobody is refused."""


def routes_of(**services: str) -> Routes:
    made = {key.replace("__", "/"): name for key, name in services.items()}
    by_key = {key: Route(Service(key, name), (Lane(1.0, (), {}),), {}) for key, name in made.items()}
    models = {route.service.served_name: route for route in by_key.values()}
    return Routes(by_model={**models, **by_key}, by_key=by_key, models=models)


@pytest.mark.parametrize(
    ("target", "path", "service"),
    [
        (b"/v1/chat/completions", b"/v1/chat/completions", None),
        (b"/v1/chat/completions?api-version=1", b"/v1/chat/completions", None),
        (b"/demo/chat/v1/completions", b"/v1/completions", "demo/chat"),
        (b"/demo/chat/tokenize", b"/tokenize", "demo/chat"),
        (b"/demo/chat/v1/models/a/b", b"/v1/models/a/b", "demo/chat"),
        (b"/v1/chat/v1/models", b"/v1/models", "v1/chat"),
        (b"/v1/chat/v1/chat/completions", b"/v1/chat/completions", "v1/chat"),
        (b"/v1/chat/tokenize", b"/tokenize", "v1/chat"),
        (b"/v1/models/v1/models", b"/v1/models/v1/models", None),
        (b"/v1/models/acme/v1/m", b"/v1/models/acme/v1/m", None),
        (b"/v1/chat/models", b"/v1/chat/models", None),
        (b"http://router:8080/v1/models", b"/v1/models", None),
        (b"http://router:8080", b"/", None),
        (b"//v1/models", b"//v1/models", None),
        (b"/v1/../v1/models", b"/v1/../v1/models", None),
        (b"/V1/models", b"/V1/models", None),
        (b"/demo/chat/metrics", b"/demo/chat/metrics", None),
        (b"/demo/../v1/models", b"/demo/../v1/models", None),
        (b"/Demo/chat/v1/models", b"/Demo/chat/v1/models", None),
        (b"/demo%2Fchat/v1/models", b"/demo%2Fchat/v1/models", None),
        (b"*", b"*", None),
    ],
)
def test_a_path_is_split_without_being_normalised(target: bytes, path: bytes, service: str | None) -> None:
    parsed = parse_target(target)
    assert (parsed.path, parsed.service) == (path, service)


@given(st.binary(max_size=60))
def test_any_target_has_some_reading(target: bytes) -> None:
    parsed = parse_target(target)
    assert b"?" not in parsed.path or not target.startswith(b"/")


@given(st.text(min_size=1, max_size=40))
def test_every_listed_id_can_be_fetched_with_slashes_plain_or_encoded(name: str) -> None:
    routes = routes_of(demo__chat=name)
    listed: Any = models_page(routes, None, anyone)["data"]
    for safe in ("", "/"):
        path = f"/v1/models/{quote(listed[0]['id'], safe=safe)}".encode()
        assert model_page(routes, None, model_id(parse_target(path).path), anyone) == listed[0]


@pytest.mark.parametrize("path", [b"/v1/models/a%20b", b"/v1/models/..%2Fadmin", b"/v1/models/", b"/v1/models/%ff"])
def test_ids_that_are_not_listed_are_not_found(path: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        model_page(routes_of(demo__chat="m"), None, model_id(path), anyone)
    assert refused.value.status == 404


def test_an_id_that_is_no_text_is_called_so() -> None:
    with pytest.raises(Refusal, match="not UTF-8") as refused:
        model_id(b"/v1/models/%ff")
    assert refused.value.status == 404


def test_a_service_address_lists_its_own_model_only() -> None:
    routes = routes_of(demo__chat="m", demo__code="n")
    page: Any = models_page(routes, "demo/code", anyone)
    assert [card["id"] for card in page["data"]] == ["n"]
    with pytest.raises(Refusal):
        model_page(routes, "demo/code", "m", anyone)


@pytest.mark.parametrize(
    ("service", "model", "found"),
    [
        (None, "m", "demo/chat"),
        (None, "demo/chat", "demo/chat"),
        ("demo/chat", None, "demo/chat"),
        ("demo/chat", "", "demo/chat"),
        ("demo/chat", "m", "demo/chat"),
        ("demo/chat", "demo/chat", "demo/chat"),
        ("demo/chat", "n", 404),
        ("demo/none", "m", 404),
        (None, "demo/none", 404),
        (None, "M", 404),
        (None, None, 400),
        (None, "", 400),
    ],
)
def test_each_address_finds_its_service(service: str | None, model: str | None, found: str | int) -> None:
    routes = routes_of(demo__chat="m", demo__code="n")
    if isinstance(found, str):
        assert find_route(routes, service, model, anyone).service.key == found
    else:
        with pytest.raises(Refusal) as refused:
            find_route(routes, service, model, anyone)
        assert refused.value.status == found


def test_an_unknown_model_is_named_and_nothing_else() -> None:
    with pytest.raises(Refusal) as refused:
        find_route(routes_of(demo__chat="secret-model"), None, "x" * 1000, anyone)
    error = refused.value.answer.body["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "secret" not in error["message"]
    assert "demo" not in error["message"]
    assert len(error["message"]) < 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_only_the_model_changes_when_a_body_is_rewritten(fields: dict[str, Any]) -> None:
    body = json.dumps({**fields, "model": "demo/chat"}).encode()
    assert json.loads(body_for("served", "demo/chat", body)) == {**fields, "model": "served"}


def test_a_body_that_names_the_served_model_is_left_as_it_is() -> None:
    body = b'{ "model":"served", "x":1.10, "y":123456789012345678901234567890}'
    assert body_for("served", "served", body) is body
    rewritten = body_for("served", "demo/chat", body.replace(b"served", b"demo/chat"))
    assert b"1.10" in rewritten
    assert b"123456789012345678901234567890" in rewritten


def test_what_is_wrong_with_other_members_is_for_the_replica_to_say_also_when_the_model_is_rewritten() -> None:
    assert body_for("served", "demo/chat", b'{"model":"demo/chat","\xff":1}') == b'{"model":"served","\xff":1}'


@pytest.mark.parametrize(
    "body",
    [
        rb'{"model":"demo\/chat","user":"demo/chat"}',
        rb'{"user":"demo/chat", "model" : "demo/chat"}',
        rb'{"mod\u0065l":"demo/chat","metadata":{"model":"demo/chat"}}',
        rb'{"metadata":[{"model":"demo/chat"}],"model":"\u0064emo/chat"}',
        b'{"model":"demo/chat","model":"demo/chat"}\r\n',
        b'{"model":":"}',
        b'{"model":",","user":"x","n":1}',
        b'{"model":null,"stop":null}',
        b'{"stop":null}',
        b'{"a":"{"}',
        b" { } \n",
    ],
)
def test_wherever_its_value_stands_in_a_body_only_the_model_itself_is_rewritten(body: bytes) -> None:
    model = parse_body(body).model
    assert json.loads(body_for("served", model, body)) == {**json.loads(body), "model": "served"}


def test_a_model_whose_value_stands_nowhere_else_is_rewritten_where_it_is() -> None:
    body = b'{ "n": 1, "model" : "demo/chat", "x": [ ] }'
    assert body_for("served", "demo/chat", body) == b'{ "n": 1, "model" : "served", "x": [ ] }'


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-paceline-tenant", b"two words"),
        ("x-paceline-session", b"x" * 300),
        ("x-paceline-priority", b"urgent"),
        ("x-paceline-prompt-version", b"-"),
        ("x-paceline-deadline-ms", b"0"),
        ("x-paceline-deadline-ms", b"1e3"),
        ("x-paceline-deadline-ms", "٣".encode()),
        ("x-paceline-revision", b"Not A Name"),
        ("x-paceline-explain", b"yes"),
    ],
)
def test_a_malformed_header_is_refused_by_its_name(name: str, value: bytes) -> None:
    fault = fault_of({"authorization": b"x", name: value})
    assert fault is not None
    assert name in str(fault)
    assert (fault.status, fault.answer.body["error"]["param"]) == (400, name)


PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (PARENT, True),
        (b"cc" + PARENT[2:], True),
        (b"cc" + PARENT[2:] + b"-what-will-be", True),
        (PARENT + b"-more", False),
        (b"ff" + PARENT[2:], False),
        (PARENT.upper(), False),
        (b"garbage", False),
        (b"", False),
        (b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01", False),
        (b"00-0af7651916cd43dd8448eb211c80319c-" + b"0" * 16 + b"-01", False),
        (combined("traceparent", PARENT, PARENT), False),
    ],
)
def test_a_bad_trace_parent_is_dropped_with_its_state_and_refuses_nothing(value: bytes, kept: bool) -> None:
    values = {"host": b"h", "traceparent": value, "tracestate": b"a=1"}
    assert fault_of(values) is None
    drop_bad_trace(values)
    assert values == ({"host": b"h", "traceparent": value, "tracestate": b"a=1"} if kept else {"host": b"h"})


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        (b"a=1, tenant@b=x y ,,\tc=3", b"a=1,tenant@b=x y,c=3"),
        (combined("tracestate", b"a=1", b"b=2"), b"a=1,b=2"),
        (b"", None),
        (b"a", None),
        (b"A=1", None),
        (b"a=\xff", None),
        (b",".join(b"k%d=1" % n for n in range(33)), None),
        (b"a=" + b"x" * 200 + b",b=" + b"x" * 200 + b",c=" + b"y" * 120, b"a=" + b"x" * 200 + b",c=" + b"y" * 120),
        (
            b",".join(b"k%d=" % n + b"x" * 100 for n in range(6)),
            b",".join(b"k%d=" % n + b"x" * 100 for n in range(4)),
        ),
    ],
)
def test_trace_state_is_one_list_within_bounds(state: bytes, kept: bytes | None) -> None:
    values = {"traceparent": PARENT, "tracestate": state}
    drop_bad_trace(values)
    assert values.get("tracestate") == kept
    assert values["traceparent"] == PARENT


def test_trace_state_without_a_parent_is_dropped() -> None:
    values = {"tracestate": b"a=1"}
    drop_bad_trace(values)
    assert values == {}


@given(st.binary(max_size=600), st.binary(max_size=80))
def test_any_tracing_headers_leave_a_request_that_can_be_sent(state: bytes, parent: bytes) -> None:
    values = {"traceparent": parent, "tracestate": state}
    assert fault_of(values) is None
    drop_bad_trace(values)
    assert passed_on(values).count(b"\r\n") == len(values)
    assert len(values.get("tracestate", b"")) <= 512


def test_only_listed_headers_go_on() -> None:
    values = {"x-paceline-session": b"s", "x-paceline-tenant": b"t", "x-paceline-revision": b"r", "host": b"h"}
    assert fault_of(values) is None
    assert passed_on(values) == b"x-paceline-session: s\r\n"
