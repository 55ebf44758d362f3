"""Requests that a gateway carries, in the data path: held, limited, counted and ended like those of the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from paceline_crds.tenancy import TenancySpec
from paceline_router.epp.carried import Carried
from paceline_router.epp.picks import Ask
from paceline_router.epp.plane import PlanePicks
from paceline_router.flow.dataplane import DataPlane
from paceline_router.settings import Settings
from paceline_router.table.policy import Policy
from paceline_router.tenancy.keys import Keys
from paceline_router.wire.answers import Answer, Refusal

BODY = b'{"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}'

StartPlane = Callable[..., Awaitable[DataPlane]]


def ask(path: bytes = b"/v1/chat/completions", body: bytes = BODY, subset: Any = None, **headers: bytes) -> Ask:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Ask(b"POST", path, named, body, None if subset is None else frozenset(subset), b"id-1")


async def carried(picks: PlanePicks, *args: Any, **kwargs: Any) -> Carried:
    found = await picks.pick(ask(*args, **kwargs))
    assert isinstance(found, Carried)
    return found


def sent(request: Carried) -> dict[str, bytes]:
    return dict(request.headers)


@pytest.fixture
async def plane(helpers: Any) -> AsyncIterator[StartPlane]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            ports: tuple[int, ...] = (9001, 9002), policy: Policy | None = None, **settings: Any
        ) -> DataPlane:
            made = DataPlane(Settings(**settings))
            made.use(helpers.table_of(*ports, policy=policy or Policy()))
            sweep = asyncio.create_task(made.sweep())
            stack.callback(sweep.cancel)
            return made

        yield start


def in_flight(plane: DataPlane) -> int:
    return sum(backend.in_flight for backend in plane.backends.values())


async def test_what_the_replica_is_told(plane: StartPlane) -> None:
    request = await carried(PlanePicks(await plane()), x_paceline_deadline_ms=b"5000")
    headers = sent(request)
    assert headers["x-paceline-request-id"] == b"id-1"
    assert headers["x-paceline-shape"] == b"ShortInputShortOutput"
    assert 0 < int(headers["x-paceline-deadline-ms"]) <= 5000
    assert request.body == BODY
    assert len(request.endpoints) == 1


async def test_it_counts_until_it_is_over_and_then_in_the_books(plane: StartPlane, helpers: Any) -> None:
    made = await plane()
    request = await carried(PlanePicks(made))
    metrics = made.metrics.service(helpers.KEY)
    assert (in_flight(made), metrics.in_flight, len(made.exchanges)) == (1, 1, 1)
    shown = request.answered(200, {}, None)
    assert dict(shown)["x-paceline-pool"] == b"default"
    request.saw(b'data: {"choices":[],"usage":{"prompt_tokens":12,')
    request.saw(b'"completion_tokens":34,"total_tokens":46}}\n\ndata: [DONE]\n\n')
    request.over()
    request.over()
    assert (in_flight(made), metrics.in_flight, len(made.exchanges)) == (0, 0, 0)
    assert metrics.outcomes["2xx"] == 1
    assert (request.prompt_tokens, request.output_tokens) == (12, 34)


@pytest.mark.parametrize(("status", "outcome"), [(404, "4xx"), (503, "5xx"), (0, "5xx"), (None, "cancelled")])
async def test_every_end_has_its_outcome(plane: StartPlane, helpers: Any, status: int | None, outcome: str) -> None:
    made = await plane()
    request = await carried(PlanePicks(made))
    if status is not None:
        request.answered(status, {}, None)
    request.over()
    assert made.metrics.service(helpers.KEY).outcomes[outcome] == 1
    assert in_flight(made) == 0


async def test_replicas_that_err_are_ejected_as_through_the_proxy(plane: StartPlane) -> None:
    made = await plane()
    picks = PlanePicks(made)
    allowed = ["127.0.0.1:9001"]
    for _ in range(5):
        request = await carried(picks, subset=allowed)
        request.answered(500, {}, None)
        request.over()
    assert made.backends["r0"].health.ejected
    others = [await carried(picks) for _ in range(4)]
    assert {request.endpoints[0] for request in others} == {"127.0.0.1:9002"}


async def test_a_replica_that_is_busy_is_left_alone_without_blame(plane: StartPlane) -> None:
    made = await plane()
    picks = PlanePicks(made)
    request = await carried(picks)
    busy = request.endpoints[0]
    request.answered(429, {"retry-after": b"20"}, None)
    request.over()
    others = {(await carried(picks)).endpoints[0] for _ in range(4)}
    assert busy not in others
    assert not any(backend.health.ejected for backend in made.backends.values())


async def test_who_answered_instead_is_counted_and_who_could_not_be_reached_is_blamed(plane: StartPlane) -> None:
    made = await plane()
    request = await carried(PlanePicks(made, fallbacks=3))
    first, second = request.endpoints
    request.answered(200, {}, second)
    by_address = {backend.replica.address: backend for backend in made.backends.values()}
    assert (by_address[first].in_flight, by_address[second].in_flight) == (0, 1)
    assert by_address[first].health.connects == 1
    assert request.attempts == 2
    request.over()
    assert in_flight(made) == 0


async def test_a_request_is_held_until_a_replica_comes(plane: StartPlane, helpers: Any) -> None:
    made = await plane((), Policy(hold=30.0))
    table = replace(helpers.table_of(9001), services=made.table.services)
    starting = {uid: replace(replica, ready=False) for uid, replica in table.replicas.items()}
    made.use(replace(table, replicas=starting))
    waiting = asyncio.create_task(carried(PlanePicks(made)))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert made.demand()[0].held == 1
    made.use(table)
    assert (await waiting).endpoints == ["127.0.0.1:9001"]


async def test_a_gateway_that_gives_up_leaves_the_queue(plane: StartPlane, helpers: Any) -> None:
    made = await plane((), Policy(hold=30.0))
    table = helpers.table_of(9001)
    made.use(replace(table, replicas={uid: replace(r, ready=False) for uid, r in table.replicas.items()}))
    waiting = asyncio.create_task(carried(PlanePicks(made)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not made.exchanges
    assert made.demand()[0].held == 0
    assert made.metrics.service(helpers.KEY).outcomes["cancelled"] == 1


async def test_a_replica_found_for_a_gateway_that_has_just_given_up_is_let_go(plane: StartPlane, helpers: Any) -> None:
    made = await plane((), Policy(hold=30.0))
    table = helpers.table_of(9001)
    made.use(replace(table, replicas={uid: replace(r, ready=False) for uid, r in table.replicas.items()}))
    waiting = asyncio.create_task(carried(PlanePicks(made)))
    await asyncio.sleep(0)
    made.use(table)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert in_flight(made) == 0
    assert not made.exchanges


async def test_full_is_429_and_empty_is_503(plane: StartPlane, helpers: Any) -> None:
    made = await plane((9001,), Policy(hold=0.0), max_in_flight=1)
    picks = PlanePicks(made)
    first = await carried(picks)
    with pytest.raises(Refusal) as full:
        await picks.pick(ask())
    assert full.value.status == 429
    assert full.value.answer.headers["retry-after"]
    first.over()
    made.use(helpers.table_of(policy=Policy(hold=0.0)))
    with pytest.raises(Refusal) as empty:
        await picks.pick(ask())
    assert empty.value.status == 503
    assert not made.exchanges


async def test_a_saturated_service_answers_429_after_its_hold(plane: StartPlane) -> None:
    made = await plane((9001,), Policy(hold=0.01), max_in_flight=1)
    picks = PlanePicks(made)
    await carried(picks)
    with pytest.raises(Refusal) as full:
        await picks.pick(ask())
    assert full.value.status == 429


async def test_the_subset_holds_for_whoever_comes_later_too(plane: StartPlane, helpers: Any) -> None:
    made = await plane((9001,), Policy(hold=30.0), max_in_flight=1)
    picks = PlanePicks(made)
    first = await carried(picks, subset=["127.0.0.1:9001"])
    waiting = asyncio.create_task(carried(picks, subset=["127.0.0.1:9001"]))
    await asyncio.sleep(0)
    made.use(helpers.table_of(9001, 9002))
    await asyncio.sleep(0)
    assert not waiting.done()
    first.over()
    assert (await waiting).endpoints == ["127.0.0.1:9001"]


async def test_tenants_are_told_apart_and_held_to_their_limits(plane: StartPlane, helpers: Any) -> None:
    spec = TenancySpec.model_validate({"default": {"requestsPerMinute": 1}})
    made = await plane((9001,), Policy(tenancy=spec))
    picks = PlanePicks(made)
    assert sent(await carried(picks, x_paceline_tenant=b"acme"))["x-paceline-tenant"] == b"acme"
    several = [picks.pick(ask(x_paceline_tenant=b"acme")) for _ in range(100)]
    refused = [found for found in await asyncio.gather(*several, return_exceptions=True) if isinstance(found, Refusal)]
    assert refused
    assert all(refusal.status == 429 and int(refusal.answer.headers["retry-after"]) > 1 for refusal in refused)
    assert (await carried(picks, x_paceline_tenant=b"other")).tenant.name == "other"


async def test_keys_say_whose_request_it_is(plane: StartPlane, helpers: Any) -> None:
    spec = TenancySpec.model_validate_json('{"identity": {"from": "APIKey", "secretName": "keys"}}')
    made = await plane((9001,), Policy(tenancy=spec))
    made.use_keys(helpers.KEY, Keys({hashlib.sha256(b"right").digest(): "acme"}))
    picks = PlanePicks(made)
    with pytest.raises(Refusal) as refused:
        await picks.pick(ask(authorization=b"Bearer wrong"))
    assert refused.value.status == 401
    request = await carried(picks, authorization=b"Bearer right", x_paceline_tenant=b"forged")
    assert sent(request)["x-paceline-tenant"] == b"acme"


async def test_sessions_and_prefixes_stay_where_they_are(plane: StartPlane) -> None:
    made = await plane(tuple(range(9001, 9009)))
    picks = PlanePicks(made)
    text = "system prompt " * 2000
    body = json.dumps({"model": "smollm2", "messages": [{"role": "system", "content": text}]}).encode()
    first = await carried(picks, body=body)
    first.answered(200, {}, None)
    first.over()
    again = [await carried(picks, body=body) for _ in range(3)]
    assert {request.endpoints[0] for request in again} == {first.endpoints[0]}


async def test_the_end_of_the_router_waits_for_what_gateways_carry(plane: StartPlane) -> None:
    made = await plane()
    request = await carried(PlanePicks(made))
    draining = asyncio.create_task(made.drain(30.0))
    await asyncio.sleep(0)
    assert not draining.done()
    request.answered(200, {}, None)
    request.over()
    assert await draining == 0


async def test_the_end_of_the_router_does_not_wait_for_ever(plane: StartPlane) -> None:
    made = await plane()
    request = await carried(PlanePicks(made))
    assert await made.drain(0.0) == 1
    assert request.finished
    assert in_flight(made) == 0


async def test_a_request_that_never_ends_at_the_gateway_is_not_ended_by_us(plane: StartPlane) -> None:
    made = await plane(policy=Policy(max_request=0.0001))
    request = await carried(PlanePicks(made))
    request.check_time(made.now() + 1e6)
    assert not request.finished
    request.over()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (b"/v1/chat/completions", b"{", 400),
        (b"/v1/chat/completions", b'{"model": "nobody"}', 404),
        (b"/nowhere", BODY, 404),
        (b"/v1/models", BODY, 405),
    ],
)
async def test_what_cannot_be_placed_is_refused_and_counted(
    plane: StartPlane, path: bytes, body: bytes, status: int
) -> None:
    made = await plane()
    with pytest.raises(Refusal) as refused:
        await PlanePicks(made).pick(ask(path, body))
    assert refused.value.status == status
    assert made.metrics.rejected[status] == 1


async def test_content_types_are_those_of_the_proxy(plane: StartPlane) -> None:
    picks = PlanePicks(await plane())
    await carried(picks, content_type=b"application/json; charset=utf-8")
    with pytest.raises(Refusal) as refused:
        await picks.pick(ask(content_encoding=b"gzip"))
    assert refused.value.status == 415


async def test_questions_about_models_need_no_replica(plane: StartPlane) -> None:
    answer = await PlanePicks(await plane()).pick(Ask(b"GET", b"/v1/models", {}, b""))
    assert isinstance(answer, Answer)
    assert answer.status == 200
