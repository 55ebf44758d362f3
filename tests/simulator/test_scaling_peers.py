"""The peers' rules, by examples that their own documentation or sources give."""

from __future__ import annotations

from paceline_simulator.scaling.peers import Hpa, Keda, Kpa
from paceline_simulator.scaling.view import Pod, View


def view(now: float, loads: list[int | None], waiting: int = 0, metrics: bool = True) -> View:
    """A fleet whose replicas run so many requests each; None: it starts."""
    pods = [Pod(0.0, load is not None, load, None if load is None else 0) for load in loads]
    if waiting:
        pods[0] = Pod(0.0, True, loads[0], waiting)
    return View(now, len(loads), tuple(pods), 0, 0, 0.0, 0.0, 0.0, (), metrics)


def test_hpa_goes_by_the_ratio_rounded_up() -> None:
    assert Hpa(10.0).decide(view(0.0, [20, 20])) == 4
    assert Hpa(10.0).decide(view(0.0, [15, 10])) == 3


def test_hpa_stays_within_a_tenth_of_the_target() -> None:
    assert Hpa(10.0).decide(view(0.0, [11, 10])) == 2
    assert Hpa(10.0).decide(view(0.0, [12, 11])) == 3


def test_hpa_counts_a_pod_without_metrics_as_idle_when_it_would_scale_up() -> None:
    # Two pods at twice the target and one that starts: 40 over three pods is 1.33 of the target.
    assert Hpa(10.0).decide(view(0.0, [20, 20, None])) == 4
    assert Hpa(10.0).decide(view(0.0, [20, 20, None, None])) == 4


def test_hpa_counts_a_pod_without_metrics_as_at_the_target_when_it_would_scale_down() -> None:
    assert Hpa(10.0, window=15.0).decide(view(0.0, [9, None])) == 2


def test_hpa_adds_at_most_four_pods_or_as_many_as_there_are_in_fifteen_seconds() -> None:
    assert Hpa(1.0).decide(view(0.0, [50])) == 5
    assert Hpa(1.0).decide(view(0.0, [50] * 6)) == 12


def test_hpa_shrinks_to_the_highest_recommendation_of_its_window() -> None:
    hpa = Hpa(10.0, window=60.0)
    taken = [hpa.decide(view(now, [2, 2, 2, 2])) for now in (0.0, 15.0, 30.0, 45.0, 60.0)]
    assert taken == [4, 4, 4, 4, 1]


def test_hpa_holds_while_the_metric_is_missing() -> None:
    assert Hpa(10.0).decide(view(0.0, [90, 90], metrics=False)) == 2


def test_kedas_queue_divides_the_sum_by_the_threshold() -> None:
    assert Keda(5.0).decide(view(0.0, [8, 8], waiting=18)) == 4
    assert Keda(5.0).decide(view(0.0, [8, 8], waiting=10)) == 2, "within the tolerance"


def test_kedas_lost_targets_read_as_an_empty_queue() -> None:
    """C079, as the peer has it."""
    keda = Keda(5.0, window=60.0)
    taken = [keda.decide(view(now, [8, 8, 8], waiting=15, metrics=False)) for now in (0.0, 30.0, 61.0)]
    assert taken == [3, 3, 1]


def test_kpa_panics_at_twice_what_is_ready_and_does_not_shrink_then() -> None:
    kpa = Kpa(10.0, window=60.0)
    for second in range(0, 60, 2):
        assert kpa.decide(view(float(second), [10])) == 1
    grown = [kpa.decide(view(float(second), [60])) for second in range(60, 68, 2)]
    assert grown[-1] == 6
    calm = [kpa.decide(view(float(second), [5] * 6)) for second in range(68, 120, 2)]
    assert set(calm) == {6}


def test_kpa_at_most_halves_what_is_ready() -> None:
    kpa = Kpa(10.0, window=10.0)
    taken = [kpa.decide(view(float(second), [0] * 8)) for second in range(0, 40, 2)]
    assert taken[0] == 8, "it begins in panic, so as not to begin by shrinking"
    assert taken[-1] == 4


def test_kpa_holds_in_panic_what_the_stable_window_asked_for_meanwhile() -> None:
    kpa = Kpa(10.0, window=20.0)
    for second in range(0, 60, 2):
        assert kpa.decide(view(float(second), [15] * 8)) == 12
    # Seven of eight fail: what is asked of the one that is left is panic, and the stable window still says twelve.
    assert {kpa.decide(view(float(second), [40])) for second in range(60, 100, 2)} == {12}
