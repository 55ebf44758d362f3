"""The simulated fleet that is scaled: what starts, drains and dies, what it costs, and that no request gets lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from paceline_autoscaler.capacity import Objectives
from paceline_simulator.engine import Model, Request
from paceline_simulator.exact import replica_of
from paceline_simulator.scaling.fleet import Conditions, Run, ScaledFleet, kept
from paceline_simulator.scaling.view import View


@dataclass
class Told:
    """Does as it is told at a time."""

    rule: Callable[[float], int]
    period: float = 10.0

    def decide(self, view: View) -> int:
        return self.rule(view.now)


def arrivals(count: int, every: float = 0.5) -> list[Request]:
    return [Request(number, number * every, 800, 100, (), bytes) for number in range(count)]


def run(
    rule: Callable[[float], int],
    count: int = 600,
    first: int = 3,
    conditions: Conditions | None = None,
    exact: bool = False,
) -> Run:
    make = (lambda: replica_of(Model())) if exact else None
    fleet = ScaledFleet(Model(), Told(rule), conditions or Conditions(start_up=30.0), first, 1, None, make)
    return fleet.run(arrivals(count))


def test_scaling_down_drains_and_loses_nothing() -> None:
    outcome = run(lambda now: 3 if now < 100 else 1)
    assert all(request.done >= 0 for request in outcome.requests)
    ended = sorted(end for _, end in outcome.spans)
    assert len(ended) == 3
    assert all(100 <= end < 130 for end in ended[:2]), "as soon as their running work was done"


def test_a_replica_costs_from_its_creation_and_serves_after_its_start() -> None:
    outcome = run(lambda now: 2 if now >= 100 else 1, first=1)
    created = max(start for start, _ in outcome.spans)
    assert created == 100.0
    assert outcome.gpu_hours(0.0, 200.0) == pytest.approx((200 + 100) / 3600)


def test_requests_wait_for_the_first_replica() -> None:
    outcome = run(lambda now: 1, count=20, first=0)
    assert all(request.done >= 0 for request in outcome.requests)
    assert min(request.first_token for request in outcome.requests) > 20.0


def test_a_dead_replica_loses_only_what_it_had_begun_to_answer() -> None:
    outcome = run(lambda now: 2, first=2, conditions=Conditions(start_up=30.0, failures=(200.0,)))
    lost = [request for request in outcome.requests if request.done < 0]
    assert 0 < len(lost) < 20
    assert all(0 <= request.first_token <= 200.0 for request in lost)
    assert all(not kept(request, Objectives()) for request in lost)
    assert len(outcome.spans) == 3


def test_what_users_got_is_counted_scrape_by_scrape_and_lost_requests_are_among_it() -> None:
    seen: list[tuple[float, int, int]] = []

    @dataclass
    class Watching:
        period: float = 10.0

        def decide(self, view: View) -> int:
            seen.append((view.now, view.answered, view.kept))
            return 3

    objectives = Objectives(ttft=1.0)
    conditions = Conditions(start_up=30.0, failures=(101.0,))
    fleet = ScaledFleet(Model(), Watching(), conditions, 3, 1, objectives=objectives)
    outcome = fleet.run(arrivals(600))
    for now, answered, good in seen:
        scraped = now - now % 15.0
        lost = sum(one.done < 0 for one in outcome.requests) if scraped > 101.0 else 0
        over = [one for one in outcome.requests if 0 <= one.done <= scraped]
        assert (answered, good) == (len(over) + lost, sum(kept(one, objectives) for one in over)), now
    assert seen[-1][1] > seen[-1][2] > 0


def test_a_flap_is_a_turn_soon_after_a_change_the_other_way() -> None:
    changes = [(0.0, 2), (100.0, 4), (200.0, 3), (900.0, 5), (910.0, 6)]
    assert Run([], changes=changes).flaps(0.0, 1000.0) == 1
    assert Run([], changes=changes).flaps(300.0, 1000.0) == 0


def test_an_objective_is_kept_up_to_its_limit() -> None:
    request = replace(arrivals(1)[0], first_token=2.0, done=2.0 + 99 * 0.1)
    assert kept(request, Objectives(2.0, 0.1 + 1e-9))
    assert not kept(request, Objectives(1.9, None))
    assert not kept(request, Objectives(None, 0.09))


def test_with_the_engines_own_scheduler_nothing_is_lost_either_and_times_are_near_those_of_the_quick_fleet() -> None:
    conditions = Conditions(start_up=30.0, failures=(60.0,))
    quick, exact = (
        run(lambda now: 3 if now < 40 else 2, 300, conditions=conditions, exact=exact) for exact in (False, True)
    )
    begun = [request for request in exact.requests if request.done < 0]
    assert all(request.first_token >= 0 for request in begun), "only a stream that had begun is lost with its replica"
    assert len(begun) < 20
    middle = [sorted(one.first_token - one.arrival for one in made.requests)[150] for made in (quick, exact)]
    assert middle[1] == pytest.approx(middle[0], rel=0.25)
