"""Which pools follow load, what is heard of it, and which count a pass orders; with a clock that tests set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any
from unittest.mock import AsyncMock
from zoneinfo import ZoneInfo

import pytest
from planned_world import World, spec

from paceline_autoscaler.capacity import Objectives
from paceline_autoscaler.observed import Settings, Signals
from paceline_autoscaler.samples import Absent, NotANumber, Present, Stale, exactly
from paceline_autoscaler.source import Pool as Source
from paceline_crds.conditions import ConditionStatus, Reason
from paceline_kube import JsonObject, KubeClient
from paceline_operator.failures import Problem
from paceline_operator.observed import Observed
from paceline_operator.render import Desired
from paceline_operator.scaling.asked import Asked, asked, longest_request
from paceline_operator.scaling.decide import Memory, decide
from paceline_operator.scaling.direct import Heard, Pool, hear, work_between
from paceline_operator.scaling.fleet import fleet_of, standing, with_counts
from paceline_operator.scaling.keeper import ScalingKeeper, Seen
from paceline_operator.scaling.pages import values_of
from paceline_operator.scaling.slow import Slow
from paceline_operator.scaling.told import scaling_active, scaling_status

TICK = 10.0


def service(**fields: Any) -> JsonObject:
    return {"metadata": {"namespace": "demo", "name": "chat", "uid": "uid"}, "spec": spec(**fields)}


# What a spec asks for.


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"scaling": {"scaleToZero": {}}},
        {"scaling": {"minReplicas": 2, "maxReplicas": 2}},
        {"scaling": {"mode": "Fixed", "maxReplicas": 8}},
        {"scaling": {"mode": "External"}},
        {"pools": [{"name": "long", "replicas": 3}]},
    ],
    ids=["nothing", "zero only", "no room between", "fixed", "external", "a pool without"],
)
def test_a_spec_without_bounds_to_move_between_follows_nothing(fields: dict[str, Any]) -> None:
    assert asked(service(**fields)) == {}


@pytest.mark.parametrize(
    "spec",
    [
        "text",
        [1],
        {"scaling": "text"},
        {"scaling": {"maxReplicas": "many"}},
        {"scaling": {"maxReplicas": 4}, "pools": "text"},
        {"scaling": {"maxReplicas": 4}, "pools": ["text"]},
        {"scaling": {"maxReplicas": 4}, "pools": [{}]},
        {"scaling": {"maxReplicas": 4}, "slo": {"ttft": {"p90": 3}}},
        {"scaling": {"maxReplicas": 4, "scaleToZero": {"after": "soon"}}},
        {"scaling": {"maxReplicas": 4, "scaleDownWindow": "soon"}},
        {"scaling": {"maxReplicas": 4, "schedules": [{"timezone": "Mars/Base", "start": "08:00", "end": "09:00"}]}},
    ],
    ids=str,
)
def test_a_stored_spec_of_another_form_follows_nothing_and_stops_no_other(spec: Any) -> None:
    odd = {**service(), "spec": spec}
    assert asked(odd) == {}
    assert longest_request(odd) == 600.0


def test_a_pool_has_the_scaling_and_the_objectives_of_its_service_or_its_own() -> None:
    pools = [
        {"name": "long", "slo": {"ttft": {"p90": "5s"}}},
        {"name": "own", "replicas": 9, "scaling": {"minReplicas": 2, "maxReplicas": 4}},
        {"name": "fixed", "scaling": {"mode": "Fixed"}},
    ]
    slo = {"ttft": {"p90": "800ms", "p99": "2s"}, "tpot": {"p90": "60ms"}}
    found = asked(service(replicas=3, scaling={"maxReplicas": 8}, pools=pools, slo=slo))
    usual = Objectives(2.0, 0.06, 0.99, 0.9)
    assert found == {
        "default": Asked(1, 8, 3, usual),
        "long": Asked(1, 8, 1, Objectives(5.0, None, 0.9, 0.9)),
        "own": Asked(2, 4, 4, usual),
    }


def test_without_a_p90_nobody_can_say_whether_promises_were_kept_and_nobody_is_asked() -> None:
    slo = {"ttft": {"p99": "2s"}, "tpot": {"p99": "90ms"}}
    assert asked(service(scaling={"maxReplicas": 8}, slo=slo))["default"].objectives == Objectives(2.0, 0.09)


def test_pools_go_to_zero_where_an_idle_time_is_given_and_every_one_of_them_follows_load() -> None:
    zero = {"maxReplicas": 1, "scaleToZero": {"after": "10m"}}
    whole = Asked(0, 1, 1, Objectives(), 600.0)
    assert asked(service(scaling=zero)) == {"default": whole}
    assert asked(service(scaling=zero, pools=[{"name": "long"}])) == {"default": whole, "long": whole}


@pytest.mark.parametrize("own", [{"mode": "Fixed"}, {"minReplicas": 2, "maxReplicas": 4}], ids=["fixed", "two"])
def test_beside_a_pool_that_always_has_a_replica_none_goes_to_zero(own: dict[str, Any]) -> None:
    zero = {"maxReplicas": 4, "scaleToZero": {"after": "10m"}}
    found = asked(service(scaling=zero, pools=[{"name": "long", "scaling": own}]))
    assert {(one.least > 0, one.idle_after) for one in found.values()} == {(True, None)}


def test_a_schedule_changes_the_bounds_while_it_holds_and_alone_makes_a_pool_follow_load() -> None:
    night = {"timezone": "Europe/Berlin", "days": ["Mon", "Sun"], "start": "22:00", "end": "06:00", "minReplicas": 4}
    [pool] = asked(service(scaling={"minReplicas": 2, "maxReplicas": 2, "schedules": [night]})).values()
    berlin = ZoneInfo("Europe/Berlin")
    found = [
        pool.bounds(datetime(2026, 11, 30, hour, tzinfo=berlin).timestamp())
        for hour in (5, 12, 23)  # a Monday
    ]
    assert found == [(4, 4), (2, 2), (4, 4)]


def test_the_longest_request_is_ten_minutes_unless_the_spec_says_otherwise() -> None:
    assert longest_request(service()) == 600.0
    assert longest_request(service(routing={"maxRequestDuration": "1m30s"})) == 90.0


# What a page says.


def test_of_a_page_only_what_is_wanted_is_read_and_series_of_one_name_are_added_up() -> None:
    page = """# HELP vllm:num_requests_running Requests.
