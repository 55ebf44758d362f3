"""Copies of requests for a candidate: who gets one, that nobody notices, and what is told of both answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from paceline_crds.routing import Shape
from paceline_router.shadow import copying, tap
from paceline_router.shadow.counts import Counts
from paceline_router.shadow.rules import sampled
from paceline_router.table.records import Replica, Service, Shadow, Table, TrafficShare
from paceline_shadow_traffic.pair import Pair

SHADOW = Shadow("new", 100, recorder="http://recorder.invalid")
BASE = TrafficShare("default", "old", 100)


class Kept:
    """Takes pairs where a router has what posts them."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []

    def put(self, recorder: str, pair: Pair, counts: Counts) -> None:
        self.pairs.append(pair)


def table(helpers: Any, base: Any, candidate: Any, shadow: Shadow | None = SHADOW, **service: Any) -> Table:
    """A service whose base has the traffic; `candidate` is a peer, a port or None."""
    found: dict[str, Replica] = {}
    for revision, peer in (("old", base), ("new", candidate)):
        if peer is not None:
            port = peer if isinstance(peer, int) else peer.port
            name = f"pod-{revision}"
            found[name] = Replica(
                name, name, helpers.KEY, "default", "", "127.0.0.1", port, True, False, revision=revision
            )
    fields: dict[str, Any] = {"traffic": (BASE,), "shadow": shadow, **service}
    return Table(services={helpers.KEY: Service(helpers.KEY, helpers.MODEL, **fields)}, replicas=found)


def counts_of(router: Any, helpers: Any) -> Counts:
    found: Counts = router.plane.taps.counts[helpers.KEY]
    return found


async def until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not seen():
            await asyncio.sleep(0.005)


def body(helpers: Any, **more: Any) -> dict[str, Any]:
    return {"model": helpers.MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, **more}


async def ask(router: Any, helpers: Any, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=30, verify=False) as client:
        return await client.post(f"{router.url}/v1/chat/completions", json=body(helpers, **more), headers=headers or {})


async def shadow_says(request: Any) -> None:
    """What no client may ever read."""
    if request.json.get("stream"):
        request.begin_stream()
        request.event("SHADOW")
        request.end_stream()
    else:
        await request.answer({"choices": [{"message": {"content": "SHADOW"}, "finish_reason": "stop"}]})


async def silence(request: Any) -> None:
    await request.gone.wait()


async def crash(request: Any) -> None:
    request.begin_stream()
    request.event("SHADOW")
    await request.writer.drain()
    request.die()


async def test_the_candidate_gets_a_copy_of_its_own_and_the_client_only_the_bases_answer(
    router: Any, peer: Any, helpers: Any
) -> None:
    base, candidate = await peer(), await peer(shadow_says)
    kept = Kept()
    plane = await router(table=table(helpers, base, candidate))
    plane.plane.living[helpers.KEY].shadow.sender = kept
    secret = {"authorization": "Bearer sk-secret", "idempotency-key": "k", "x-user-id": "u", "x-paceline-session": "s"}
    answer = await ask(plane, helpers, secret, stream=True)
    assert "SHADOW" not in answer.text
    assert answer.headers["x-paceline-revision"] == "old"
    await until(lambda: bool(kept.pairs))
    [copy] = candidate.received
    assert copy.headers["x-paceline-shadow"] == "1"
    assert copy.headers["host"] == f"127.0.0.1:{candidate.port}"
    assert not {"authorization", "idempotency-key", "x-user-id", "x-paceline-session"} & copy.headers.keys()
    assert "x-paceline-shadow" not in base.received[0].headers
    assert copy.json == base.received[0].json
    [pair] = kept.pairs
    assert pair.id == answer.headers["x-request-id"] == copy.headers["x-paceline-request-id"]
    assert (pair.base, pair.candidate, pair.pool) == ("old", "new", "default")
    assert json.loads(pair.request) == body(helpers, stream=True)
    old, new = pair.answers
    assert b"".join(data for _, data in old.pieces) == answer.content
    assert b"SHADOW" in b"".join(data for _, data in new.pieces)
    for heard in (old, new):
        times = [at for at, _ in heard.pieces]
        assert times == sorted(times)
        assert 0.0 <= times[0] <= times[-1] <= heard.seconds
    assert counts_of(plane, helpers).outcomes["answered"] == 1


