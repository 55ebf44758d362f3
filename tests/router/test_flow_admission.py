"""What is judged of a request is what its engine reads, also after a rule has changed it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.routing import OverLongAction, OverLongSpec, RoutingSpec
from paceline_router.flow.admission import Admitted, admit
from paceline_router.flow.dataplane import DataPlane
from paceline_router.settings import Settings
from paceline_router.shape.asked import COMPLETIONS
from paceline_router.table.policy import make_policy
from paceline_router.table.records import Limits, Replica, Service, Table
from paceline_router.wire.answers import Refusal
from paceline_router.wire.requests import Request, parse_body
from paceline_runtime.server.request_parsing import json_object

KEY = "demo/chat"
CHATS = b"/v1/chat/completions"
MOST = 1000
"""Tokens that a request and its answer may have."""


def admitted(body: bytes, path: bytes, action: OverLongAction = OverLongAction.CUT) -> Admitted:
    """What a router that has just started makes of a request."""
    plane = DataPlane(Settings())
    policy = make_policy(RoutingSpec(over_long=OverLongSpec(action=action)))
    replica = Replica("r", "r", KEY, "default", "h", "127.0.0.1", 1, True, False, Limits(max_model_len=MOST))
    plane.use(Table(services={KEY: Service(KEY, "m", policy=policy)}, replicas={"r": replica}))
    living = plane.living[KEY]
    request = Request(b"POST", path, {}, body)
    return admit(living, living.tenants.identify({}), request, path, parse_body(body), 0.0)


def bound_of(told: dict[str, Any], path: bytes) -> int | None:
    """The bound on an answer that an engine reads; numbers of another form it refuses."""
    for name in ("max_tokens",) if path == COMPLETIONS else ("max_completion_tokens", "max_tokens"):
        value = told.get(name)
        if type(value) is int:
            return value
    return None


NAMES = st.sampled_from(["max_tokens", "max_completion_tokens", "max_t\\u006fkens", "max\\u005fcompletion_tokens", "n"])
VALUES = st.sampled_from(["5", "55", "900", "990", "9000", "12345678901234567890", "null", "1.5", '"990"', "[990]"])
SPACES = st.sampled_from(["", " ", "\r\n\t"])


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6), SPACES, st.sampled_from([CHATS, COMPLETIONS]))
def test_whatever_a_body_says_twice_the_bound_that_counts_is_judged_and_cut_and_nothing_else_changes(
    members: list[tuple[str, str]], space: str, path: bytes
) -> None:
    said = [("messages", '[{"role":"user","content":"how 990"}]'), ("prompt", '"how 990"'), *members]
    body = ("{" + ",".join(f'{space}"{name}"{space}:{space}{value}' for name, value in said) + space + "}").encode()
    told = json_object(body)
    bound = bound_of(told, path)
    asked = admitted(body, path)
    assert asked.shaped.max_tokens == bound
    if bound is None or bound + asked.shaped.prompt_tokens <= MOST:
        assert asked.raw == body
        return
    after = json_object(asked.raw)
    left = bound_of(after, path)
    assert left is not None
    assert 1 <= left <= MOST - asked.shaped.prompt_high
    changed = {name for name in after.keys() | told.keys() if after.get(name) != told.get(name)}
    assert len(changed) == 1
    again = parse_body(asked.raw)
    assert bound_of({name: getattr(again, name) for name in ("max_tokens", "max_completion_tokens")}, path) == left


LONG = json.dumps("many words " * 2000)
SHORT = '[{"role":"user","content":"hi"}]'


@pytest.mark.parametrize("path", [CHATS, COMPLETIONS])
def test_a_text_that_the_endpoint_does_not_read_hides_no_other(path: bytes) -> None:
    own, other = ("prompt", "messages") if path == COMPLETIONS else ("messages", "prompt")
    hidden = f'{{"model":"m","{other}":{SHORT},"{own}":{LONG}}}'.encode()
    with pytest.raises(Refusal, match="This request is too long"):
        admitted(hidden, path, OverLongAction.REFUSE)
    idle = f'{{"model":"m","{other}":{LONG},"{own}":{SHORT}}}'.encode()
    assert admitted(idle, path, OverLongAction.REFUSE).text == SHORT.encode()
