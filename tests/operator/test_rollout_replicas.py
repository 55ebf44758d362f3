"""What replicas count, as windows of both versions, and the gates on it."""

from __future__ import annotations

import pytest

from paceline_operator.rollout.asked import Policy, Step
from paceline_operator.rollout.gathering import Heard
from paceline_operator.rollout.judging import judgement
from paceline_operator.rollout.replicas import COUNTERS, LONGEST_SECONDS, Counted, count, wanted
from paceline_operator.rollout.rules import Rules
from paceline_operator.rollout.state import Phase, State
from paceline_shadow_traffic.evidence import Seen, Signal, Window
from paceline_shadow_traffic.share import Share
from paceline_shadow_traffic.verdict import Gate, Verdict

BEGAN = 1_000_000.0
MINUTE = 6
"""Looks."""


class Replica:
    """Counts as a replica does; requests of 100 tokens each, half of the prompt from the cache."""

    def __init__(self, tokens: float = 100.0, hits: float = 0.5, preempted: float = 0.0) -> None:
        self.tokens, self.hits, self.preempted = tokens, hits, preempted
        self.requests = 0

    def serve(self, count: int) -> dict[str, str]:
        self.requests += count
        n = self.requests
        values = (n, n * self.tokens, n * self.preempted, n * 200.0, n * 200.0 * self.hits)
        return {name: str(value) for name, value in zip(COUNTERS, values, strict=True)}


def looks(
    base: Replica, candidate: Replica, number: int = MINUTE + 1, requests: tuple[int, int] = (10, 5)
) -> tuple[Counted, float]:
    counted, now = Counted(BEGAN), BEGAN
    for _ in range(number):
        said = {"default": ({"a": base.serve(requests[0])}, {"b": candidate.serve(requests[1])})}
        counted = count(counted, said, now)
        now += 10.0
    return counted, now - 10.0


def only(counted: Counted) -> Window:
    [[window]] = counted.windows.values()
    return window


def test_a_minute_of_both_versions_is_a_window_as_if_each_had_all_requests() -> None:
    window = only(looks(Replica(), Replica())[0])
    assert (window.start, window.end) == (BEGAN, BEGAN + 60)
    assert window.base.throughput == pytest.approx(90 * 100 / 60), "90 requests came to both in that minute"
    assert window.candidate.throughput == pytest.approx(90 * 100 / 60)
    assert window.base.shares == {Signal.PREEMPTIONS: Share(0, 60), Signal.HIT_RATE: Share(30, 60)}


def test_a_version_that_does_not_keep_up_makes_less_of_what_came() -> None:
    window = only(looks(Replica(), Replica(tokens=60.0, hits=0.1, preempted=3.0))[0])
    assert window.base.throughput is not None
    assert window.candidate.throughput == pytest.approx(0.6 * window.base.throughput)
    assert window.candidate.shares == {Signal.PREEMPTIONS: Share(30, 30), Signal.HIT_RATE: Share(3, 30)}


def test_a_window_is_drawn_out_while_hardly_anything_comes_and_then_says_nothing_of_throughput() -> None:
    few = looks(Replica(), Replica(), int(LONGEST_SECONDS / 10), (10, 0))[0]
    assert few.windows == {"default": ()}
    window = only(looks(Replica(), Replica(), int(LONGEST_SECONDS / 10) + 1, (10, 0))[0])
    assert (window.base.throughput, window.candidate.throughput) == (None, None)
    assert window.candidate.shares[Signal.PREEMPTIONS] == Share(0, 0)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("it did not answer within 3 s", "did not answer"),
        ({COUNTERS[0]: "5"}, f"counts no {COUNTERS[1]}"),
        (Replica().serve(1), "began anew"),
        (dict.fromkeys(COUNTERS, "nan"), "no counts"),
    ],
)
def test_a_replica_that_is_silent_or_began_anew_leaves_a_window_that_is_not_known(
    fault: dict[str, str] | str, words: str
) -> None:
    base, candidate = Replica(), Replica()
    counted = Counted(BEGAN)
    for number in range(MINUTE + 1):
        new = fault if number == 3 else candidate.serve(10)
        counted = count(counted, {"default": ({"a": base.serve(10)}, {"b": new})}, BEGAN + 10 * number)
        assert (words in counted.trouble) == (number == 3)
    assert (only(counted).base, only(counted).candidate) == (Seen(), Seen())


