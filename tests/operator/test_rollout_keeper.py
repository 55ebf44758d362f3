"""The keeper of rollouts beside a simulated service: what it foresees, what it judges, and what it tells."""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from planned_world import World, spec

from paceline_crds.sketch import SCALE, Sketch
from paceline_kube import Key
from paceline_operator.rollout.asked import Judgement
from paceline_operator.rollout.gathering import Heard
from paceline_operator.rollout.keeper import RolloutKeeper
from paceline_operator.rollout.kept import MOST_BYTES, Kept, pack, unpack
from paceline_operator.rollout.replicas import Counted
from paceline_operator.rollout.state import Phase, State
from paceline_operator.scaling.keeper import Seen
from paceline_shadow_traffic.evidence import Seen as SeenOf
from paceline_shadow_traffic.evidence import Signal, Window
from paceline_shadow_traffic.share import Share
from paceline_shadow_traffic.verdict import Verdict

KEY = ("demo", "chat")
GATES = [
    {"signal": "TTFTP50", "maxRegressionPercent": 20, "minSamples": 100, "warmUp": "0s"},
    {"signal": "ErrorRate", "maxRegressionPercent": 5, "minSamples": 100, "warmUp": "0s"},
]
STEPS = [{"weight": 10, "replicas": 1, "hold": "60s", "maxDuration": "10m"}, {"weight": 100, "hold": "30s"}]
CANARY: dict[str, Any] = {"strategy": "Canary", "steps": STEPS, "gates": GATES}


