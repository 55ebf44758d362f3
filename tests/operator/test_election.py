import asyncio
import copy
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from paceline_kube import LEASES, AioKubeClient, AlreadyExists, Conflict, NotFound, Unreachable
from paceline_kube.testing import FakeApiServer, Refusal
from paceline_operator.election import Election, LeaseTiming, Sighting, next_move

TIMING = LeaseTiming(duration=15, renew_deadline=10, retry=2)
LEASE = {"namespace": "home", "name": "op"}


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Lossy:
    """A client whose next call fails: before it reaches the server, or after the server has acted on it."""

    def __init__(self, client: AioKubeClient) -> None:
        self._client = client
        self.timeout = client.timeout
        self.fail = ""

    def __getattr__(self, name: str) -> Any:
        genuine = getattr(self._client, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.fail == "before":
                raise Unreachable("cut before")
            answer = await genuine(*args, **kwargs)
            if self.fail == "after" and name in ("create", "replace"):
                raise Unreachable("cut after")
            return answer

        return call


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


def candidate(server: FakeApiServer, name: str, clock: Clock, wall: Clock | None = None) -> Election:
    client: Any = Lossy(server.client())
    return Election(client, **LEASE, identity=name, timing=TIMING, clock=clock, wall=wall or clock)


@pytest.mark.parametrize(
    ("exists", "seen", "move"),
    [
        (False, None, "create"),
        (True, Sighting("me", "1", 15, at=0), "renew"),
        (True, Sighting("you", "1", 15, at=90), "wait"),
        (True, Sighting("you", "1", 15, at=85), "take"),
        (True, Sighting("", "1", 1, at=100), "take"),
        (False, Sighting("you", "1", 15, at=90), "wait"),
        (False, Sighting("you", "1", 15, at=85), "create"),
        (False, Sighting("me", "1", 15, at=99), "create"),
    ],
)
def test_what_a_candidate_does(exists: bool, seen: Sighting | None, move: str) -> None:
    assert next_move("me", exists, seen, now=100) == move


@pytest.mark.parametrize("times", [(15, 15, 2), (15, 10, 10), (15, 10, 0), (5, 10, 2)])
def test_times_that_can_not_work_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="a lease needs"):
        LeaseTiming(*times)


async def test_the_first_candidate_leads_and_the_second_waits(server: FakeApiServer) -> None:
    clock = Clock()
    first, second = candidate(server, "first", clock), candidate(server, "second", clock)
    await first.step()
    await second.step()
    assert first.leading.is_set()
    assert first.remaining() == 15
    assert not second.leading.is_set()
    assert second.remaining() == 0
    assert second.holder == "first"


async def test_a_killed_leader_is_followed_within_the_lease_time(server: FakeApiServer) -> None:
    clock = Clock()
    first, second = candidate(server, "first", clock), candidate(server, "second", clock)
    await first.step()
    await second.step()
    clock.now = 14.9
    await second.step()
    assert not second.leading.is_set()
    clock.now = 15.1
    await second.step()
    assert second.leading.is_set()
    lease = await server.client().get(LEASES, "op", "home")
    assert lease["spec"]["holderIdentity"] == "second"
    assert lease["spec"]["leaseTransitions"] == 1


async def test_a_renewing_leader_is_never_followed(server: FakeApiServer) -> None:
    clock = Clock()
    first, second = candidate(server, "first", clock), candidate(server, "second", clock)
    for clock.now in range(0, 100, 2):
        await first.step()
        await second.step()
        assert first.leading.is_set()
        assert not second.leading.is_set()


async def test_wall_clocks_may_differ_by_any_amount(server: FakeApiServer) -> None:
    clock = Clock(50)
    first = candidate(server, "first", clock, wall=Clock(4_000_000_000))
    second = candidate(server, "second", Clock(99_999), wall=Clock(0))
    await first.step()
    await second.step()
    assert not second.leading.is_set()


