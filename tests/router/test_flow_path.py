"""Each step on a request's way, seen from outside: tenant, shape, pool, version, replica."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from paceline_crds.routing import OverLongAction, OverLongSpec, RoutingSpec, Shape
from paceline_crds.tenancy import TenancySpec
from paceline_router.flow.health import EJECT_FIRST, ERRORS, Phase
from paceline_router.table.policy import Policy, make_policy
from paceline_router.table.records import Limits, Replica, Revision, Service, Table, TrafficShare
from paceline_router.tenancy.keys import Keys

MESSAGES: Any = [{"role": "user", "content": "hi"}]
BODY = {"model": "smollm2", "messages": MESSAGES}
PATH = "/v1/chat/completions"
LONG = {**BODY, "messages": [{"role": "user", "content": "many words " * 2000}], "max_tokens": 5}


def client_of(router: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=router.url, timeout=10)


async def die(request: Any) -> None:
    request.die()


def pools(helpers: Any, by_pool: dict[str, Sequence[Any]], policy: Policy, most: dict[str, int] | None = None) -> Table:
    """A table with these peers in these pools, whose replicas take at most so many tokens."""
    replicas: dict[str, Replica] = {}
    for pool, peers in by_pool.items():
        for peer in peers:
            uid = f"{pool}-{len(replicas)}"
            limits = Limits(max_model_len=(most or {}).get(pool))
            replicas[uid] = Replica(uid, uid, helpers.KEY, pool, "h", "127.0.0.1", peer.port, True, False, limits)
    return Table(services={helpers.KEY: Service(helpers.KEY, helpers.MODEL, policy=policy)}, replicas=replicas)


def to_long(pool: str = "long", **routing: Any) -> Policy:
    """A policy in which long inputs have a pool of their own."""
    return make_policy(RoutingSpec(**routing), claims={Shape.LONG_INPUT_SHORT_OUTPUT.value: pool})


# Shapes and pools


async def test_a_request_goes_to_the_pool_of_its_shape_and_is_told_which(router: Any, peer: Any, helpers: Any) -> None:
    default, long = await peer(), await peer()
    service = await router(table=pools(helpers, {"default": [default], "long": [long]}, to_long()))
    async with client_of(service) as client:
        for body, replica, name in ((BODY, default, "default"), (LONG, long, "long")):
            answer = await client.post(PATH, json=body, headers={"x-paceline-explain": "1"})
            assert answer.headers["x-paceline-pool"] == name
            assert replica.received[-1].headers["x-paceline-shape"] == answer.headers["x-paceline-shape"]
    assert [len(default.received), len(long.received)] == [1, 1]
    assert long.received[0].headers["x-paceline-shape"] == "LongInputShortOutput"


async def test_a_pool_that_is_down_spills_and_its_requests_come_back(router: Any, peer: Any, helpers: Any) -> None:
    default, long = await peer(), await peer()
    whole = pools(helpers, {"default": [default], "long": [long]}, to_long())
    service = await router(table=pools(helpers, {"default": [default]}, to_long()))
    async with client_of(service) as client:
        spilled = await client.post(PATH, json=LONG, headers={"x-paceline-explain": "1"})
        service.plane.use(whole)
        back = await client.post(PATH, json=LONG)
    assert spilled.headers["x-paceline-pool"] == "default"
    assert "long" in spilled.headers["x-paceline-reason"]
    assert back.headers["x-paceline-pool"] == "long"
    assert sum(service.plane.metrics.service(helpers.KEY).spills.values()) == 1


async def test_a_request_longer_than_its_pool_takes_is_refused_in_words(router: Any, peer: Any, helpers: Any) -> None:
    replica = await peer()
    service = await router(table=pools(helpers, {"default": [replica]}, Policy(), {"default": 1024}))
    async with client_of(service) as client:
        answer = await client.post(PATH, json=LONG)
        assert (await client.post(PATH, json=BODY)).status_code == 200
    assert answer.status_code == 400
    assert "1024" in answer.json()["error"]["message"]
    assert len(replica.received) == 1
    assert service.plane.metrics.service(helpers.KEY).refusals["over_long"] == 1


async def test_the_bound_on_an_answer_is_cut_where_the_rule_says_so(router: Any, peer: Any, helpers: Any) -> None:
    replica = await peer()
    routing = RoutingSpec(over_long=OverLongSpec(action=OverLongAction.CUT))
    table = pools(helpers, {"default": [replica]}, make_policy(routing), {"default": 1024})
    service = await router(table=table)
    async with client_of(service) as client:
        answer = await client.post(PATH, json={**BODY, "max_tokens": 9000, "seed": 1.50})
    assert answer.status_code == 200
    got = replica.received[0].json
    assert got["max_tokens"] < 1024
    assert b"1.5" in replica.received[0].body
    assert got["messages"] == MESSAGES


async def test_an_over_long_request_goes_to_the_pool_that_takes_it(router: Any, peer: Any, helpers: Any) -> None:
    default, big = await peer(), await peer()
    routing = RoutingSpec(over_long=OverLongSpec(action=OverLongAction.ROUTE, pool="big"))
    table = pools(
        helpers, {"default": [default], "big": [big]}, make_policy(routing), {"default": 1024, "big": 100_000}
    )
    service = await router(table=table)
    async with client_of(service) as client:
        assert (await client.post(PATH, json=LONG)).headers["x-paceline-pool"] == "big"
        assert (await client.post(PATH, json=BODY)).headers["x-paceline-pool"] == "default"


# Tenants


def tenancy(**spec: Any) -> Policy:
    return make_policy(RoutingSpec(), TenancySpec.model_validate_json(json.dumps(spec)))


async def test_a_tenant_is_who_its_key_says_whatever_it_claims(router: Any, peer: Any, helpers: Any) -> None:
    replica = await peer()
    policy = tenancy(identity={"from": "APIKey", "secretName": "keys"}, tenants=[{"name": "blue"}])
    service = await router(table=helpers.table_of(replica, policy=policy))
    bearer = {"authorization": "Bearer good", "x-paceline-tenant": "red"}
    async with client_of(service) as client:
        assert (await client.post(PATH, json=BODY, headers=bearer)).status_code == 503
        service.plane.use_keys(helpers.KEY, Keys({hashlib.sha256(b"good").digest(): "blue"}))
        assert (await client.post(PATH, json=BODY, headers=bearer)).status_code == 200
        assert (await client.post(PATH, json=BODY)).status_code == 401
        unknown = await client.post(PATH, json=BODY, headers={"authorization": "Bearer bad"})
    assert unknown.status_code == 401
    assert [request.headers["x-paceline-tenant"] for request in replica.received] == ["blue"]
    assert "authorization" not in replica.received[0].headers
    assert service.plane.metrics.service(helpers.KEY).refusals["identity"] == 3


@pytest.mark.parametrize(("shared", "reason"), [(True, "of the prompt's tokens already"), (False, "least work of 2")])
async def test_what_one_tenant_sent_counts_for_another_only_where_they_share_a_cache(
    router: Any, peer: Any, helpers: Any, shared: bool, reason: str
) -> None:
    table = helpers.table_of(await peer(), await peer())
    limits = Limits(shared_prefixes=shared)
    replicas = {uid: dataclasses.replace(made, limits=limits) for uid, made in table.replicas.items()}
    service = await router(table=dataclasses.replace(table, replicas=replicas))
    body = {**BODY, "messages": [{"role": "user", "content": "a long system prompt " * 40}]}
    async with client_of(service) as client:
        for tenant in ("red", "blue"):
            headers = {"x-paceline-tenant": tenant, "x-paceline-explain": "1"}
            answer = await client.post(PATH, json=body, headers=headers)
    assert reason in answer.headers["x-paceline-reason"]


async def test_a_tenant_over_its_limit_is_told_when_to_come_back(router: Any, peer: Any, helpers: Any) -> None:
    service = await router(
        table=helpers.table_of(await peer(), policy=tenancy(default={"requestsPerMinute": 6}, tenants=[]))
    )
    async with client_of(service) as client:
        red = [await client.post(PATH, json=BODY, headers={"x-paceline-tenant": "red"}) for _ in range(3)]
        blue = await client.post(PATH, json=BODY, headers={"x-paceline-tenant": "blue"})
    assert red[0].status_code == blue.status_code == 200
    assert red[-1].status_code == 429
    assert 1 <= int(red[-1].headers["retry-after"]) <= 10
    assert service.plane.metrics.service(helpers.KEY).refusals["tenant_requests"] >= 1
    assert not service.plane.exchanges


async def test_a_tenant_has_no_more_requests_at_replicas_than_its_slots(router: Any, peer: Any, helpers: Any) -> None:
    gate = asyncio.Event()

    async def until_told(request: Any) -> None:
        await gate.wait()
        await request.answer(helpers.completion())

    replica = await peer(until_told)
    policy = tenancy(default={"maxConcurrent": 2})
    service = await router(table=helpers.table_of(replica, policy=policy))
    async with client_of(service) as client:
        red = [
            asyncio.create_task(client.post(PATH, json=BODY, headers={"x-paceline-tenant": "red"})) for _ in range(6)
        ]
        async with asyncio.timeout(10):
            while service.plane.demand()[0].held < 4:
                await asyncio.sleep(0.002)
            blue = asyncio.create_task(client.post(PATH, json=BODY, headers={"x-paceline-tenant": "blue"}))
            while len(replica.received) < 3:
                await asyncio.sleep(0.002)
        assert sorted(request.headers["x-paceline-tenant"] for request in replica.received) == ["blue", "red", "red"]
        gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*red, blue)} == {200}


async def test_what_an_answer_used_is_settled_with_its_tenant(router: Any, peer: Any, helpers: Any) -> None:
    async def answer(request: Any) -> None:
        usage = {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}
        if request.json.get("stream"):
            request.begin_stream()
            request.event("x")
            request.chunk(b"data: %b\n\n" % json.dumps({"choices": [], "usage": usage}).encode())
            request.end_stream()
        else:
            await request.answer({**helpers.completion(), "usage": usage})

    policy = tenancy(default={"tokensPerMinute": 6000})
    service = await router(table=helpers.table_of(await peer(answer), policy=policy))
    async with client_of(service) as client:
        for stream in (False, True):
            body = {**BODY, "stream": stream, "max_tokens": 100}
            assert (await client.post(PATH, json=body, headers={"x-paceline-tenant": "red"})).status_code == 200
    counts = next(t for t in service.plane.living[helpers.KEY].tenants if t.name == "red").counts
    assert (counts.prompt_tokens, counts.output_tokens) == (20, 14)


# Versions


def versions(helpers: Any, peers: Sequence[Any], revisions: Sequence[str], **weights: int) -> Table:
    made = {
        f"demo/{name}": Revision(f"demo/{name}", name, helpers.KEY, "", {"default": name})
        for name in sorted(set(revisions))
    }
    table = helpers.table_of(*peers, traffic=tuple(TrafficShare("default", name, w) for name, w in weights.items()))
    replicas = {
        uid: dataclasses.replace(replica, pool_hash=revision)
        for (uid, replica), revision in zip(table.replicas.items(), revisions, strict=True)
    }
    return Table(table.services, made, replicas)


@pytest.mark.parametrize("header", ["x-paceline-session", "x-paceline-tenant"])
async def test_sessions_and_tenants_stick_to_a_version(router: Any, peer: Any, helpers: Any, header: str) -> None:
    service = await router(table=versions(helpers, [await peer(), await peer()], ["a", "b"], a=50, b=50))
    seen: dict[str, set[str]] = {}
    async with client_of(service) as client:
        for turn in range(40):
            name = f"s{turn % 8}"
            answer = await client.post(PATH, json=BODY, headers={header: name})
            seen.setdefault(name, set()).add(answer.headers["x-paceline-revision"])
    assert all(len(revisions) == 1 for revisions in seen.values())
    assert set().union(*seen.values()) == {"a", "b"}


async def test_a_retry_stays_at_its_version_while_that_has_a_replica(router: Any, peer: Any, helpers: Any) -> None:
    peers = [await peer(die), await peer(), await peer(), await peer()]
    service = await router(table=versions(helpers, peers, ["a", "a", "b", "b"], a=50, b=50))
    async with client_of(service) as client:
        for number in range(24):
            answer = await client.post(PATH, json=BODY, headers={"x-paceline-session": f"s{number}"})
            assert answer.status_code == 200
    assert len(peers[0].received) >= 1
    by_session = {
        request.headers["x-paceline-session"]: revision
        for peer_, revision in zip(peers, "aabb", strict=True)
        for request in peer_.received
    }
    assert all(by_session[request.headers["x-paceline-session"]] == "a" for request in peers[0].received)


async def test_a_retry_leaves_a_version_that_has_no_other_replica(router: Any, peer: Any, helpers: Any) -> None:
    peers = [await peer(die), await peer()]
    service = await router(table=versions(helpers, peers, ["a", "b"], a=100), retry_pause=0.01)
    async with client_of(service) as client:
        asked = asyncio.create_task(client.post(PATH, json=BODY))
        async with asyncio.timeout(10):
            while not peers[0].received:
                await asyncio.sleep(0.001)
        service.plane.use(versions(helpers, [peers[1]], ["b"], b=100))
        answer = await asked
    assert answer.status_code == 200
    assert answer.headers["x-paceline-revision"] == "b"


# Health of the fleet


async def test_most_replicas_failing_ends_retries_and_the_answer_says_so(router: Any, peer: Any) -> None:
    service = await router(*[await peer(die) for _ in range(3)], retry_pause=0.01)
    async with client_of(service) as client:
        answers = [await client.post(PATH, json=BODY) for _ in range(8)]
    assert {answer.status_code for answer in answers} == {502}
    assert "most replicas of the service fail" in answers[-1].json()["error"]["message"]
    assert service.plane.metrics.retries_refused >= 1
    assert sum(backend.health.ejected for backend in service.plane.backends.values()) == 2


async def test_a_replica_that_answers_with_errors_is_ejected_and_one_probe_brings_it_back(
    router: Any, peer: Any, helpers: Any
) -> None:
    broken = True

    async def sometimes(request: Any) -> None:
        if broken:
            await request.answer({"error": {"message": "broken"}}, "500 Internal Server Error")
        else:
            await request.answer(helpers.completion())

    failing, fine = await peer(sometimes), await peer()
    service = await router(failing, fine)
    now = service.plane.now
    async with client_of(service) as client:
        while not service.plane.backends["r0"].health.ejected:
            await client.post(PATH, json=BODY)
        assert len(failing.received) == ERRORS
        for _ in range(4):
            assert (await client.post(PATH, json=BODY)).status_code == 200
        assert len(failing.received) == ERRORS
        broken = False
        service.plane.now = lambda: now() + EJECT_FIRST + 0.1
        for _ in range(4):
            assert (await client.post(PATH, json=BODY)).status_code == 200
    assert len(failing.received) > ERRORS
    assert service.plane.backends["r0"].health.phase is Phase.CLOSED
    assert service.plane.metrics.service(helpers.KEY).ejections == 1


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_a_busy_replica_is_left_alone_for_as_long_as_it_asks(router: Any, peer: Any, status: str) -> None:
    async def busy(request: Any) -> None:
        await request.answer({"error": {"message": "busy"}}, status, "retry-after: 20\r\n")

    replicas = [await peer(busy), await peer()]
    service = await router(*replicas)
    async with client_of(service) as client:
        assert {(await client.post(PATH, json=BODY)).status_code for _ in range(8)} == {200}
    assert len(replicas[0].received) <= 1
    assert not service.plane.backends["r0"].health.ejected


async def test_4xx_answers_of_one_client_eject_nothing(router: Any, peer: Any) -> None:
    async def too_long(request: Any) -> None:
        await request.answer({"error": {"message": "too long"}}, "400 Bad Request")

    service = await router(await peer(too_long), await peer(too_long))
    async with client_of(service) as client:
        assert {(await client.post(PATH, json=BODY)).status_code for _ in range(20)} == {400}
    assert not any(backend.health.ejected for backend in service.plane.backends.values())


# What is left behind


async def test_work_and_slots_are_given_back_however_requests_end(router: Any, peer: Any, helpers: Any) -> None:
    async def by_turns(request: Any) -> None:
        turn = len(replica.received) % 3
        if turn == 0:
            request.die()
        elif turn == 1:
            await request.answer({"error": {"message": "no"}}, "400 Bad Request")
        else:
            await request.answer(helpers.completion())

    replica = await peer(by_turns)
    service = await router(replica, retry_pause=0.01)
    async with client_of(service) as client:
        await asyncio.gather(
            *(client.post(PATH, json=BODY, headers={"x-paceline-tenant": f"t{n % 3}"}) for n in range(30))
        )
    await service.idle()
    backend = service.plane.backends["r0"]
    living = service.plane.living[helpers.KEY]
    assert (backend.in_flight, backend.work, living.gate.queued, living.held_bytes) == (0, 0.0, 0, 0)
    assert all(tenant.running == tenant.queued == 0 for tenant in living.tenants)
    assert service.plane.metrics.service(helpers.KEY).in_flight == 0