@dataclass
class Told:
    """A service that is rolled out, its router, and what the keeper says."""

    world: World
    rate: int = 400
    """Requests in ten seconds."""
    answers: bool = True
    served: list[tuple[float, str, int]] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    changed: int = 0

    def keeper(self, **more: Any) -> RolloutKeeper:
        return RolloutKeeper(
            services=lambda: [{"metadata": {"namespace": KEY[0], "name": KEY[1]}, "spec": self.world.spec}],
            seen=lambda _: Seen({}, self.world.seen, self.world.desired(), ()),
            answers=self._answers,
            recorders=self._nothing,
            recorded=self._nothing,
            changed=self._changed,
            clock=lambda: self.world.now,
            warn=lambda _, words: self.warned.append(words),
            **more,
        )

    async def _nothing(self, *_: Any) -> Any:
        return []

    def _changed(self, _: Any) -> None:
        self.changed += 1

    async def _answers(self, path: str) -> Mapping[str, Any]:
        if not self.answers:
            return {"r0": None}
        since = float(parse_qs(urlsplit(path).query)["since"][0])
        counts: Counter[str] = Counter()
        for at, revision, count in self.served:
            if at - 10.0 >= since:
                counts[revision] += count
        times = Sketch.of(0.1 + part / 100 for part in range(10))
        rows = []
        for revision, count in counts.items():
            ttft = Sketch({bucket: ones * count // 10 for bucket, ones in times.counts.items()}).encode()
            place = {"pool": "default", "revision": revision, "shape": "ShortInputShortOutput"}
            rows.append({**place, "outcomes": {"2xx": count}, "met": 0, "missed": 0, "ttft": ttft, "tpot": []})
        begin = min((at - 10.0 for at, *_ in self.served if at - 10.0 >= since), default=self.world.now)
        return {"r0": {"scale": SCALE, "to": self.world.now, "services": {"demo/chat": {"from": begin, "rows": rows}}}}

    def serve(self, looks: int, keeper: RolloutKeeper | None = None) -> None:
        """So many times ten seconds of requests by the weights, each with a look."""
        for _ in range(looks):
            self.world.now += 10.0
            traffic = self.world.seen.traffic
            for entry in traffic.entries if traffic is not None else ():
                self.served.append((self.world.now, entry.revision, self.rate * entry.weight // 100))
            if keeper is not None:
                asyncio.run(keeper.look())

    @property
    def state(self) -> State:
        traffic = self.world.seen.traffic
        assert traffic is not None
        assert traffic.rollout is not None
        return traffic.rollout


def begun(rate: int = 400, **rollout: Any) -> Told:
    """A service that has served for ten minutes, and is asked for another revision."""
    fields: dict[str, Any] = {"replicas": 4, "rollout": CANARY | rollout}
    world = World(spec(**fields), now=1_000_000.0)
    world.settle()
    told = Told(world, rate)
    told.serve(60)
    world.change(**fields, runtime={"maxNumSeqs": 8})
    return told


def until_phase(told: Told, phase: Phase) -> None:
    for _ in range(200):
        for actor in told.world.actors():
            actor()
            rollout = told.world.seen.traffic.rollout if told.world.seen.traffic else None
            if rollout is not None and rollout.phase is phase:
                return
    raise AssertionError(f"it never is {phase}")


def of(keeper: RolloutKeeper) -> Judgement:
    said = keeper.of(KEY)
    assert said is not None
    return said


def test_what_a_step_can_find_out_is_told_before_its_traffic_moves() -> None:
    told = begun()
    keeper = told.keeper()
    until_phase(told, Phase.PREPARING)
    asyncio.run(keeper.look())
    said = of(keeper)
    assert (said.verdict, said.message, said.step) == (Verdict.NOT_KNOWN, "its traffic has not moved yet", 0)
    assert [one.name for one in said.foreseen] == ["TTFTP50", "ErrorRate"]
    ttft, errors = said.foreseen
    assert ttft.place == "default/ShortInputShortOutput"
    assert ttft.message.startswith("at 10 % of 40 requests/s, TTFTP50 within 20 % needs ")
    assert errors.seconds is not None
    assert said.prospect.startswith("all gates can be known; the slowest: ")
    assert told.warned == []
    assert told.changed == 1
    asyncio.run(keeper.look())
    assert told.changed == 1, "once for a step"


def test_a_step_that_can_never_know_in_its_time_is_warned_of_once_with_what_to_do() -> None:
    told = begun(rate=10)
    keeper = told.keeper()
    until_phase(told, Phase.PREPARING)
    for _ in range(3):
        asyncio.run(keeper.look())
    [words] = told.warned
    assert "2 of 2 gates will hardly be known within the step's 10 min" in words
    assert "at 10 % of 1 requests/s" in words
    assert "raise its weight or maxDuration" in words
    assert of(keeper).prospect == words


def test_without_requests_nothing_can_be_known_and_a_router_that_is_silent_is_asked_again() -> None:
    told = begun(rate=0)
    keeper = told.keeper()
    told.answers = False
    until_phase(told, Phase.PREPARING)
    asyncio.run(keeper.look())
    assert (keeper.of(KEY), told.warned) == (None, [])
    told.answers = True
    asyncio.run(keeper.look())
    [words] = told.warned
    assert "no request came in the last hour" in words


def test_a_verdict_on_the_step_keeps_what_was_foreseen() -> None:
    told = begun()
    keeper = told.keeper()
    until_phase(told, Phase.PREPARING)
    asyncio.run(keeper.look())
    foreseen = of(keeper).foreseen
    until_phase(told, Phase.JUDGING)
    told.serve(60, keeper)
    said = of(keeper)
    assert (said.verdict, said.foreseen) == (Verdict.PASS, foreseen)
    assert len(said.findings) == 2
    assert said.generation == told.state.generation


@dataclass
class Maps:
    """Where evidence is kept, in this process."""

    raw: bytes | None = None
    writes: int = 0

    async def read(self, key: Key) -> bytes | None:
        return self.raw

    async def write(self, key: Key, uid: str, raw: bytes) -> None:
        self.raw, self.writes = raw, self.writes + 1

    async def drop(self, key: Key) -> None:
        self.raw = None


def halfway() -> tuple[Told, Maps]:
    """Three minutes of a step were watched, by an operator that has ended."""
    told, maps = begun(), Maps()
    keeper = told.keeper(evidences=maps)
    until_phase(told, Phase.JUDGING)
    told.serve(18, keeper)
    assert of(keeper).verdict is Verdict.PASS
    assert 2 <= maps.writes <= 3, "once a minute"
    return told, maps


def samples(keeper: RolloutKeeper) -> float:
    return max((getattr(one, "samples", (0.0, 0.0))[1] for _, one in of(keeper).findings), default=0.0)


def test_an_operator_that_is_started_anew_goes_on_with_the_evidence_of_the_step_and_with_what_came_meanwhile() -> None:
    told, maps = halfway()
    told.serve(3)
    keeper = told.keeper(evidences=maps)
    told.serve(1, keeper)
    assert of(keeper).verdict is Verdict.PASS
    assert samples(keeper) == 22 * 40
    assert of(keeper).since == told.state.since


def test_without_anything_kept_it_begins_anew() -> None:
    told, _ = halfway()
    told.serve(30)
    keeper = told.keeper()
    told.serve(1, keeper)
    assert (of(keeper).verdict, of(keeper).since) == (Verdict.NOT_KNOWN, told.world.now)


@pytest.mark.parametrize("fault", ["too long ago", "another generation", "no form", "another form", "ahead"])
def test_what_was_kept_of_something_else_or_too_long_ago_passes_nothing(fault: str) -> None:
    told, maps = halfway()
    assert maps.raw is not None
    told.serve(31 if fault == "too long ago" else 25)
    if fault == "another generation":
        traffic = told.world.seen.traffic
        assert traffic is not None
        moved = replace(traffic, generation=traffic.generation + 1)
        views = [replace(one, traffic=moved) if one.traffic is not None else one for one in told.world.seen.revisions]
        told.world.seen = replace(told.world.seen, revisions=tuple(views))
    elif fault == "no form":
        maps.raw = maps.raw[:-40]
    elif fault != "too long ago":
        value = json.loads(zlib.decompress(maps.raw))
        changed = {"form": "0"} if fault == "another form" else {"at": told.world.now + 100.0}
        maps.raw = zlib.compress(json.dumps({**value, **changed}).encode())
    keeper = told.keeper(evidences=maps)
    told.serve(1, keeper)
    assert of(keeper).verdict is Verdict.NOT_KNOWN
    assert samples(keeper) <= 40


@pytest.mark.parametrize("seconds", [20.0, 3600.0])
def test_a_leader_whose_clock_is_behind_comes_to_a_verdict(seconds: float) -> None:
    """Of 20 s nothing is made; of an hour the step counts anew."""
    told = begun()
    until_phase(told, Phase.JUDGING)
    told.world.now -= seconds
    told.served = [
        (at - seconds, *what) for at, *what in told.served
    ]  # the routers' clocks agree with the new leader's
    told.world.settle()
    keeper = told.keeper()
    told.serve(20, keeper)
    assert of(keeper).verdict is Verdict.PASS
    assert of(keeper).since >= told.state.since


def test_a_clock_that_goes_back_under_the_keeper_lets_the_steps_evidence_begin_anew() -> None:
    told = begun()
    until_phase(told, Phase.JUDGING)
    keeper = told.keeper()
    told.serve(18, keeper)
    assert of(keeper).verdict is Verdict.PASS
    told.world.now -= 86_400.0
    told.served.clear()
    told.world.settle()
    told.serve(1, keeper)
    assert of(keeper).verdict is Verdict.NOT_KNOWN
    told.serve(18, keeper)
    assert of(keeper).verdict is Verdict.PASS


def test_what_was_kept_goes_when_the_rollout_is_over() -> None:
    told, maps = halfway()
    keeper = told.keeper(evidences=maps)
    told.serve(1, keeper)
    assert maps.raw is not None
    told.world.change(replicas=4, rollout=CANARY)
    told.world.settle()
    asyncio.run(keeper.look())
    assert maps.raw is None


def test_evidence_of_days_in_many_places_is_kept_within_bounds_and_loses_no_request() -> None:
    draw = random.Random(3)

    def window(at: int) -> Window:
        times = Sketch.of(draw.lognormvariate(-1.0, 0.8) for _ in range(60))
        seen = SeenOf(ttft=times, tpot=times, shares={signal: Share(draw.random(), 60) for signal in Signal})
        return Window(10.0 * at, 10.0 * at + 10.0, seen, seen)

    windows = {f"default/{place}": tuple(window(at) for at in range(240)) for place in range(3)}
    about, count = ("uid", "chat-b", 3), 240 * 60
    raw = pack(Kept(about, 2400.0, Heard(0.0, 2400.0, windows=windows), Counted(0.0)))
    assert len(raw) <= MOST_BYTES
    kept = unpack(raw, about, 2410.0)
    assert kept is not None
    for found in kept.heard.windows.values():
        assert 10 <= len(found) < 240
        assert sum(one.base.ttft.count for one in found if one.base.ttft is not None) == count


def test_what_replicas_counted_before_is_kept_and_what_they_did_meanwhile_is_not_known() -> None:
    seen = SeenOf(throughput=50.0, shares={Signal.HIT_RATE: Share(3.5, 10)})
    counted = Counted(0.0, windows={"default": (Window(0.0, 60.0, seen, SeenOf()),)})
    about = ("uid", "chat-b", 3)
    kept = unpack(pack(Kept(about, 60.0, Heard(0.0, 60.0), counted)), about, 100.0)
    assert kept is not None
    assert kept.counted.windows["default"] == (
        Window(0.0, 60.0, seen, SeenOf()),
        Window(60.0, 100.0, SeenOf(), SeenOf()),
    )


def test_gates_on_what_replicas_count_and_queries_say_how_long_they_take_at_the_least() -> None:
    gates = [{"signal": name, "maxRegressionPercent": 10} for name in ("HitRate", "Throughput")]
    query = {"name": "cost", "query": "c{r='$candidate'}", "max": "1", "holdFor": "20m"}
    told = begun(gates=gates, queries=[query])
    keeper = told.keeper()
    until_phase(told, Phase.PREPARING)
    asyncio.run(keeper.look())
    seconds = {one.name: one.seconds for one in of(keeper).foreseen}
    assert seconds == {"HitRate": 600.0 + 600.0, "Throughput": 60.0 + 1200.0, "Query/cost": 60.0 + 1200.0}
    assert "3 of 3 gates will hardly be known" in told.warned[0]


def test_a_shadow_step_says_how_long_its_pairs_take() -> None:
    told = begun(shadow={"percent": 5, "minSamples": 2400, "maxDuration": "30m"})
    keeper = told.keeper()
    until_phase(told, Phase.PREPARING)
    asyncio.run(keeper.look())
    said = of(keeper)
    assert said.step == -1
    assert {one.name: one.seconds for one in said.foreseen if one.name in ("Truncated", "OutputDifference")} == {
        "Truncated": 1200.0,
        "OutputDifference": 300.0,
    }
    assert "at 5 % of 40 requests/s copied, LengthP50 needs 20 min at the least" in [
        one.message for one in said.foreseen
    ]