async def test_a_leader_that_can_not_renew_steps_down_before_anyone_can_follow(server: FakeApiServer) -> None:
    clock = Clock()
    first, second = candidate(server, "first", clock), candidate(server, "second", clock)
    await first.step()
    await second.step()
    first._client.fail = "before"  # type: ignore[attr-defined]
    for clock.now in (2, 4, 6, 8):
        await first.step()
        assert first.leading.is_set()
    clock.now = 10
    await first.step()
    assert not first.leading.is_set()
    assert first.stopped_leading.is_set()
    await second.step()
    assert not second.leading.is_set()
    clock.now = 16
    await second.step()
    assert second.leading.is_set()
    first._client.fail = ""  # type: ignore[attr-defined]
    await first.step()
    assert not first.leading.is_set()
    assert first.holder == "second"


async def test_a_lost_answer_to_a_renewal_counts_as_none(server: FakeApiServer) -> None:
    clock = Clock()
    first = candidate(server, "first", clock)
    await first.step()
    clock.now = 4
    first._client.fail = "after"  # type: ignore[attr-defined]
    await first.step()
    assert first.remaining() == 11
    first._client.fail = ""  # type: ignore[attr-defined]
    await first.step()
    assert first.remaining() == 15


async def test_a_leader_renews_by_one_call_and_reads_only_where_another_has_written(server: FakeApiServer) -> None:
    clock = Clock()
    first = candidate(server, "first", clock)
    await first.step()
    for clock.now in range(2, 10, 2):
        del server.requests[:]
        await first.step()
        assert [request.split()[0] for request in server.requests] == ["PUT"]
        assert first.remaining() == 15
    await server.client().patch(LEASES, "op", {"metadata": {"labels": {"seen": "yes"}}}, "home")
    del server.requests[:]
    await first.step()
    assert [request.split()[0] for request in server.requests] == ["PUT", "GET", "PUT"]
    assert first.remaining() == 15


async def test_a_lease_that_was_deleted_is_made_anew_by_its_holder(server: FakeApiServer) -> None:
    clock = Clock()
    first, second = candidate(server, "first", clock), candidate(server, "second", clock)
    await first.step()
    await second.step()
    await server.client().delete(LEASES, "op", "home")
    clock.now = 2
    await second.step()
    await first.step()
    assert first.leading.is_set()
    assert first.remaining() == 15
    assert not second.leading.is_set()


async def test_a_leader_that_sees_another_holder_stops_at_once(server: FakeApiServer) -> None:
    clock = Clock()
    first = candidate(server, "first", clock)
    await first.step()
    client = server.client()
    await client.patch(LEASES, "op", {"spec": {"holderIdentity": "usurper"}}, "home")
    await first.step()
    assert not first.leading.is_set()
    assert first.remaining() == 0


async def test_a_released_lease_is_free_at_once(server: FakeApiServer) -> None:
    clock = Clock()
    first, second = candidate(server, "first", clock), candidate(server, "second", clock)
    await first.step()
    await second.step()
    await first.release()
    assert not first.leading.is_set()
    await second.step()
    assert second.leading.is_set()


async def test_only_the_holder_releases(server: FakeApiServer) -> None:
    clock = Clock()
    first, second = candidate(server, "first", clock), candidate(server, "second", clock)
    await first.step()
    await second.step()
    await second.release()
    lease = await server.client().get(LEASES, "op", "home")
    assert lease["spec"]["holderIdentity"] == "first"


async def test_a_restarted_process_is_another_candidate(server: FakeApiServer) -> None:
    clock = Clock()
    await candidate(server, "op-0_aaaa", clock).step()
    again = candidate(server, "op-0_bbbb", clock)
    await again.step()
    assert not again.leading.is_set()


async def test_a_refused_request_is_survived(server: FakeApiServer) -> None:
    first = candidate(server, "first", Clock())
    server.refuse(Refusal(403, "Forbidden", "no"))
    await first.step()
    assert not first.leading.is_set()
    await first.step()
    assert first.leading.is_set()