vllm:num_requests_running{model_name="a"} 3
vllm:num_requests_running_of_others 9
paceline_step_phase_seconds_total{model_name="a",phase="forward"} 1.5
paceline_step_phase_seconds_total{model_name="a",phase="sample"} 0.5
a line that is nothing
"""
    assert values_of(page) == {"vllm:num_requests_running": "3.0", "paceline_step_phase_seconds_total": "2.0"}


@pytest.mark.parametrize("wrong", ["NaN", "+Inf", "-3"])
def test_a_series_that_is_no_count_does_not_vanish_in_a_sum(wrong: str) -> None:
    lines = [f'vllm:num_requests_waiting{{a="{n}"}} {value}' for n, value in enumerate(("7", wrong, "4"))]
    assert float(values_of("\n".join(lines))["vllm:num_requests_waiting"]) != 11.0
    heard = hear({}, {"a": (0.0, values_of("\n".join(lines)))}, 30.0)
    assert isinstance(Pool(heard, 0.0, TICK).signals(8, None).waiting, NotANumber)


# What is heard of a pool.


def said(total: float, **gauges: float) -> dict[str, str]:
    """A page after so many seconds of steady work of a replica: 100 prompt and 50 answer tokens each."""
    values = {
        "paceline_requests_received_total": total,
        "paceline_prefill_tokens_computed_total": 100 * total,
        "vllm:generation_tokens_total": 50 * total,
        "paceline_step_phase_seconds_total": total / 2,
        "paceline_engine_steps_total": 10 * total,
        "vllm:num_requests_waiting": gauges.get("waiting", 0.0),
        "vllm:num_requests_running": gauges.get("running", 0.0),
        "paceline_prefill_tokens": gauges.get("backlog", 0.0),
        "vllm:kv_cache_usage_perc": 0.25,
    }
    return {name: repr(value) for name, value in values.items()}


def looks(*answers: Mapping[str, Any]) -> Pool:
    heard: dict[str, Heard] = {}
    now = 0.0
    for number, answer in enumerate(answers):
        now = number * TICK
        heard = hear(heard, {uid: (now, one) for uid, one in answer.items()}, 2.5 * TICK)
    return Pool(heard, now, TICK)


def test_rates_and_levels_are_sums_over_replicas() -> None:
    pool = looks(
        {"a": said(0, running=3), "b": said(500, running=1)}, {"a": said(20, running=4), "b": said(510, running=2)}
    )
    signals = pool.signals(8, exactly(1.0, TICK))
    assert signals.prefill == exactly(300.0, TICK)
    assert signals.decode == exactly(150.0, TICK)
    assert signals.running == exactly(6.0, TICK)
    assert signals.held == exactly(1.0, TICK)
    assert signals.kv == exactly(0.25, TICK)
    assert [work.seconds for work in pool.works()] == [10.0, 5.0]


def test_at_the_first_look_rates_are_absent_and_not_zero() -> None:
    signals = looks({"a": said(100, running=3)}).signals(8, None)
    assert isinstance(signals.prefill, Absent)
    assert signals.running == exactly(3.0, 0.0)


def test_a_ready_replica_that_does_not_answer_makes_bounds() -> None:
    signals = looks(
        {"a": said(0), "b": "refused"}, *[{"a": said(10.0 * n), "b": "refused"} for n in (1, 2, 3, 4)]
    ).signals(8, None)
    assert isinstance(signals.running, Present)
    assert (signals.running.missing, signals.running.high) == (1, 8.0)
    assert isinstance(signals.prefill, Present)
    assert signals.prefill.missing == 1


def test_a_replica_that_has_just_become_ready_is_not_missed_yet() -> None:
    signals = looks({"a": said(0)}, {"a": said(10)}, {"a": said(20), "b": said(0, waiting=2)}).signals(8, None)
    assert signals.prefill == exactly(100.0, 2 * TICK)
    assert signals.waiting == exactly(2.0, 2 * TICK)


def test_a_replica_that_is_silent_for_long_is_set_aside_and_no_other() -> None:
    pool = looks(*[{"a": said(10.0 * n), "b": said(1) if n == 0 else "no"} for n in range(14)])
    assert pool.aside == ("b",)
    assert pool.signals(8, None).prefill == exactly(100.0, 13 * TICK)
    assert pool.busyness("a") == 0.0
    assert pool.busyness("b") is None


def test_a_replica_that_began_anew_taught_nothing_by_it_and_its_counters_are_no_fall() -> None:
    pool = looks({"a": said(1000)}, {"a": said(1010)}, {"a": said(3)})
    assert pool.works() == []
    prefill = pool.signals(8, None).prefill
    assert isinstance(prefill, Present)
    assert prefill.value > 0


def test_a_replica_of_another_engine_that_counts_no_steps_teaches_nothing() -> None:
    assert work_between({}, said(3)) is None


# The fleet, and the count that a pass orders.


def settled(**fields: Any) -> World:
    world = World(spec(**fields))
    world.settle()
    return world


def of(world: World) -> tuple[Observed, Desired]:
    return world.seen, world.desired()


def test_a_replica_without_a_place_is_pending_and_one_that_loads_starts() -> None:
    world = settled(replicas=3)
    observed, desired = of(world)
    a, b, c = observed.pods
    no_room = Problem(Reason.UNSCHEDULABLE, "Insufficient nvidia.com/gpu")
    pods = (
        replace(a, ready=False, problem=no_room, placed="", created="2026-01-01T00:00:00Z"),
        replace(b, ready=False, problem=None, placed="2026-01-01T00:00:10Z", created="2026-01-01T00:00:00Z"),
        replace(c, uid="c"),
    )
    seen = standing(replace(observed, pods=pods), desired, "default")
    assert seen is not None
    fleet = fleet_of(seen, 3, (), ("c",))
    assert (fleet.ready, fleet.pending, fleet.aside, fleet.rolling, fleet.quota) == (0, 1, 1, False, None)
    assert fleet.starting == (1767225610.0,)
    assert fleet_of(seen, 2, ("c",), ()).ready == 0


def test_a_quota_that_refuses_replicas_is_a_bound() -> None:
    world = settled(replicas=2)
    observed, desired = of(world)
    [deployment] = observed.deployments
    refused = replace(deployment, problem=Problem(Reason.QUOTA_EXCEEDED, "exceeded quota"))
    seen = standing(replace(observed, deployments=(refused,)), desired, "default")
    assert seen is not None
    assert fleet_of(seen, 4, (), ()).quota == 2


def test_while_another_revision_takes_over_the_pool_that_has_the_traffic_counts_and_it_is_rolling() -> None:
    world = settled(replicas=2)
    old = world.desired().pools[0].hash
    world.spec = spec(replicas=2, runtime={"maxNumSeqs": 8})
    seen = standing(world.seen, world.desired(), "default")
    assert seen is not None
    assert seen.rolling
    assert seen.pool.hash == old
    assert len(seen.ready) == 2


ASKED = {"default": Asked(1, 8, 3, Objectives())}


def test_without_scaling_a_pass_orders_the_very_counts_of_the_spec() -> None:
    observed, desired = of(settled(replicas=2))
    assert with_counts(desired, observed, {}, {"default": 7}) is desired


def test_what_was_decided_is_ordered_and_until_then_nothing_changes() -> None:
    world = settled(replicas=2)
    world.spec = spec(replicas=6)
    observed, desired = of(world)
    assert with_counts(desired, observed, ASKED, {}).replicas == {"default": 2}
    assert with_counts(desired, observed, ASKED, {"default": 5}).replicas == {"default": 5}
    assert with_counts(desired, Observed("demo", "chat", "uid", 1), ASKED, {}).replicas == {"default": 3}


# Decisions.


def decided(pool: Pool, memory: Memory, current: int, replicas: int = 1) -> tuple[Any, Memory]:
    observed, desired = of(settled(replicas=replicas))
    seen = standing(observed, desired, "default")
    assert seen is not None
    return decide(ASKED["default"], seen, pool, None, current, (), memory, Settings())


def test_under_load_whose_cost_is_not_measured_the_count_is_held() -> None:
    decision, memory = decided(looks({"a": said(0)}, {"a": said(1)}), Memory(), 4)
    assert (decision.replicas, decision.reason) == (4, "NotMeasured")
    assert memory.target == 4


def test_a_service_that_is_idle_from_the_start_goes_to_the_fewest_although_nothing_was_measured() -> None:
    memory, current = Memory(), 4
    heard: dict[str, Heard] = {}
    for number in range(120):
        now = number * TICK
        heard = hear(heard, {uid: (now, said(0)) for uid in "abcd"}, 2.5 * TICK)
        decision, memory = decided(Pool(heard, now, TICK), memory, current, 4)
        current = decision.replicas
    assert current == 1


def test_load_over_what_a_replica_carries_asks_for_more_once_it_is_measured() -> None:
    memory = Memory()
    heard: dict[str, Heard] = {}
    for number in range(4):
        now = number * TICK
        # Each look twenty seconds of work in ten: it cannot be, and says that one replica is far too few.
        heard = hear(heard, {"a": (now, said(40.0 * number, running=8, waiting=40, backlog=4000))}, 2.5 * TICK)
        decision, memory = decided(Pool(heard, now, TICK), memory, 1)
    assert decision.reason == "MoreNeeded"
    assert decision.replicas > 1
    assert decision.inputs["prefill_rate"] > 0


def test_places_that_follow_load_count_as_those_that_replicas_have_by_now() -> None:
    observed, desired = of(settled(replicas=1))
    seen = standing(observed, desired, "default")
    assert seen is not None
    found = []
    for knobs in ({}, {"maxNumSeqs": 1}):
        memory, heard = Memory(), dict[str, Heard]()
        for number in range(6):
            now = number * TICK
            heard = hear(heard, {"a": (now, said(8.0 * number, running=4))}, 2.5 * TICK)
            pool = Pool(heard, now, TICK)
            decision, memory = decide(ASKED["default"], seen, pool, None, 1, (), memory, Settings(), knobs=knobs)
        found.append(decision.replicas)
    assert found[0] == 1
    assert found[1] > 1


@pytest.mark.parametrize(
    ("held", "current", "wanted", "reason"),
    [
        (exactly(0.0, 0.0), 1, 0, "ScaledToZero"),
        (Absent("0 of 1 routers say what they hold"), 1, 1, "MetricsUnavailable"),
        (None, 1, 1, "Steady"),
        (exactly(2.0, 0.0), 0, 1, "Wake"),
        (exactly(0.0, 0.0), 0, 0, "Steady"),
        (Absent("0 of 1 routers say what they hold"), 0, 0, "MetricsUnavailable"),
    ],
    ids=["idle", "routers do not say", "no router", "held", "none held", "at zero, not known"],
)
def test_only_a_pool_that_routers_can_wake_goes_to_zero_and_a_held_request_wakes_it(
    held: Any, current: int, wanted: int, reason: str
) -> None:
    observed, desired = of(settled(replicas=current))
    seen = standing(observed, desired, "default")
    assert seen is not None
    zero = Asked(0, 2, 1, Objectives(), 300.0)
    memory, heard = Memory(), dict[str, Heard]()
    for number in range(60):
        now = number * TICK
        heard = hear(heard, {uid: (now, said(0)) for uid in ("a",)[:current]}, 2.5 * TICK)
        decision, memory = decide(zero, seen, Pool(heard, now, TICK), held, current, (), memory, Settings())
    assert (decision.replicas, decision.reason) == (wanted, reason)


def test_a_schedule_brings_replicas_when_it_begins_and_lets_them_go_by_steps_when_it_is_over() -> None:
    pool = asked(
        service(
            scaling={
                "maxReplicas": 8,
                "scaleDownWindow": "30s",
                "schedules": [{"timezone": "UTC", "start": "00:02", "end": "00:04", "minReplicas": 6}],
            }
        )
    )["default"]
    memory, heard, current, counts = Memory(), dict[str, Heard](), 1, list[int]()
    for number in range(60):
        now = number * TICK
        observed, desired = of(settled(replicas=current))
        seen = standing(observed, desired, "default")
        assert seen is not None
        heard = hear(heard, {pod.uid: (now, said(0)) for pod in seen.ready}, 2.5 * TICK)
        decision, memory = decide(pool, seen, Pool(heard, now, TICK), None, current, (), memory, Settings())
        current = decision.replicas
        counts.append(current)
    assert [counts[11], counts[12], counts[23]] == [1, 6, 6]
    assert sorted(counts[24:], reverse=True) == counts[24:]
    assert set(range(1, 7)) == set(counts), "one by one, and all of them in the end"
    assert counts[-1] == 1


def test_windows_of_services_are_their_own_and_a_changed_one_holds_at_the_next_decision() -> None:
    """Two services with windows of their own, one at no replica; the other's is changed ten times (C092)."""
    memories, heard = {"busy": Memory(), "none": Memory()}, dict[str, Heard]()
    replicas = {"busy": 3, "none": 0}
    reasons = []
    for number in range(14):
        now = number * TICK
        pools = {
            "busy": Asked(1, 8, 3, Objectives(), down_window=30.0 if number % 2 else 600.0),
            "none": Asked(0, 8, 1, Objectives(), 300.0, down_window=600.0),
        }
        heard = hear(heard, {uid: (now, said(0)) for uid in "abc"}, 2.5 * TICK)
        for name, pool in pools.items():
            observed, desired = of(settled(replicas=replicas[name]))
            seen = standing(observed, desired, "default")
            assert seen is not None
            listened = Pool(heard if name == "busy" else {}, now, TICK)
            current = replicas[name]
            decision, memories[name] = decide(pool, seen, listened, None, current, (), memories[name], Settings())
            if name == "busy":
                reasons.append(decision.reason)
    assert set(reasons[4::2]) == {"Watching"}, "600 s are not seen yet"
    assert set(reasons[5::2]) <= {"LessNeeded", "SteppingDown"}, "30 s are"
    assert memories["none"].target == 0, "no replica is no error"