async def test_each_version_is_asked_by_the_name_that_it_has_for_the_model(
    router: Any, peer: Any, helpers: Any
) -> None:
    from paceline_router.table.records import Revision

    base, candidate = await peer(), await peer(shadow_says)
    made = table(
        helpers, base, candidate, replace(SHADOW, revision="chat-2"), traffic=(replace(BASE, revision="chat-1"),)
    )
    revisions = {
        f"demo/{name}": Revision(f"demo/{name}", name, helpers.KEY, "", {"default": pool_hash}, {"default": served})
        for name, pool_hash, served in (("chat-1", "h1", helpers.MODEL), ("chat-2", "h2", "other"))
    }
    replicas = {
        uid: replace(one, pool_hash="h1" if one.revision == "old" else "h2", revision=None)
        for uid, one in made.replicas.items()
    }
    plane = await router(table=replace(made, revisions=revisions, replicas=replicas))
    assert (await ask(plane, helpers)).status_code == 200
    await until(lambda: bool(candidate.received))
    assert candidate.received[0].json["model"] == "other"
    assert base.received[0].json["model"] == helpers.MODEL


async def test_copies_count_in_nothing_of_the_services(router: Any, peer: Any, helpers: Any) -> None:
    base, candidate = await peer(), await peer(shadow_says)
    with_copies = await router(table=table(helpers, base, candidate))
    without = await router(table=table(helpers, base, candidate, None))
    for one in (with_copies, without):
        for number in range(5):
            assert (await ask(one, helpers, {"x-paceline-tenant": "a"}, stream=bool(number % 2))).status_code == 200
    await until(lambda: counts_of(with_copies, helpers).outcomes["answered"] == 5)
    assert with_copies.outcomes() == without.outcomes() == {"2xx": 5}
    mine, other = (one.plane.living[helpers.KEY] for one in (with_copies, without))
    assert mine.arrivals == other.arrivals == 5
    assert mine.metrics.cells.keys() == other.metrics.cells.keys() == {("default", "old")}
    for uid in ("pod-old", "pod-new"):
        seen, expected = with_copies.plane.backends[uid], without.plane.backends[uid]
        assert (seen.in_flight, seen.chosen, seen.slot, seen.idle and True) == (
            expected.in_flight,
            expected.chosen,
            expected.slot,
            expected.idle and True,
        )
    assert with_copies.plane.backends["pod-new"].slot == -1
    assert without.plane.taps.counts == {}


@pytest.mark.parametrize("handler", [silence, crash])
async def test_a_candidate_that_hangs_or_crashes_costs_no_answer(
    router: Any, peer: Any, helpers: Any, handler: Any
) -> None:
    base, candidate = await peer(), await peer(handler)
    plane = await router(table=table(helpers, base, candidate, replace(SHADOW, max_concurrent=2)))
    answers = await asyncio.gather(*(ask(plane, helpers, stream=bool(n % 2)) for n in range(60)))
    assert {answer.status_code for answer in answers} == {200}
    assert not any("SHADOW" in answer.text for answer in answers)
    assert plane.outcomes() == {"2xx": 60}
    assert plane.retries() == {}
    counts = counts_of(plane, helpers)
    if handler is silence:
        assert counts.in_flight == 2
        assert counts.skipped["queue_full"] + counts.skipped["waited"] >= 60 - 2 - tap.MAX_WAITING
    else:
        await until(lambda: counts.in_flight == 0)
        assert counts.outcomes["reset"] + counts.skipped["queue_full"] + counts.skipped["waited"] == 60
    living = plane.plane.living[helpers.KEY]
    assert living.ejected() == 0


