"""Better, no worse, worse, not known: what each gate says, and that nothing but data ever passes."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from paceline_crds.sketch import Sketch
from paceline_shadow_traffic.evidence import Seen, Signal, Window
from paceline_shadow_traffic.power import Traffic, prospect
from paceline_shadow_traffic.share import Share
from paceline_shadow_traffic.verdict import DEFAULT_GATES, Gate, Outcome, Verdict, judge, judge_gate

ALPHA = 0.05 / 21
MINUTES = 60
NOW = 60.0 * MINUTES
P50 = Gate(Signal.TTFT_P50, 10.0)


def times(count: int, scale: float, seed: int) -> Sketch:
    draw = random.Random(seed)
    return Sketch.of(scale * math.exp(draw.gauss(0.0, 0.5)) for _ in range(count))


def slower(factor: float, requests: int = 40, minutes: int = MINUTES) -> list[Window]:
    return [
        Window(
            60.0 * at,
            60.0 * at + 60.0,
            Seen(ttft=times(3 * requests, 0.3, at)),
            Seen(ttft=times(requests, 0.3 * factor, 1000 + at)),
        )
        for at in range(minutes)
    ]


def shared(signal: Signal, base: Share, candidate: Share) -> list[Window]:
    return [
        Window(60.0 * at, 60.0 * at + 60.0, Seen(shares={signal: base}), Seen(shares={signal: candidate}))
        for at in range(MINUTES)
    ]


def judged(gate: Gate, windows: list[Window], now: float = NOW) -> Any:
    return judge_gate(gate, windows, 0.0, now, ALPHA)


@pytest.mark.parametrize(
    ("factor", "outcome"),
    [(0.7, Outcome.BETTER), (1.0, Outcome.NO_WORSE), (1.13, Outcome.NOT_KNOWN), (1.4, Outcome.WORSE)],
)
def test_a_times_outcome_follows_its_interval(factor: float, outcome: Outcome) -> None:
    found = judged(P50, slower(factor))
    assert found.outcome is outcome
    assert found.regression.low < 100.0 * (factor - 1.0) < found.regression.high
    assert found.samples[1] == 40 * (MINUTES - 1)
    assert "samples" in found.message


def test_a_tail_that_was_never_seen_has_no_bound() -> None:
    """200 requests say nothing of the slowest hundredth."""
    found = judged(Gate(Signal.TTFT_P99, 25.0, min_samples=100), slower(1.0, requests=8, minutes=26), 26 * 60.0)
    assert found.outcome is Outcome.NOT_KNOWN
    assert math.isinf(found.regression.high)


@pytest.mark.parametrize(
    ("signal", "base", "candidate", "outcome"),
    [
        (Signal.ERROR_RATE, Share(0, 120), Share(0, 120), Outcome.NO_WORSE),
        (Signal.ERROR_RATE, Share(0, 120), Share(6, 120), Outcome.WORSE),
        (Signal.GOODPUT, Share(114, 120), Share(114, 120), Outcome.NO_WORSE),
        (Signal.GOODPUT, Share(114, 120), Share(90, 120), Outcome.WORSE),
        (Signal.GOODPUT, Share(90, 120), Share(114, 120), Outcome.BETTER),
        (Signal.PREEMPTIONS, Share(1, 120), Share(30, 120), Outcome.WORSE),
        (Signal.HIT_RATE, Share(60, 120), Share(20, 120), Outcome.WORSE),
        (Signal.OUTPUT_DIFFERENCE, Share(12, 40), Share(12, 40), Outcome.NOT_KNOWN),
        (Signal.OUTPUT_DIFFERENCE, Share(12, 120), Share(11, 120), Outcome.NO_WORSE),
        (Signal.OUTPUT_DIFFERENCE, Share(2, 40), Share(15, 40), Outcome.WORSE),
    ],
)
def test_a_shares_outcome_follows_the_direction_of_the_signal(
    signal: Signal, base: Share, candidate: Share, outcome: Outcome
) -> None:
    """An output that differs is held against how often the base differs from itself (C073)."""
    assert judged(Gate(signal, 3.0), shared(signal, base, candidate)).outcome is outcome


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, Outcome.NO_WORSE), (0.6, Outcome.WORSE), (1.5, Outcome.BETTER)])
def test_throughput_is_compared_window_by_window_under_the_same_load(factor: float, outcome: Outcome) -> None:
    draw = random.Random(5)
    windows = []
    for at in range(MINUTES):
        load = 200.0 * math.exp(draw.gauss(0.0, 1.0))
        pair = (
            Seen(throughput=load * math.exp(draw.gauss(0.0, 0.05))),
            Seen(throughput=factor * load * math.exp(draw.gauss(0.0, 0.05))),
        )
        windows.append(Window(60.0 * at, 60.0 * at + 60.0, *pair))
    assert judged(Gate(Signal.THROUGHPUT, 15.0, min_samples=20), windows).outcome is outcome


@pytest.mark.parametrize(
    ("sum_of_scores", "outcome"), [(2.0, Outcome.NO_WORSE), (6.0, Outcome.NOT_KNOWN), (12.0, Outcome.WORSE)]
)
def test_a_users_own_score_is_held_against_what_it_may_be_at_the_most(sum_of_scores: float, outcome: Outcome) -> None:
    scored = Seen(scores={"tone": Share(sum_of_scores, 60.0)}), Seen(scores={"tone": Share(0.0, 60.0)})
    windows = [Window(60.0 * at, 60.0 * at + 60.0, *reversed(scored)) for at in range(MINUTES)]
    found = judged(Gate(Signal.SCORE, 10.0, score="tone"), windows)
    assert (found.outcome, found.name) == (outcome, "Score/tone")
    other = judged(Gate(Signal.SCORE, 10.0, score="other"), windows)
    assert (other.outcome, other.reason) == (Outcome.NOT_KNOWN, "ThinTraffic")
    assert "install other beside the recorder" in other.message
    nobody = [replace(one, base=Seen(), candidate=Seen()) for one in windows]
    assert judged(Gate(Signal.SCORE, 10.0, score="tone"), nobody).reason == "NoData"


def nan_share() -> list[Window]:
    return shared(Signal.ERROR_RATE, Share(math.nan, 120), Share(0, 120))


ERRORS = Gate(Signal.ERROR_RATE, 1.0)
FINE = shared(Signal.ERROR_RATE, Share(0, 120), Share(0, 120))


@pytest.mark.parametrize(
    ("windows", "now", "reason"),
    [
        ([], NOW, "NoData"),
        ([replace(one, candidate=Seen()) for one in FINE], NOW, "NoData"),
        ([replace(one, candidate=Seen()) if at % 5 == 0 else one for at, one in enumerate(FINE)], NOW, "Missing"),
        (FINE, NOW + 600.0, "Stale"),
        (nan_share(), NOW, "NotANumber"),
        (shared(Signal.ERROR_RATE, Share(0, 120), Share(-1, 120)), NOW, "NotANumber"),
        (shared(Signal.ERROR_RATE, Share(0, 0), Share(0, 0)), NOW, "ThinTraffic"),
        (shared(Signal.ERROR_RATE, Share(0, 120), Share(0, 2)), NOW, "ThinTraffic"),
        (FINE[:8], 480.0, "TooFewWindows"),
        (FINE[:1], 30.0, "Settling"),
    ],
)
def test_what_is_missing_old_thin_or_no_number_is_not_known_and_said_so(
    windows: list[Window], now: float, reason: str
) -> None:
    """C054, C055: no request has no error rate, and that is neither good nor bad."""
    found = judge_gate(ERRORS, windows, 0.0, now, ALPHA)
    assert (found.outcome, found.reason) == (Outcome.NOT_KNOWN, reason)
    assert "not known" in found.message


def test_two_requests_a_minute_never_pass() -> None:
    """C055: a 5 % canary that gets two requests a minute, no error among them, after an hour."""
    windows = shared(Signal.ERROR_RATE, Share(0, 38), Share(0, 2))
    assert judge((ERRORS,), {"default/Chat": windows}, 0.0, NOW, steps=3).verdict is Verdict.NOT_KNOWN


def test_warm_up_is_left_out_and_the_cache_gets_longer() -> None:
    cold = [
        replace(one, candidate=Seen(shares={Signal.HIT_RATE: Share(0, 120)})) if one.start < 600.0 else one
        for one in shared(Signal.HIT_RATE, Share(60, 120), Share(60, 120))
    ]
    assert judged(Gate(Signal.HIT_RATE, 10.0, settle=600.0), cold).outcome is Outcome.NO_WORSE
    assert judged(Gate(Signal.HIT_RATE, 10.0, settle=0.0), cold).outcome is not Outcome.NO_WORSE


def test_one_gate_that_is_worse_fails_all_and_one_that_is_not_known_passes_none() -> None:
    good = FINE
    bad = shared(Signal.ERROR_RATE, Share(0, 120), Share(12, 120))
    thin = shared(Signal.ERROR_RATE, Share(0, 120), Share(0, 1))
    gates = (ERRORS,)
    assert judge(gates, {"a": good, "b": good}, 0.0, NOW, 3).verdict is Verdict.PASS
    assert judge(gates, {"a": good, "b": thin}, 0.0, NOW, 3).verdict is Verdict.NOT_KNOWN
    failed = judge(gates, {"a": good, "b": bad, "c": thin}, 0.0, NOW, 3)
    assert failed.verdict is Verdict.FAIL
    assert failed.message.startswith("b: ErrorRate is worse")
    assert judge((), {"a": good}, 0.0, NOW, 3).verdict is Verdict.NOT_KNOWN
    assert judge(gates, {}, 0.0, NOW, 3).verdict is Verdict.NOT_KNOWN


@pytest.mark.parametrize(
    ("candidate", "verdict"), [(40, Verdict.PASS), (12, Verdict.NOT_KNOWN), (0, Verdict.NOT_KNOWN)]
)
def test_evidence_of_other_weights_than_were_asked_for_passes_nothing(candidate: int, verdict: Verdict) -> None:
    """Routers were asked for a quarter; their counters say what they did."""
    windows = shared(Signal.ERROR_RATE, Share(0, 120), Share(0, candidate))
    found = judge((ERRORS,), {"a": windows}, 0.0, NOW, 1, weight=0.25)
    assert found.verdict is verdict
    if candidate == 12:
        assert found.message.startswith("the candidate got 9.1 % of 7920 requests where 25 %")


def test_another_mix_of_shapes_is_no_regression() -> None:
    """The candidate gets mostly long prompts; each shape is as fast as ever."""
    fast, slow = (
        slower(1.0),
        [
            Window(one.start, one.end, Seen(ttft=times(20, 3.0, at)), Seen(ttft=times(120, 3.0, 500 + at)))
            for at, one in enumerate(slower(1.0, 1))
        ],
    )
    mixed = [
        replace(
            one, base=Seen(ttft=_both(one.base, two.base)), candidate=Seen(ttft=_both(one.candidate, two.candidate))
        )
        for one, two in zip(fast, slow, strict=True)
    ]
    assert judge((P50,), {"short": fast, "long": slow}, 0.0, NOW, 1).verdict is not Verdict.FAIL
    assert judge((P50,), {"all": mixed}, 0.0, NOW, 1).verdict is Verdict.FAIL


def uneven(factor: float) -> list[Window]:
    """A busy half in which both versions are half again as slow and the candidate gets its fourth of the requests, and
    a quiet one in which it gets a tenth, as sessions make it.
    """
    return [
        Window(
            60.0 * at,
            60.0 * at + 60.0,
            Seen(ttft=times(120, 0.45 if busy else 0.3, at), shares={Signal.ERROR_RATE: Share(12 if busy else 0, 120)}),
            Seen(
                ttft=times(40 if busy else 13, factor * (0.45 if busy else 0.3), 1000 + at),
                shares={Signal.ERROR_RATE: Share(4 if busy else 0, 40 if busy else 13)},
            ),
        )
        for at, busy in ((at, at < MINUTES // 2) for at in range(MINUTES))
    ]


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, Outcome.NO_WORSE), (1.4, Outcome.WORSE)])
def test_more_requests_in_a_busy_stretch_are_no_regression(factor: float, outcome: Outcome) -> None:
    """Added up over time the candidate's median would be a fifth slower, and its errors two points more."""
    windows = uneven(factor)
    merged = [
        [one.ttft for one in side if one.ttft] for side in zip(*((w.base, w.candidate) for w in windows), strict=False)
    ]
    old, new = (_sum(side).quantile(0.5) for side in merged)
    assert old is not None
    assert new is not None
    assert new / old > 1.12 * factor
    assert judged(Gate(Signal.TTFT_P50, 10.0), windows).outcome is outcome
    errors = judged(Gate(Signal.ERROR_RATE, 5.0), windows)
    assert errors.outcome is Outcome.NO_WORSE
    assert errors.values[0] == pytest.approx(errors.values[1])