def test_what_is_at_zero_stays_there_for_an_operator_that_begins_only_where_zero_is_meant() -> None:
    observed, desired = of(settled(replicas=0))
    zero = {"default": Asked(0, 8, 3, Objectives(), 600.0)}
    assert with_counts(desired, observed, zero, {}).replicas == {"default": 0}
    assert with_counts(desired, observed, ASKED, {}).replicas == {"default": 3}
    assert with_counts(desired, observed, zero, {"default": 0}).replicas == {"default": 0}


def test_the_status_keeps_its_figures_while_neither_count_nor_reason_changes() -> None:
    decision, _ = decided(looks({"a": said(0)}, {"a": said(0)}), Memory(), 1)
    first = scaling_status("default", decision, ["replicas"], 1000.0, None)
    assert scaling_status("default", decision, ["replicas"], 2000.0, first) is first
    other = replace(decision, reason="MetricsUnavailable", message="held at 1; waiting: absent (no series)")
    later = scaling_status("default", other, ["replicas"], 2000.0, first)
    assert later.since != first.since
    active = scaling_active({"default": later})
    assert active is not None
    assert active.status is ConditionStatus.FALSE
    assert "waiting: absent" in active.message
    assert scaling_active({}) is None


# The keeper.


class Told:
    def __init__(self) -> None:
        self.events: list[str] = []

    def event(self, about: JsonObject, *, type: str, reason: str, message: str) -> None:
        self.events.append(reason)