async def test_a_candidate_that_nobody_can_connect_to_costs_no_answer(
    router: Any, peer: Any, helpers: Any, closed_port: int
) -> None:
    base = await peer()
    plane = await router(table=table(helpers, base, closed_port))
    for _ in range(4):
        assert (await ask(plane, helpers)).status_code == 200
    await until(lambda: counts_of(plane, helpers).outcomes["connect"] == 4)
    assert plane.plane.metrics.connect_failures == 0


async def test_a_candidate_that_does_not_read_costs_no_answer_and_bounded_memory(
    router: Any, peer: Any, helpers: Any, blackhole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap, "MAX_HELD", 300_000)
    base = await peer()
    plane = await router(table=table(helpers, base, blackhole, replace(SHADOW, max_prompt_tokens=1_000_000)))
    for _ in range(8):
        answer = await ask(plane, helpers, messages=[{"role": "user", "content": "x" * 100_000}])
        assert answer.status_code == 200
        assert plane.plane.taps.held <= 300_000 + 101_000
    counts = counts_of(plane, helpers)
    assert counts.skipped["memory"] + counts.outcomes["memory"] >= 1
    assert plane.outcomes() == {"2xx": 8}


async def test_a_copy_has_a_deadline_and_its_pair_says_so(
    router: Any, peer: Any, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "COPY_SECONDS", 0.05)
    base, candidate = await peer(), await peer(silence)
    kept = Kept()
    plane = await router(table=table(helpers, base, candidate))
    plane.plane.living[helpers.KEY].shadow.sender = kept
    assert (await ask(plane, helpers)).status_code == 200
    await until(lambda: bool(kept.pairs))
    assert kept.pairs[0].answers[1].failure == "timeout"
    await until(lambda: all(request.gone.is_set() for request in candidate.received))
    assert counts_of(plane, helpers).in_flight == 0


async def never_ending(request: Any) -> None:
    request.begin_stream()
    for _ in range(3):
        request.event("SHADOW" * 100_000)
    await request.gone.wait()


async def test_a_candidate_that_comes_to_no_end_is_told_as_one_that_failed(
    router: Any, peer: Any, helpers: Any
) -> None:
    """Else the requests at which it does so would be in no verdict."""
    base, candidate = await peer(), await peer(never_ending)
    kept = Kept()
    plane = await router(table=table(helpers, base, candidate))
    plane.plane.living[helpers.KEY].shadow.sender = kept
    assert (await ask(plane, helpers)).status_code == 200
    await until(lambda: bool(kept.pairs))
    [pair] = kept.pairs
    assert (pair.answers[1].failure, pair.answers[1].pieces) == ("answer_too_large", [])
    counts = counts_of(plane, helpers)
    assert (counts.outcomes["answer_too_large"], counts.in_flight, plane.plane.taps.held) == (1, 0, 0)
    await until(lambda: candidate.received[0].gone.is_set())


async def test_a_client_that_leaves_ends_the_copy_as_well(router: Any, peer: Any, helpers: Any) -> None:
    base, candidate = await peer(silence), await peer(silence)
    plane = await router(table=table(helpers, base, candidate))
    asking = asyncio.create_task(ask(plane, helpers))
    await until(lambda: bool(base.received and candidate.received))
    asking.cancel()
    await asyncio.wait_for(candidate.received[0].gone.wait(), 30)
    assert counts_of(plane, helpers).outcomes["client_left"] == 1