def test_load_that_both_versions_share_costs_no_evidence() -> None:
    """It swings from minute to minute, and both swing with it: their difference does not."""
    draw = random.Random(11)
    loads = [math.exp(draw.gauss(0.0, 0.3)) for _ in range(MINUTES)]
    windows = [
        Window(60.0 * at, 60.0 * at + 60.0, Seen(ttft=times(120, load, at)), Seen(ttft=times(40, load, 1000 + at)))
        for at, load in enumerate(loads)
    ]
    found = judged(P50, windows)
    assert found.outcome is Outcome.NO_WORSE
    assert found.effective[1] > 0.5 * found.samples[1]
    alone = [replace(one, base=Seen(ttft=times(120, 1.0, at))) for at, one in enumerate(windows)]
    assert judged(P50, alone).effective[1] < 0.5 * found.effective[1], "one that swings by itself knows less"


def _sum(sketches: list[Sketch]) -> Sketch:
    total = Sketch()
    for sketch in sketches:
        total.add(sketch.counts.items())
    return total


def _both(one: Seen, other: Seen) -> Sketch:
    assert one.ttft is not None
    assert other.ttft is not None
    return one.ttft.merged(other.ttft)


def test_exit_codes_are_those_of_the_contract() -> None:
    assert [one.exit_code for one in (Verdict.PASS, Verdict.FAIL, Verdict.NOT_KNOWN)] == [0, 1, 3]


