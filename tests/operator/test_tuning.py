"""Knobs that follow load: what a spec asks for, what is heard of replicas and told to them, what is no drift."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from planned_world import settled, spec
from stand_in_replica import KNOBS, Load, StandIn

from paceline_autoscaler.knobs import Range
from paceline_autoscaler.samples import Absent, NotANumber, Present
from paceline_crds.conditions import ConditionStatus, Reason
from paceline_crds.names import LABEL_POOL, LABEL_POOL_HASH
from paceline_crds.runtime_config import RuntimeParameters
from paceline_crds.tuning import Knob
from paceline_kube import JsonObject
from paceline_operator.scaling.keeper import Seen
from paceline_operator.tuning.asked import Asked, allowed, asked, ranges_of
from paceline_operator.tuning.heard import Heard, found_values, hear, measuring, samples
from paceline_operator.tuning.keeper import INTERVAL_SECONDS, WINDOW_SECONDS, TuningKeeper
from paceline_operator.tuning.replicas import Page, differs, fitting, page_of
from paceline_operator.tuning.told import tuning_active

SEQS, BUDGET, CHUNK = Knob.MAX_NUM_SEQS, Knob.MAX_BATCHED_TOKENS, Knob.PREFILL_CHUNK_TOKENS
KEY = ("demo", "chat")
SLO = {"tpot": {"p90": "60ms"}}
RANGED = {"autoRanges": {"maxNumSeqs": {"min": 8, "max": 32}, "prefillChunkTokens": {"min": 64, "max": 512}}}


def service(**fields: Any) -> JsonObject:
    return {"metadata": {"namespace": "demo", "name": "chat", "uid": "uid"}, "spec": spec(**fields)}


# What a spec asks for.


def test_a_pool_has_the_ranges_of_its_service_knob_by_knob_unless_it_has_its_own() -> None:
    pools = [
        {"name": "long", "runtime": {"autoRanges": {"maxNumSeqs": {"min": 2, "max": 4}}}},
        {"name": "slow", "slo": {"tpot": {"p99": "1s"}}},
    ]
    found = asked(service(runtime=RANGED, slo={**SLO, "ttft": {"p90": "800ms", "p99": "2s"}}, pools=pools))
    assert found == {
        "default": Asked({SEQS: (8, 32), CHUNK: (64, 512)}, 0.06, 0.9, first_limit=0.8),
        "long": Asked({SEQS: (2, 4), CHUNK: (64, 512)}, 0.06, 0.9, first_limit=0.8),
        "slow": Asked({SEQS: (8, 32), CHUNK: (64, 512)}, 1.0, 0.99),
    }
    assert allowed(service(runtime=RANGED))["default"] == {"maxNumSeqs": (8, 32), "prefillChunkTokens": (64, 512)}


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"runtime": {}},
        {"runtime": {"autoRanges": {}}},
        {"runtime": {"autoRanges": "wide"}},
        {"runtime": {"autoRanges": {"maxNumSeqs": {"min": 8}}}},
        {"runtime": RANGED, "slo": {"tpot": {"p90": "soon"}}},
        "text",
    ],
    ids=str,
)
def test_a_spec_without_ranges_or_of_another_form_asks_for_nothing(odd: Any) -> None:
    assert asked({**service(), "spec": odd}) == {}


def test_a_range_ends_where_a_replica_took_no_memory_for_more_and_where_a_step_would_not_work() -> None:
    parameters = RuntimeParameters(max_num_seqs=16, max_batched_tokens=1024, prefill_chunk_tokens=256)
    assert parameters.prefill_min_chunk_tokens == 32
    limits = {SEQS: (8, 64), BUDGET: (64, 4096), CHUNK: (16, 4096)}
    assert ranges_of(limits, parameters) == (
        {SEQS: Range(8, 16, 16), BUDGET: Range(64, 1024, 1024), CHUNK: Range(32, 256, 256)},
        "",
    )
    # A piece stays at 256 tokens here, so that a step holds as many.
    assert ranges_of({BUDGET: (64, 4096)}, parameters)[0] == {BUDGET: Range(256, 1024, 1024)}
    assert ranges_of({SEQS: (32, 64)}, parameters) == (
        {},
        "maxNumSeqs stays at 16, since it can go from 1 to 16 here and autoRanges has 32 to 64",
    )


def test_at_times_of_the_week_a_knob_has_other_limits_by_the_clock_of_their_zone() -> None:
    evening = {"timezone": "Europe/Berlin", "start": "18:00", "end": "23:00", "maxNumSeqs": {"min": 32, "max": 32}}
    night = {"timezone": "Europe/Berlin", "start": "22:00", "end": "06:00", "maxNumSeqs": {"min": 4, "max": 8}}
    runtime = {"autoRanges": {**RANGED["autoRanges"], "schedules": [evening, night]}}
    [pool] = asked(service(runtime=runtime, slo=SLO)).values()
    berlin = ZoneInfo("Europe/Berlin")
    # On the last Sunday of October the clock goes back at three, and the night is an hour longer.
    times = [(25, 17), (25, 18), (25, 22), (25, 23), (25, 5), (25, 6)]
    found = [pool.limits(datetime(2026, 10, day, hour, tzinfo=berlin).timestamp())[SEQS] for day, hour in times]
    assert found == [(8, 32), (32, 32), (32, 32), (4, 8), (4, 8), (8, 32)]
    assert pool.limits(0.0)[CHUNK] == (64, 512)
    assert allowed(service(runtime=runtime))["default"]["maxNumSeqs"] == (4, 32)


# What is heard.


def page(ended: int = 0, received: float = 0.0, **knobs: int) -> Page:
    values = {
        "vllm:num_requests_waiting": 2.0,
        "vllm:num_requests_running": 8.0,
        "paceline_requests_received_total": received,
        "paceline_prefill_tokens_computed_total": 100.0 * received,
        "vllm:generation_tokens_total": 50.0 * received,
        "vllm:num_preemptions_total": 0.0,
    }
    inf = float("inf")
    ttft = {0.5: 0.0, 1.0: float(ended), inf: float(ended)}
    return Page(values, {0.05: 0.0, 0.1: float(ended), inf: float(ended)}, KNOBS, {**KNOBS, **knobs}, ttft)


def test_a_page_of_a_replica_is_read_and_what_is_not_on_it_is_not_known() -> None:
    one = StandIn("127.0.0.1", Load(requests=3, running=4, ended=5), knobs={"maxNumSeqs": 9})
    read = page_of(one.page())
    assert read.values["paceline_requests_received_total"] == 3.0
    assert (read.tpot[0.05], read.tpot[float("inf")]) == (5.0, 5.0)
    assert read.knobs == {**KNOBS, "maxNumSeqs": 9}
    for text, words in (
        ("", "no knobs that change"),
        (StandIn("127.0.0.1", started={}).page(), "no knobs that change"),
        ("\n".join(line for line in one.page().splitlines() if "preemptions" not in line), "preemptions_total"),
        (one.page().replace("vllm:num_requests_waiting 0", "vllm:num_requests_waiting NaN"), "is nan"),
    ):
        with pytest.raises(ValueError, match=words):
            page_of(text)


def test_samples_are_of_a_whole_window_and_of_every_replica_that_should_speak() -> None:
    heard: dict[str, Heard] = {}
    for at in range(0, 80, 10):
        said = {name: (float(at), page(ended=at, received=2.0 * at)) for name in ("a", "b")}
        heard = hear(heard, said, 60.0)
        if at < 60:
            found = samples(heard, 0.9, 60.0, 10.0, float(at))
            assert isinstance(found.requests, Absent)
            assert measuring(heard, 60.0) == f"measured for {at} s of 60 s"
    found = samples(heard, 0.9, 60.0, 10.0, 70.0)
    assert measuring(heard, 60.0) == ""
    rates = [sample.value for _, sample in found.all() if isinstance(sample, Present)]
    assert rates == pytest.approx([0.095, 4.0, 400.0, 200.0, 4.0, 16.0, 0.0, 0.95])
    # One that has just begun is not waited for, and no more than its queue is known of it.
    young = hear(heard, {**said, "c": (70.0, page())}, 60.0)
    also = samples(young, 0.9, 60.0, 10.0, 70.0)
    assert (also.requests, also.waiting) == (found.requests, Present(6.0, 70.0, 6.0, 6.0))
    silent = hear(heard, {**said, "b": (75.0, "it did not answer within 3 s")}, 60.0)
    unknown = samples(silent, 0.9, 60.0, 10.0, 75.0)
    assert {sample for _, sample in unknown.all()} == {Absent("b: it did not answer within 3 s")}


def test_what_was_heard_before_a_pause_is_not_of_the_last_minute() -> None:
    heard = hear({}, {"a": (0.0, page(ended=900, received=900.0))}, 60.0)
    for at in range(3600, 3660, 10):
        heard = hear(heard, {"a": (float(at), page(ended=900 + at - 3600, received=900.0))}, 60.0)
        assert measuring(heard, 60.0) == f"measured for {at - 3600} s of 60 s"


def test_a_release_that_does_not_tell_when_first_tokens_came_is_not_one_where_none_did() -> None:
    heard: dict[str, Heard] = {}
    for at in (0.0, 60.0):
        old = replace(page(ended=int(at), received=at), ttft={})
        heard = hear(heard, {"a": (at, page(ended=int(at), received=at)), "b": (at, old)}, 60.0)
    assert samples(heard, 0.9, 60.0, 10.0, 60.0).ttft == Absent("the release of a replica does not tell TTFT")


def test_a_99th_percentile_is_of_more_requests_than_one_can_be_beyond() -> None:
    heard = hear(hear({}, {"a": (0.0, page())}, 60.0), {"a": (60.0, page(ended=199, received=5.0))}, 60.0)
    assert samples(heard, 0.99, 60.0, 10.0, 60.0).tpot == NotANumber("199 requests ended, a percentile needs 200")
    assert isinstance(samples(heard, 0.9, 60.0, 10.0, 60.0).tpot, Present)


def test_too_few_requests_make_no_percentile_and_counters_that_began_anew_no_rate() -> None:
    heard = hear(hear({}, {"a": (0.0, page())}, 60.0), {"a": (60.0, page(ended=19, received=5.0))}, 60.0)
    assert samples(heard, 0.9, 60.0, 10.0, 60.0).tpot == NotANumber("19 requests ended, a percentile needs 20")
    again = hear(heard, {"a": (70.0, page(received=1.0))}, 60.0)
    assert isinstance(samples(again, 0.9, 60.0, 10.0, 70.0).requests, Absent)


def test_what_an_earlier_operator_decided_is_what_most_replicas_run_with() -> None:
    def heard(*values: int) -> dict[str, Heard]:
        return {str(n): Heard(0.0, ((0.0, page(maxNumSeqs=value)),)) for n, value in enumerate(values)}

    assert found_values(heard(8, 32, 8))[SEQS] == 8
    assert found_values(heard(8, 32))[SEQS] == 32
    assert found_values({"a": Heard(0.0, (), "silent")}) == {}


def test_a_replica_is_told_no_more_than_it_was_started_with_and_only_where_it_differs() -> None:
    assert fitting({"maxNumSeqs": 16, "prefillChunkTokens": 512}, KNOBS) == {"maxNumSeqs": 16}
    assert fitting({"maxNumSeqs": 64}, KNOBS) == {}
    assert not differs(page(), {"maxNumSeqs": 64})
    assert differs(page(), {"maxNumSeqs": 16})
    assert not differs(page(maxNumSeqs=16), {"maxNumSeqs": 16})
    assert differs(page(maxNumSeqs=16), {})


# The keeper, with real pages of stand-ins for replicas.


@dataclass
class Fleet:
    """A pool of stand-ins, and a keeper with a clock that tests set."""

    replicas: dict[str, StandIn]
    spec: dict[str, Any] = field(default_factory=lambda: {"runtime": RANGED, "slo": SLO})
    now: float = 1_000_000.0
    events: list[tuple[str, str]] = field(default_factory=list)
    retold: int = 0
    changes: int = 0
    found: set[str] = field(default_factory=set)
    rolling: bool = False

    def __post_init__(self) -> None:
        self.keeper = self.operator()

    def operator(self) -> TuningKeeper:
        """A new operator."""

        def retold(_: Any) -> None:
            self.retold += 1

        def changed(_: Any) -> None:
            self.changes += 1

        return TuningKeeper(
            services=lambda: [service(**self.spec)],
            seen=lambda key: self.seen(),
            tuned=lambda key: self.found,
            retold=retold,
            changed=changed,
            recorder=self,
            clock=lambda: self.now,
        )

    def event(self, about: JsonObject, *, type: str, reason: str, message: str) -> None:
        self.events.append((reason, message))

    def seen(self) -> Seen:
        world = settled(replicas=len(self.replicas), **self.spec)
        views = tuple(
            replace(view, name=name, uid=name) for view, name in zip(world.seen.pods, self.replicas, strict=True)
        )
        observed, desired = replace(world.seen, pods=views), world.desired()
        if self.rolling:
            desired = replace(desired, revision="chat-another")
        pods = [
            {
                "metadata": {"name": name, "uid": name, "labels": {LABEL_POOL: "default", LABEL_POOL_HASH: view.hash}},
                "spec": {},
                "status": {"podIP": one.address, "conditions": [{"type": "Ready", "status": "True"}]},
            }
            for view, (name, one) in zip(views, self.replicas.items(), strict=True)
        ]
        return Seen(service(**self.spec), observed, desired, tuple(pods))

    def load(self, **fields: Any) -> None:
        for one in self.replicas.values():
            one.load = Load(**{"requests": 40, "prefill": 20000, "decode": 6000, "running": 20, "ended": 10, **fields})

    async def looks(self, seconds: float) -> None:
        """Look as often as in so much time."""
        end = self.now + seconds
        while self.now < end:
            await self.keeper.look()
            self.now += INTERVAL_SECONDS

    @property
    def knobs(self) -> list[dict[str, int]]:
        return [one.knobs for one in self.replicas.values()]


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """Two replicas of one pool."""
    net = f"127.{random.randint(130, 200)}.{random.randint(1, 250)}"
    async with AsyncExitStack() as stack:
        replicas = {}
        for name, number in zip(("p-1", "p-2"), itertools.count(1)):
            replicas[name] = one = StandIn(f"{net}.{number}", Load())
            await one.start()
            stack.push_async_callback(one.stop)
        yield Fleet(replicas)


async def test_slow_answers_make_every_replica_run_with_smaller_pieces_and_it_is_told_with_numbers(
    fleet: Fleet,
) -> None:
    fleet.load(tpot=0.09)
    await fleet.looks(WINDOW_SECONDS)
    assert fleet.knobs == [{}, {}]
    first = (fleet.keeper.of(KEY) or {})["default"]
    assert (first.status.reason, first.active) == ("Measuring", True)
    await fleet.looks(60.0)
    assert fleet.knobs == [{"prefillChunkTokens": 352}] * 2
    told = (fleet.keeper.of(KEY) or {})["default"].status
    assert (told.reason, told.knobs) == ("Tightened", {"maxNumSeqs": 32, "prefillChunkTokens": 352})
    assert told.started == {"maxNumSeqs": 32, "prefillChunkTokens": 512}
    assert "60 ms are promised" in told.message
    assert (told.inputs or {})["limit"] == "0.06"
    assert [reason for reason, _ in fleet.events] == ["KnobsTightened"]
    assert fleet.retold == 1
    active = tuning_active(fleet.keeper.of(KEY) or {})
    assert active is not None
    assert (active.status, active.reason) == (ConditionStatus.TRUE, Reason.FOLLOWS_LOAD)


async def test_a_step_that_was_of_no_use_is_taken_back_in_every_replica(fleet: Fleet) -> None:
    fleet.load(tpot=0.09)
    await fleet.looks(220.0)
    assert [reason for reason, _ in fleet.events] == ["KnobsTightened", "KnobsTakenBack"]
    assert fleet.knobs == [{}, {}]
    assert "prefillChunkTokens 352 goes back to 512: TPOT was" in fleet.events[-1][1]


async def test_a_replica_that_begins_anew_gets_what_was_decided_and_the_next_operator_goes_on_with_it(
    fleet: Fleet,
) -> None:
    fleet.load(tpot=0.09)
    await fleet.looks(120.0)
    assert fleet.knobs == [{"prefillChunkTokens": 352}] * 2
    fleet.replicas["p-1"].knobs = {}
    await fleet.keeper.look()
    assert fleet.knobs == [{"prefillChunkTokens": 352}] * 2
    fleet.keeper = fleet.operator()
    fleet.load(tpot=0.05)
    await fleet.looks(200.0)
    assert fleet.knobs == [{"prefillChunkTokens": 352}] * 2
    assert len(fleet.replicas["p-2"].told) == 1, "nobody is told what it runs with already"
    told = (fleet.keeper.of(KEY) or {})["default"].status
    assert told.knobs["prefillChunkTokens"] == 352


async def test_a_replica_that_is_silent_changes_nothing_and_is_named(fleet: Fleet) -> None:
    fleet.load(tpot=0.09)
    await fleet.looks(30.0)
    fleet.replicas["p-2"].started = {}  # as of a release before
    await fleet.looks(200.0)
    assert fleet.knobs == [{}, {}]
    told = (fleet.keeper.of(KEY) or {})["default"]
    assert not told.active
    assert "p-2: its release has no knobs that change while it runs" in told.words
    active = tuning_active({"default": told})
    assert active is not None
    assert (active.status, active.reason) == (ConditionStatus.FALSE, Reason.METRICS_UNAVAILABLE)


async def test_a_replica_that_refuses_is_named_and_told_again(fleet: Fleet) -> None:
    fleet.load(tpot=0.09)
    fleet.replicas["p-2"].refuses = True
    await fleet.looks(110.0)
    assert fleet.knobs == [{"prefillChunkTokens": 352}, {}]
    active = tuning_active(fleet.keeper.of(KEY) or {})
    assert active is not None
    assert (active.status, active.reason) == (ConditionStatus.FALSE, Reason.REPLICA_REFUSES)
    assert "p-2: it answered 400: no such knobs here" in active.message
    fleet.replicas["p-2"].refuses = False
    await fleet.keeper.look()
    assert fleet.knobs == [{"prefillChunkTokens": 352}] * 2


async def test_without_ranges_the_values_of_the_start_come_back_at_once_and_nothing_is_told_any_more(
    fleet: Fleet,
) -> None:
    fleet.load(tpot=0.09)
    await fleet.looks(120.0)
    assert fleet.knobs == [{"prefillChunkTokens": 352}] * 2
    fleet.spec = {"slo": SLO}
    fleet.keeper.touch(KEY)
    await fleet.keeper.look_at_touched()
    assert fleet.knobs == [{}, {}]
    assert fleet.events[-1] == (
        "KnobsPutBack",
        "2 replicas run as started again: no autoRanges of the spec hold for them",
    )
    assert fleet.keeper.of(KEY) is None
    asked_before = [len(one.told) for one in fleet.replicas.values()]
    await fleet.looks(60.0)
    assert [len(one.told) for one in fleet.replicas.values()] == asked_before


async def test_values_that_nobody_remembers_are_put_back_where_a_look_for_drift_finds_them(fleet: Fleet) -> None:
    fleet.spec = {}
    fleet.replicas["p-2"].knobs = {"maxNumSeqs": 1}
    await fleet.looks(60.0)
    assert fleet.knobs == [{}, {"maxNumSeqs": 1}], "nobody is asked for nothing"
    fleet.found = {"p-2"}
    await fleet.keeper.look()
    assert fleet.knobs == [{}, {}]


async def test_a_service_that_is_suspended_or_rolls_is_left_as_it_is(fleet: Fleet) -> None:
    fleet.load(tpot=0.09)
    fleet.rolling = True
    await fleet.looks(200.0)
    assert fleet.knobs == [{}, {}]
    assert (fleet.keeper.of(KEY) or {})["default"].status.reason == "RollingOut"
    fleet.rolling = False
    fleet.spec = {**fleet.spec, "suspend": True}
    await fleet.looks(200.0)
    assert fleet.knobs == [{}, {}]


async def test_until_replicas_are_told_what_they_run_with_is_within_what_held_before(fleet: Fleet) -> None:
    fleet.load(tpot=0.09)
    assert fleet.keeper.within(KEY) == {}
    await fleet.looks(120.0)
    before = {"default": {"maxNumSeqs": (8, 32), "prefillChunkTokens": (64, 512)}}
    assert fleet.keeper.within(KEY) == before
    narrow = {"autoRanges": {"prefillChunkTokens": {"min": 64, "max": 128}}}
    fleet.spec = {"slo": SLO, "runtime": narrow}
    assert fleet.keeper.within(KEY) == before
    await fleet.keeper.look()
    assert fleet.knobs == [{"prefillChunkTokens": 128}] * 2
    assert fleet.keeper.within(KEY) == {"default": {"prefillChunkTokens": (64, 128)}}
    fleet.replicas["p-2"].refuses = True
    fleet.spec = {"slo": SLO}
    await fleet.keeper.look()
    assert fleet.knobs == [{}, {"prefillChunkTokens": 128}]
    assert fleet.keeper.within(KEY) == {"default": {"prefillChunkTokens": (64, 128)}}
    fleet.replicas["p-2"].refuses = False
    await fleet.keeper.look()
    assert fleet.knobs == [{}, {}]
    assert fleet.keeper.within(KEY) == {}


async def test_narrower_ranges_hold_at_once(fleet: Fleet) -> None:
    fleet.load(tpot=0.05)
    await fleet.looks(20.0)
    fleet.spec = {"slo": SLO, "runtime": {"autoRanges": {"maxNumSeqs": {"min": 4, "max": 12}}}}
    fleet.keeper.touch(KEY)
    await fleet.keeper.look_at_touched()
    assert fleet.knobs == [{"maxNumSeqs": 12}] * 2


async def test_when_a_time_of_the_week_begins_and_ends_its_limits_hold(fleet: Fleet) -> None:
    fleet.load(tpot=0.05)
    hour = {"timezone": "UTC", "start": "14:00", "end": "14:10", "maxNumSeqs": {"min": 8, "max": 8}}
    fleet.spec = {"slo": SLO, "runtime": {"autoRanges": {**RANGED["autoRanges"], "schedules": [hour]}}}
    fleet.now = datetime(2026, 6, 1, 13, 59, 30, tzinfo=UTC).timestamp()
    await fleet.looks(25.0)
    assert fleet.knobs == [{}, {}]
    await fleet.looks(25.0)
    assert fleet.knobs == [{"maxNumSeqs": 8}] * 2
    fleet.load(tpot=0.02, waiting=9, running=8)
    await fleet.looks(300.0)
    assert fleet.knobs == [{"maxNumSeqs": 8}] * 2, "it is set, whatever the load"
    await fleet.looks(400.0)
    assert fleet.knobs[0]["maxNumSeqs"] > 8, "then it follows load again"


async def test_without_a_promise_it_says_what_to_write(fleet: Fleet) -> None:
    fleet.spec = {"runtime": RANGED}
    fleet.load(tpot=0.09)
    await fleet.looks(20.0)
    active = tuning_active(fleet.keeper.of(KEY) or {})
    assert active is not None
    assert (active.status, active.reason) == (ConditionStatus.FALSE, Reason.NO_OBJECTIVE)
    assert "write slo.tpot.p90" in active.message