async def test_a_copy_that_waits_is_forgotten_with_its_client_and_takes_no_place(
    router: Any, peer: Any, helpers: Any
) -> None:
    base, candidate = await peer(silence), await peer(silence)
    plane = await router(table=table(helpers, base, candidate, replace(SHADOW, max_concurrent=1)))
    first, second = (asyncio.create_task(ask(plane, helpers)) for _ in range(2))
    await until(lambda: len(base.received) == 2 and len(candidate.received) == 1)
    for asking in (second, first):
        asking.cancel()
    counts = counts_of(plane, helpers)
    await until(lambda: counts.outcomes["client_left"] == counts.skipped["client_left"] == 1)
    shadow = plane.plane.living[helpers.KEY].shadow
    assert (shadow.running, counts.in_flight, plane.plane.taps.held) == (0, 0, 0)
    assert len(candidate.received) == 1


async def test_a_pair_that_cannot_be_told_costs_the_request_nothing(router: Any, peer: Any, helpers: Any) -> None:
    class Broken:
        def put(self, *_: Any) -> None:
            raise ValueError

    base, candidate = await peer(), await peer(shadow_says)
    plane = await router(table=table(helpers, base, candidate))
    plane.plane.living[helpers.KEY].shadow.sender = Broken()
    for _ in range(2):
        assert (await ask(plane, helpers, stream=True)).status_code == 200
    await until(lambda: counts_of(plane, helpers).pairs["dropped"] == 2)
    assert base.connections == 1
    assert plane.plane.taps.held == 0


async def test_a_request_that_its_own_replica_fails_makes_no_pair(router: Any, peer: Any, helpers: Any) -> None:
    async def fail(request: Any) -> None:
        await request.answer({"error": {"message": "no"}}, "500 Internal Server Error")

    base, candidate = await peer(fail), await peer(silence)
    plane = await router(table=table(helpers, base, candidate))
    assert (await ask(plane, helpers)).status_code == 500
    counts = counts_of(plane, helpers)
    assert counts.outcomes["base_failed"] + counts.skipped["base_failed"] == 1


@pytest.mark.parametrize(
    ("reason", "shadow", "headers", "more"),
    [
        ("opt_out", {"opt_out_tenants": frozenset(["a"])}, {"x-paceline-tenant": "a"}, {}),
        ("prompt_too_long", {"max_prompt_tokens": 50}, {}, {"messages": [{"role": "user", "content": "word " * 900}]}),
        ("answer_too_long", {"max_tokens": 50}, {}, {"max_tokens": 51}),
        ("several_choices", {}, {}, {"n": 2}),
        ("by_hand", {}, {"x-paceline-revision": "old"}, {}),
        ("shape", {"shapes": frozenset([Shape.VERY_LONG.value])}, {}, {}),
        ("body_too_large", {"max_prompt_tokens": 10**7}, {}, {"messages": [{"role": "user", "content": "x" * 2**21}]}),
    ],
)
async def test_what_is_not_to_be_copied_is_counted_by_its_reason(
    router: Any, peer: Any, helpers: Any, reason: str, shadow: dict[str, Any], headers: Any, more: Any
) -> None:
    from paceline_crds.tenancy import IdentitySource, IdentitySpec, TenancySpec
    from paceline_router.table.policy import Policy

    policy = Policy(tenancy=TenancySpec(identity=IdentitySpec(from_=IdentitySource.TRUSTED_HEADER)))
    base, candidate = await peer(), await peer(shadow_says)
    plane = await router(table=table(helpers, base, candidate, replace(SHADOW, **shadow), policy=policy))
    assert (await ask(plane, helpers, headers, **more)).status_code == 200
    counts = counts_of(plane, helpers)
    assert {name: count for name, count in counts.skipped.items() if count} == {reason: 1}
    assert candidate.received == []


async def test_without_a_replica_of_the_candidate_nothing_is_copied(router: Any, peer: Any, helpers: Any) -> None:
    plane = await router(table=table(helpers, await peer(), None))
    assert (await ask(plane, helpers)).status_code == 200
    assert counts_of(plane, helpers).skipped["no_replica"] == 1