def keeper(services: list[JsonObject], asked_of: list[str], broken: str = "") -> ScalingKeeper:
    async def routers(path: str) -> tuple[int, list[Mapping[str, Any]]]:
        asked_of.append("routers")
        return 0, []

    def seen(key: tuple[str, str]) -> Seen | None:
        asked_of.append("service")
        if key[1] == broken:
            raise RuntimeError("what nobody thought of")
        return None

    return ScalingKeeper(
        services=lambda: services,
        seen=seen,
        pods=lambda: [],
        client=AsyncMock(spec=KubeClient, side_effect=AssertionError("nothing is written")),
        routers=routers,
        changed=lambda key: asked_of.append("pass"),
        recorder=Told(),
        clock=lambda: 0.0,
    )


async def test_where_nothing_follows_load_nobody_is_asked_and_no_pass_is_made() -> None:
    asked_of: list[str] = []
    quiet = keeper([service(), service(scaling={"scaleToZero": {}})], asked_of)
    await quiet.look()
    await quiet.look()
    assert asked_of == []
    assert quiet.of(("demo", "chat")) is None
    observed, desired = of(settled(replicas=2))
    assert quiet.counts(("demo", "chat"), service(), observed, desired) is desired


async def test_a_service_that_is_suspended_or_going_is_left_alone() -> None:
    asked_of: list[str] = []
    going = service(scaling={"maxReplicas": 4})
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    await keeper([going, service(scaling={"maxReplicas": 4}, suspend=True)], asked_of).look()
    assert asked_of == []
    await keeper([service(scaling={"maxReplicas": 4})], asked_of).look()
    assert asked_of == ["routers", "service"]