async def test_running_it_leads_until_cancelled(server: FakeApiServer) -> None:
    timing = LeaseTiming(duration=3, renew_deadline=2, retry=0.05)
    election = Election(server.client(), **LEASE, identity="me", timing=timing)
    task = asyncio.create_task(election.run())
    await asyncio.wait_for(election.leading.wait(), 5)
    first = (await server.client().get(LEASES, "op", "home"))["spec"]["renewTime"]
    async with asyncio.timeout(5):
        while (await server.client().get(LEASES, "op", "home"))["spec"]["renewTime"] == first:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not election.leading.is_set()
    assert election.remaining() == 0


class World:
    """The API server's part, and time: it passes on the way there, on the way back, and others may act meanwhile."""

    def __init__(self, offsets: tuple[int, ...]) -> None:
        self.stored: dict[str, Any] | None = None
        self.version = 0
        self.clocks = [Clock(float(offset)) for offset in offsets]
        self.ways = [Way(self) for _ in offsets]
        self.candidates: list[Election] = []
        for i, clock in enumerate(self.clocks):
            client: Any = self.ways[i]
            one = Election(client, **LEASE, identity=f"c{i}", timing=TIMING, clock=clock, wall=Clock(0))
            self.candidates.append(one)

    def write(self, lease: Any) -> dict[str, Any]:
        self.version += 1
        self.stored = copy.deepcopy(dict(lease))
        self.stored["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.stored)

    def tick(self, seconds: int) -> None:
        for second in range(seconds + 1):
            holders = [one.identity for one in self.candidates if one.remaining() > 0]
            assert len(holders) <= 1, holders
            if second < seconds:
                for clock in self.clocks:
                    clock.now += 1


class Way:
    """One candidate's way to the API server: seconds there and back, what is lost, and who acts meanwhile."""

    timeout = 5.0

    def __init__(self, world: World) -> None:
        self.world = world
        self.there = self.back = 0
        self.lost = ""
        self.meanwhile: int | None = None

    async def _answer(self, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        there, back, lost, meanwhile = self.there, self.back, self.lost, self.meanwhile
        self.there, self.back, self.lost, self.meanwhile = 0, 0, "", None
        self.world.tick(there)
        if lost == "question":
            raise Unreachable("cut before")
        try:
            return act()
        finally:
            if meanwhile is not None and self.world.ways[meanwhile] is not self:
                await self.world.candidates[meanwhile].step()
            self.world.tick(back)
            if lost == "answer":
                raise Unreachable("cut after")

    async def get(self, *_: Any) -> dict[str, Any]:
        if self.world.stored is None:
            raise NotFound(404)
        return copy.deepcopy(self.world.stored)

    async def create(self, _: Any, lease: Any) -> dict[str, Any]:
        def act() -> dict[str, Any]:
            if self.world.stored is not None:
                raise AlreadyExists(409)
            return self.world.write(lease)

        return await self._answer(act)

    async def replace(self, _: Any, lease: Any) -> dict[str, Any]:
        def act() -> dict[str, Any]:
            if self.world.stored is None or lease["metadata"]["resourceVersion"] != str(self.world.version):
                raise Conflict(409)
            return self.world.write(lease)

        return await self._answer(act)


@pytest.mark.parametrize("seed", range(4))
async def test_never_two_hold_the_lease_whatever_is_lost_and_however_late(seed: int) -> None:
    # Plain random plays find a lease counted three seconds wrong in every tenth play; a strategy for a shrinking
    # search, which prefers short and equal moves, hardly ever did.
    rng = random.Random(seed)

    def mostly(usual: Any, *others: Any) -> Any:
        return usual if rng.random() < 0.8 else rng.choice(others)

    takeovers = 0
    for _ in range(100):
        world = World((rng.randrange(1000), rng.randrange(1000), rng.randrange(1000)))
        for _ in range(25):
            who = rng.randrange(3)
            way, one = world.ways[who], world.candidates[who]
            way.there, way.back = mostly(0, 3, 12), mostly(0, 3, 12)
            way.lost, way.meanwhile = mostly("", "question", "answer"), mostly(None, 0, 1, 2)
            await (one.release() if mostly(False, True) else one.step())
            world.tick(rng.choice([0, 0, 2, 7, 13]))
        takeovers += (world.stored or {"spec": {"leaseTransitions": 0}})["spec"]["leaseTransitions"]
    assert takeovers > 100