async def test_with_a_canary_beside_it_a_request_that_the_candidate_itself_answers_is_not_copied(
    router: Any, peer: Any, helpers: Any
) -> None:
    base, candidate = await peer(), await peer()
    shares = (TrafficShare("default", "old", 80), TrafficShare("default", "new", 20))
    shadow = replace(SHADOW, max_concurrent=64)
    plane = await router(table=table(helpers, base, candidate, shadow, traffic=shares))
    by_revision = [(await ask(plane, helpers)).headers["x-paceline-revision"] for _ in range(50)]
    assert by_revision.count("new") == 10
    counts = counts_of(plane, helpers)
    await until(lambda: counts.outcomes["answered"] == 40)
    assert counts.skipped["same_revision"] == 10


async def test_where_only_the_shadow_is_left_clients_are_refused_and_never_get_its_answer(
    router: Any, peer: Any, helpers: Any
) -> None:
    from paceline_router.table.policy import Policy

    candidate = await peer(shadow_says)
    plane = await router(table=table(helpers, None, candidate, policy=Policy(hold=0.0)))
    answer = await ask(plane, helpers)
    assert answer.status_code == 503
    by_hand = await ask(plane, helpers, {"x-paceline-revision": "new"})
    assert "SHADOW" in by_hand.text


async def test_an_idle_shadow_is_no_room_for_requests_that_wait(router: Any, peer: Any, helpers: Any) -> None:
    base, candidate = await peer(silence), await peer(silence)
    plane = await router(table=table(helpers, base, candidate))
    living = plane.plane.living[helpers.KEY]
    assert [backend.key for backend in living.backends] == ["pod-old"]


async def test_when_no_copies_are_wanted_any_more_those_that_run_end(router: Any, peer: Any, helpers: Any) -> None:
    base, candidate = await peer(), await peer(silence)
    plane = await router(table=table(helpers, base, candidate))
    assert (await ask(plane, helpers)).status_code == 200
    await until(lambda: bool(candidate.received))
    plane.plane.use(table(helpers, base, candidate, None))
    await asyncio.wait_for(candidate.received[0].gone.wait(), 30)
    assert plane.plane.living[helpers.KEY].shadow is None
    assert counts_of(plane, helpers).outcomes["stopped"] == 1
    assert (await ask(plane, helpers)).status_code == 200
    assert len(candidate.received) == 1


async def test_a_stream_that_breaks_at_the_first_replica_is_heard_once(router: Any, peer: Any, helpers: Any) -> None:
    """The pair has the answer that the client got, not pieces of two."""
    tries = []

    async def dies_first(request: Any) -> None:
        tries.append(request)
        if len(tries) == 1:
            request.die()
        else:
            await helpers.say_hello(request)

    base, candidate = await peer(dies_first), await peer(shadow_says)
    other = replace(table(helpers, base, candidate).replicas["pod-old"], uid="pod-old-2", name="pod-old-2")
    made = table(helpers, base, candidate)
    kept = Kept()
    plane = await router(table=replace(made, replicas={**made.replicas, "pod-old-2": other}))
    plane.plane.living[helpers.KEY].shadow.sender = kept
    answer = await ask(plane, helpers, stream=True)
    await until(lambda: bool(kept.pairs))
    assert b"".join(data for _, data in kept.pairs[0].answers[0].pieces) == answer.content
    assert len(candidate.received) == 1


@pytest.mark.parametrize("percent", [1, 10, 50, 100])
def test_the_share_is_kept_and_the_same_request_is_always_judged_alike(percent: int) -> None:
    ids = [b"req-%b-%x" % (b"0a1b2c3d4e", number) for number in range(1, 20_001)]
    share = sum(sampled(one, percent) for one in ids) / len(ids)
    assert abs(share * 100 - percent) <= 0.1 * percent + 0.2
    assert all(sampled(one, percent) == sampled(one, percent) for one in ids[:100])