@pytest.mark.parametrize(
    ("signal", "margin", "samples"),
    [
        (Signal.TTFT_P99, 2.0, 1),
        (Signal.ERROR_RATE, -1.0, 1),
        (Signal.ERROR_RATE, math.nan, 1),
        (Signal.GOODPUT, 1.0, 0),
    ],
)
def test_a_gate_that_cannot_be_held_is_refused_with_words(signal: Signal, margin: float, samples: int) -> None:
    with pytest.raises(ValueError, match="write"):
        Gate(signal, margin, samples)


def test_the_default_gates_look_at_latency_errors_goodput_throughput_and_the_cache() -> None:
    assert len({one.signal for one in DEFAULT_GATES}) == len(DEFAULT_GATES) == 8


BASE = Seen(ttft=times(20_000, 0.3, 1), shares={Signal.ERROR_RATE: Share(20, 20_000)})


def test_a_step_says_beforehand_how_long_it_needs_and_what_it_can_find() -> None:
    little = prospect(P50, BASE, Traffic(3.0, 0.05), 3600.0, ALPHA)
    more = prospect(P50, BASE, Traffic(3.0, 0.25), 3600.0, ALPHA)
    assert little.seconds is not None
    assert more.seconds is not None
    assert little.seconds > 3.0 * more.seconds
    assert little.detectable is not None
    assert more.detectable is not None
    assert little.detectable > more.detectable > P50.margin
    assert "needs" in little.message


