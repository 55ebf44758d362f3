"""Which container starts, stops or waits, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_local.node.restart import (
    Backoff,
    ContainerView,
    allowed_at,
    decide,
    next_backoff,
    outcome_of,
    wants_restart,
)

MAIN = ContainerView("main", "main", "Always")
INIT = ContainerView("init", "init", "OnFailure")
SIDECAR = ContainerView("sidecar", "sidecar", "Always")


def exited(view: ContainerView, code: int, ended: float = 100.0, backoff: Backoff | None = None) -> ContainerView:
    return replace(view, state="exited", exit_code=code, ended=ended, backoff=backoff)


def running(view: ContainerView, started: bool = True) -> ContainerView:
    return replace(view, state="running", started=started)


def test_a_crash_loop_waits_ten_seconds_then_twice_as_long_up_to_five_minutes() -> None:
    now, backoff, waits = 0.0, None, []
    for _ in range(8):
        when = allowed_at(backoff, now)
        waits.append(when - now)
        now = when
        backoff = next_backoff(backoff, now)
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_container_that_ran_long_restarts_at_once_again() -> None:
    backoff = Backoff(300.0, updated=0.0)
    assert allowed_at(backoff, ended=601.0) == 601.0
    assert next_backoff(backoff, 601.0).delay == 10.0
    assert allowed_at(backoff, ended=599.0) == 899.0


def test_a_lower_maximum_bounds_every_wait() -> None:
    backoff = None
    for step in range(5):
        backoff = next_backoff(backoff, float(step), most=2.0)
        assert backoff.delay <= 2.0


def test_init_containers_run_one_after_the_other_and_main_ones_together() -> None:
    second, other = replace(INIT, name="second"), replace(MAIN, name="other")
    assert decide([INIT, second, MAIN], 0).start == ("init",)
    assert decide([running(INIT), second, MAIN], 0).start == ()
    assert decide([exited(INIT, 0), second, MAIN], 0).start == ("second",)
    assert decide([exited(INIT, 0), exited(second, 0), MAIN, other], 0).start == ("main", "other")


def test_a_sidecar_has_to_be_started_before_the_next_container_and_is_restarted() -> None:
    assert decide([SIDECAR, INIT, MAIN], 0).start == ("sidecar",)
    assert decide([running(SIDECAR, started=False), INIT, MAIN], 0).start == ()
    assert decide([running(SIDECAR), INIT, MAIN], 0).start == ("init",)
    assert decide([exited(SIDECAR, 0), running(MAIN)], 200.0).start == ("sidecar",)


def test_a_failed_init_container_fails_a_pod_that_never_restarts() -> None:
    never = replace(INIT, policy="Never")
    assert decide([exited(never, 1), MAIN], 0).outcome == "Failed"
    assert decide([running(SIDECAR), exited(never, 1), MAIN], 0).stop == ("sidecar",)
    assert decide([exited(INIT, 1), MAIN], 200.0).start == ("init",)


def test_a_finished_pod_stops_its_sidecars_and_then_has_its_outcome() -> None:
    done = exited(replace(MAIN, policy="Never"), 0)
    assert decide([running(SIDECAR), done], 0).stop == ("sidecar",)
    assert decide([exited(SIDECAR, 137), done], 0).outcome == "Succeeded"
    assert decide([exited(SIDECAR, 0), exited(replace(MAIN, policy="Never"), 2)], 0).outcome == "Failed"


def test_a_crash_looping_container_waits_while_the_others_run() -> None:
    crashed = exited(MAIN, 1, 100.0, Backoff(10.0, 95.0))
    decision = decide([crashed, running(replace(MAIN, name="other"))], 101.0)
    assert decision.start == ()
    assert decision.waiting == {"main": 110.0}
    assert decision.wake_at == 110.0
    assert decide([crashed], 110.0).start == ("main",)


def test_an_ending_pod_stops_main_containers_first_and_sidecars_last_to_first() -> None:
    second = replace(SIDECAR, name="second")
    views = [running(SIDECAR), running(second), running(MAIN)]
    assert decide(views, 0, ending=True).stop == ("main",)
    assert decide([*views[:2], exited(MAIN, 0)], 0, ending=True).stop == ("second",)
    assert decide([views[0], exited(second, 0), exited(MAIN, 0)], 0, ending=True).stop == ("sidecar",)


views_strategy = st.lists(
    st.builds(
        ContainerView,
        name=st.just("x"),
        role=st.sampled_from(["init", "sidecar", "main"]),
        policy=st.sampled_from(["Always", "OnFailure", "Never"]),
        state=st.sampled_from(["none", "running", "exited"]),
        started=st.booleans(),
        exit_code=st.sampled_from([0, 1, 137]),
        ended=st.floats(0, 1000),
        backoff=st.none() | st.builds(Backoff, st.sampled_from([10.0, 300.0]), st.floats(0, 1000)),
    ),
    min_size=1,
    max_size=5,
).map(lambda views: [replace(v, name=f"c{i}") for i, v in enumerate(sorted(views, key=lambda v: v.role == "main"))])


@given(views_strategy, st.floats(0, 2000), st.booleans())
def test_every_decision_is_possible(views: list[ContainerView], now: float, ending: bool) -> None:
    state = {v.name: v for v in views}
    decision = decide(views, now, ending=ending)
    assert all(state[name].state != "running" for name in decision.start)
    assert all(state[name].state == "running" for name in decision.stop)
    assert all(when > now for when in decision.waiting.values())
    assert not set(decision.start) & set(decision.waiting)
    if decision.outcome is not None:
        assert not decision.start
        assert not decision.stop
        assert all(v.state != "running" for v in views)
    if ending:
        assert not decision.start
        assert decision.outcome is not None or decision.stop


@given(views_strategy, st.floats(0, 2000))
def test_a_main_container_never_starts_before_the_init_containers_are_done(
    views: list[ContainerView], now: float
) -> None:
    begun = any(v.role == "main" and v.state != "none" for v in views)
    started = {v.name: v for v in views if v.name in decide(views, now).start}
    if not begun and any(v.role == "main" for v in started.values()):
        assert all(v.state == "exited" and v.exit_code == 0 for v in views if v.role == "init")
        assert all(v.state == "running" and v.started for v in views if v.role == "sidecar")


class World:
    """A pod whose containers behave as told, stepped by decisions alone."""

    def __init__(self, views: list[ContainerView], codes: dict[str, list[int]]) -> None:
        self.views, self.codes, self.now, self.starts = views, codes, 0.0, dict.fromkeys(codes, 0)

    def step(self, most: float) -> bool:
        decision = decide(self.views, self.now, most=most)
        changed = {}
        for view in self.views:
            if view.name in decision.start:
                backoff = next_backoff(view.backoff, self.now, most) if view.state == "exited" else view.backoff
                changed[view.name] = replace(view, state="running", started=True, backoff=backoff)
                self.starts[view.name] += 1
            elif view.name in decision.stop:
                changed[view.name] = replace(view, state="exited", exit_code=137, ended=self.now)
        self.views = [changed.get(v.name, v) for v in self.views]
        if not changed:
            self._advance(decision.wake_at)
        return decision.outcome is not None

    def _advance(self, wake_at: float | None) -> None:
        ending = next((v for v in self.views if v.state == "running" and v.role != "sidecar"), None)
        if ending is not None:
            self.now += 1.0
            codes = self.codes[ending.name]
            code = codes.pop(0) if codes else 0
            done = replace(ending, state="exited", exit_code=code, ended=self.now)
            self.views = [done if v.name == ending.name else v for v in self.views]
        elif wake_at is not None:
            self.now = wake_at


@given(
    st.lists(st.sampled_from(["init", "sidecar"]), max_size=3),
    st.integers(1, 2),
    st.sampled_from(["OnFailure", "Never"]),
    st.lists(st.lists(st.sampled_from([0, 1]), max_size=4), min_size=5, max_size=5),
)
def test_every_pod_that_may_end_does(roles: list[str], mains: int, policy: str, codes: list[list[int]]) -> None:
    views = [
        ContainerView(f"{role}{i}", role, "Always" if role == "sidecar" else policy)  # type: ignore[arg-type]
        for i, role in enumerate([*roles, *["main"] * mains])
    ]
    world = World(views, {v.name: list(c) for v, c in zip(views, codes, strict=False)})
    for _ in range(200):
        if world.step(most=20.0):
            break
    else:
        pytest.fail("the pod never ended")
    if outcome_of(world.views) == "Succeeded":
        assert all(world.starts[v.name] >= 1 for v in views)
    assert all(not (wants_restart(v) and v.role == "main") for v in world.views)
