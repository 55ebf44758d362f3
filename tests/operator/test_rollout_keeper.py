"""The keeper of rollouts beside a simulated service: what it foresees, what it judges, and what it tells."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from planned_world import World, spec

from paceline_crds.sketch import SCALE, Sketch
from paceline_operator.rollout.asked import Judgement
from paceline_operator.rollout.keeper import RolloutKeeper
from paceline_operator.rollout.state import Phase, State
from paceline_operator.scaling.keeper import Seen
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
            if at >= since:
                counts[revision] += count
        times = Sketch.of(0.1 + part / 100 for part in range(10))
        rows = []
        for revision, count in counts.items():
            ttft = Sketch({bucket: ones * count // 10 for bucket, ones in times.counts.items()}).encode()
            place = {"pool": "default", "revision": revision, "shape": "ShortInputShortOutput"}
            rows.append({**place, "outcomes": {"2xx": count}, "met": 0, "missed": 0, "ttft": ttft, "tpot": []})
        begin = min((at for at, *_ in self.served if at >= since), default=self.world.now) - 10.0
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
    assert {one.seconds for one in said.foreseen} == {1200.0}
    assert "at 5 % of 40 requests/s copied, LengthP50 needs 20 min at the least" in [
        one.message for one in said.foreseen
    ]