def test_what_was_foretold_is_what_is_seen() -> None:
    """At 25 % of 2.67 requests/s, as in `slower`: a regression a little over the detectable one is found."""
    told = prospect(P50, BASE, Traffic(160 / 60, 0.25), NOW, ALPHA)
    assert told.seconds is not None
    assert told.detectable is not None
    assert judged(P50, slower(1.0 + 1.2 * told.detectable / 100.0)).outcome is Outcome.WORSE
    minutes = int(1.3 * told.seconds / 60.0)
    assert judged(P50, slower(1.0, minutes=minutes), 60.0 * minutes).outcome is Outcome.NO_WORSE


def test_a_step_that_can_never_know_says_so() -> None:
    told = prospect(Gate(Signal.TTFT_P99, 5.0), BASE, Traffic(0.01, 0.05), 3600.0, ALPHA)
    assert (told.seconds, told.detectable) == (None, None)
    assert "cannot be known" in told.message


def test_what_nothing_is_known_of_cannot_be_planned() -> None:
    with pytest.raises(ValueError, match="only gates on times and shares"):
        prospect(Gate(Signal.LENGTH_P50, 20.0), BASE, Traffic(3.0, 0.05), 3600.0, ALPHA)
    with pytest.raises(ValueError, match="nothing is known of TPOTP99"):
        prospect(Gate(Signal.TPOT_P99, 15.0), BASE, Traffic(3.0, 0.05), 3600.0, ALPHA)