async def test_a_fault_of_one_service_stops_no_other_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    asked_of: list[str] = []
    first, second = service(scaling={"maxReplicas": 4}), service(scaling={"maxReplicas": 4})
    first["metadata"]["name"] = "broken"
    await keeper([first, second], asked_of, broken="broken").look()
    assert asked_of == ["routers", "service", "service"]
    assert "demo/broken: how many replicas its pools should have could not be decided" in caplog.text
    assert "what nobody thought of" in caplog.text


# The slow loop.


class Prometheus:
    def __init__(self, *answers: Signals) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def signals(self, pool: Source) -> Signals:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


POOLS = [Source("demo", "chat", "default"), Source("demo", "chat", "long")]


async def test_percentiles_are_kept_between_questions_and_get_stale() -> None:
    now = [0.0]
    slow = Slow(Prometheus(Signals(wait_p99=exactly(1.5, 0.0), attainment=exactly(0.99, 0.0))), lambda: now[0])
    assert isinstance(slow.of(POOLS[0], True).wait_p99, Absent), "not asked yet is not zero"
    await slow.ask(POOLS[:1])
    now[0] = 80.0
    assert slow.of(POOLS[0], True) == Signals(wait_p99=exactly(1.5, 0.0), attainment=exactly(0.99, 0.0))
    assert slow.of(POOLS[0], False).attainment is None, "where nothing is promised nothing is kept"
    now[0] = 100.0
    assert slow.of(POOLS[0], True).wait_p99 == Stale(1.5, 100.0)