def test_a_replica_that_comes_counts_from_then_on() -> None:
    old, late, new = Replica(), Replica(), Replica()
    late.serve(5000)
    counted = Counted(BEGAN)
    for number in range(MINUTE + 1):
        base = {"a": old.serve(10)} | ({"c": late.serve(10)} if number > 2 else {})
        counted = count(counted, {"default": (base, {"b": new.serve(10)})}, BEGAN + 10 * number)
    assert only(counted).base.shares[Signal.PREEMPTIONS].of == 60 + 30


def test_only_what_is_wanted_is_read_of_a_page() -> None:
    page = '# TYPE other counter\nother 7\nvllm:generation_tokens_total{model_name="m"} 40.0\n'
    assert wanted(page) == {"vllm:generation_tokens_total": "40.0"}


STEPS = (Step(50, 60.0, 600.0), Step(100, 0.0, 0.0))
STATE = State("a", Phase.JUDGING, "b", step=0, weight=50, generation=3, since=BEGAN, begun=BEGAN, steps=STEPS)
FEW = Gate(Signal.HIT_RATE, 10.0, min_samples=100, settle=60.0)


@pytest.mark.parametrize(
    ("candidate", "gate", "verdict"),
    [
        (Replica(), FEW, Verdict.PASS),
        (Replica(hits=0.2), FEW, Verdict.FAIL),
        (Replica(), Gate(Signal.THROUGHPUT, 15.0, min_samples=20), Verdict.PASS),
        (Replica(tokens=60.0), Gate(Signal.THROUGHPUT, 15.0, min_samples=20), Verdict.FAIL),
        (Replica(preempted=0.4), Gate(Signal.PREEMPTIONS, 5.0), Verdict.FAIL),
    ],
)
def test_a_gate_on_what_replicas_count_decides(candidate: Replica, gate: Gate, verdict: Verdict) -> None:
    counted, now = looks(Replica(), candidate, 60 * MINUTE, (10, 10))
    rules = Rules(Policy(STEPS), (), (gate,))
    said = judgement(rules, STATE, _routers(now), now, counted, ["default"])
    assert said.verdict is verdict
    assert [place for place, _ in said.findings] == ["default"]


def test_a_cold_cache_is_no_regression_and_until_it_is_warm_nothing_is_known() -> None:
    counted, now = looks(Replica(), Replica(hits=0.0), 9 * MINUTE, (10, 10))
    rules = Rules(Policy(STEPS), (), (Gate(Signal.HIT_RATE, 10.0, settle=600.0),))
    said = judgement(rules, STATE, _routers(now), now, counted, ["default"])
    assert said.verdict is Verdict.NOT_KNOWN
    assert "s until it counts" in said.message


def test_gates_of_which_there_is_no_data_pass_nothing() -> None:
    rules = Rules(Policy(STEPS), (), (FEW,))
    silent = judgement(rules, STATE, _routers(BEGAN + 900), BEGAN + 900, Counted(BEGAN, trouble="silent"), ["default"])
    assert (silent.verdict, silent.message) == (
        Verdict.NOT_KNOWN,
        "default: HitRate is not known: no data; the last look: silent",
    )
    counted, now = looks(Replica(), Replica(), 60 * MINUTE, (10, 10))
    both = Rules(Policy(STEPS), (Gate(Signal.ERROR_RATE, 5.0),), (FEW,))
    said = judgement(both, STATE, Heard(BEGAN, BEGAN), now, counted, ["default"])
    assert said.verdict is Verdict.NOT_KNOWN


def _routers(now: float) -> Heard:
    """Routers that saw as many requests of each version as were asked for."""
    seen = Seen(shares={Signal.ERROR_RATE: Share(0, 1000)})
    return Heard(BEGAN, now, windows={"default/short": (Window(BEGAN, now, seen, seen),)})