async def test_a_prometheus_that_is_down_is_asked_once_a_round_however_many_pools_there_are() -> None:
    absent = Absent("Prometheus does not answer")
    source = Prometheus(Signals(*[absent] * 10), Signals(wait_p99=exactly(1.0, 0.0)))
    slow = Slow(source, lambda: 0.0)
    await slow.ask(POOLS)
    assert source.asked == 1
    assert slow.of(POOLS[1], True).wait_p99 == absent
    await slow.ask(POOLS)
    assert source.asked == 3
    assert slow.of(POOLS[1], True).wait_p99 == exactly(1.0, 0.0)


def test_while_prometheus_is_down_nothing_goes_down_and_the_decision_says_why() -> None:
    down = Signals(wait_p99=Absent("Prometheus does not answer"))
    observed, desired = of(settled(replicas=4))
    seen = standing(observed, desired, "default")
    assert seen is not None
    memory, heard, current = Memory(), dict[str, Heard](), 4
    for number in range(60):
        now = number * TICK
        heard = hear(heard, {uid: (now, said(0)) for uid in "abcd"}, 2.5 * TICK)
        pool = Pool(heard, now, TICK)
        decision, memory = decide(ASKED["default"], seen, pool, None, current, (), memory, Settings(), down)
        current = decision.replicas
    assert (current, decision.reason) == (4, "MetricsUnavailable")
    assert "wait_p99: absent (Prometheus does not answer)" in decision.message
