"""Knobs that follow load: which one moves, when it is taken back, and what never happens."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_autoscaler.knobs import Decision, Observed, Range, Samples, Settings, State
from paceline_autoscaler.samples import Absent, NotANumber, Present, Sample, Stale, exactly
from paceline_autoscaler.tuning import resumed, tune, within
from paceline_crds.tuning import Knob

SEQS, BUDGET, CHUNK = Knob.MAX_NUM_SEQS, Knob.MAX_BATCHED_TOKENS, Knob.PREFILL_CHUNK_TOKENS
RANGES = {SEQS: Range(8, 64, 64), BUDGET: Range(256, 2048, 2048), CHUNK: Range(64, 512, 512)}
LIMIT = 0.06
SETTINGS = Settings()
NAMES = ("tpot", "requests", "prefill", "decode", "waiting", "running", "preempted", "ttft")
USUAL = {
    "tpot": 0.055,
    "requests": 4.0,
    "prefill": 2000.0,
    "decode": 600.0,
    "waiting": 0.0,
    "running": 30.0,
    "preempted": 0.0,
    "ttft": 0.4,
}


def samples(**values: float | Sample) -> Samples:
    found = {**USUAL, **values}
    return Samples(**{name: exactly(v, 0.0) if isinstance(v := found[name], float) else v for name in NAMES})


def observed(
    ranges: dict[Knob, Range] | None = None, replicas: int = 1, first_limit: float | None = None, **values: Any
) -> Observed:
    allowed = RANGES if ranges is None else ranges
    return Observed(samples(**values), allowed, LIMIT, replicas, first_limit=first_limit)


SLOW, WAITING = {"tpot": 0.09}, {"tpot": 0.03, "waiting": 9.0, "running": 64.0}


# Which knob moves.


def test_slow_answers_make_prompts_pieces_smaller_first_with_the_numbers() -> None:
    made = tune(observed(**SLOW), State(), 0.0)
    assert (made.reason, made.knobs) == ("Tightened", {SEQS: 64, BUDGET: 2048, CHUNK: 352})
    assert made.message == "prefillChunkTokens 512 → 352: TPOT is 90 ms, and 60 ms are promised"
    assert (made.inputs["tpot"], made.inputs["limit"]) == (0.09, LIMIT)


def test_where_no_prompts_are_computed_fewer_run_at_a_time_from_where_they_are() -> None:
    made = tune(observed(**SLOW, prefill=10.0, running=80.0, replicas=2), State(), 0.0)
    assert made.knobs == {SEQS: 28, BUDGET: 2048, CHUNK: 512}, "places that nobody takes are no step"


def test_a_queue_while_there_is_time_to_spare_lets_more_run() -> None:
    state = State({SEQS: 32, BUDGET: 1024, CHUNK: 256})
    made = tune(observed(tpot=0.03, waiting=9.0, running=32.0), state, 0.0)
    assert (made.reason, made.knobs) == ("Loosened", {SEQS: 42, BUDGET: 1024, CHUNK: 256})
    roomy = tune(observed(tpot=0.03, waiting=9.0, running=10.0), state, 0.0)
    assert roomy.knobs == {SEQS: 32, BUDGET: 1344, CHUNK: 256}, "places are free: prompts are what waits"
    thrashing = tune(observed(tpot=0.03, waiting=9.0, running=32.0, preempted=0.5), state, 0.0)
    assert thrashing.knobs[SEQS] == 32, "the cache has no room for more"


def test_between_the_two_nothing_moves() -> None:
    for given_values in ({"tpot": 0.055, "waiting": 1.0}, {"tpot": 0.03}, {"tpot": 0.06}):
        made = tune(observed(**given_values), State({SEQS: 32, BUDGET: 1024, CHUNK: 256}), 0.0)
        assert (made.reason, made.knobs) == ("Steady", {SEQS: 32, BUDGET: 1024, CHUNK: 256})


def test_at_the_ends_of_the_ranges_it_says_that_no_step_is_left() -> None:
    lowest = State({SEQS: 8, BUDGET: 256, CHUNK: 64})
    assert tune(observed(**SLOW), lowest, 0.0).reason == "AtMin"
    assert tune(observed(**WAITING), State(), 0.0).reason == "AtMax"


def test_after_a_calm_time_a_knob_goes_back_to_where_it_was_started() -> None:
    state, now = State({SEQS: 64, BUDGET: 2048, CHUNK: 128}), 0.0
    idle = observed(tpot=NotANumber("NaN"), running=0.0, requests=0.0, prefill=0.0, decode=0.0)
    found = []
    for now in range(0, 6000, 10):
        made = tune(idle, state, float(now))
        if made.reason == "Eased":
            found.append((now, made.knobs[CHUNK]))
        state = made.state
    assert found[0] == (600, 176)
    assert found[-1][1] == 512


# The price of a tight knob.


@pytest.mark.parametrize("tpot", [0.055, 0.09])
def test_nothing_is_tightened_while_requests_wait_and_it_says_what_would_help(tpot: float) -> None:
    made = tune(observed(tpot=tpot, waiting=50.0), State(), 0.0)
    assert (made.reason, made.knobs) == ("Overloaded", {SEQS: 64, BUDGET: 2048, CHUNK: 512})
    assert "more replicas are needed" in made.message


def test_a_tighter_knob_behind_which_requests_begin_to_wait_is_taken_back_at_once() -> None:
    first = tune(observed(**SLOW), State(), 0.0)
    soon = tune(observed(**{**SLOW, "waiting": 9.0}), first.state, 10.0)
    assert (soon.reason, soon.knobs[CHUNK]) == ("TakenBack", 512)
    assert soon.message == "prefillChunkTokens 352 goes back to 512: with it 9 requests wait"


def test_requests_that_wait_behind_a_tight_knob_are_let_in_and_it_is_not_tightened_again_soon() -> None:
    tight = State({SEQS: 16, BUDGET: 2048, CHUNK: 512}, tightened={SEQS: -1000.0})
    queue = {"tpot": 0.055, "waiting": 40.0, "running": 16.0, "prefill": 10.0}
    made = tune(observed(**queue), tight, 0.0)
    assert (made.reason, made.knobs) == ("Loosened", {SEQS: 21, BUDGET: 2048, CHUNK: 512})
    slow = {"tpot": 0.09, "running": 21.0, "prefill": 10.0}
    assert tune(observed(**slow), made.state, SETTINGS.settle).reason == "AtMin"
    assert tune(observed(**slow), made.state, SETTINGS.again_after).knobs[SEQS] < 21


def test_how_long_requests_may_wait_is_what_is_promised_for_the_first_token_where_something_is() -> None:
    in_time = {"ttft": 1.5, "waiting": 7.0, "first_limit": 2.0}
    assert tune(observed(**SLOW, **in_time), State(), 0.0).reason == "Tightened"
    # Four arrive in a second: behind thirty the next one waits for more than two seconds, whatever those before did.
    assert tune(observed(**SLOW, **{**in_time, "waiting": 30.0}), State(), 0.0).reason == "Overloaded"
    late = {**in_time, "ttft": 2.5, "waiting": 0.0}
    made = tune(observed(**SLOW, **late), State(), 0.0)
    assert made.reason == "Overloaded"
    assert "TTFT is 2.5 s, and 2 s are promised, and TPOT is 90 ms of 60 ms" in made.message
    assert tune(observed(tpot=0.03, running=30.0, **late), State({CHUNK: 256}), 0.0).reason == "Loosened"


@pytest.mark.parametrize("tpot", [0.03, 0.055, 0.09, NotANumber("7 requests ended")], ids=str)
def test_who_waits_behind_a_knob_is_let_in_whatever_tpot_is_and_whoever_made_it_low(tpot: float | Sample) -> None:
    """By a schedule's window, an operator before, for another configuration: no memory says who tightened it."""
    queue = {"tpot": tpot, "waiting": 500.0, "running": 16.0, "prefill": 10.0}
    for state in (State({SEQS: 16}), State({SEQS: 16}, tightened={SEQS: -10.0})):
        made = tune(observed(**queue), state, 0.0)
        assert (made.reason, made.knobs[SEQS]) == ("Loosened", 21)


def test_a_queue_is_seen_and_a_step_taken_back_while_too_few_requests_end() -> None:
    few = {"tpot": NotANumber("7 requests ended"), "running": 16.0, "prefill": 10.0}
    first = tune(observed(**SLOW, running=30.0, prefill=10.0), State(), 0.0)
    assert (first.reason, first.knobs[SEQS]) == ("Tightened", 37), "fifty-four had places over the minute"
    assert tune(observed(**few), first.state, 10.0).reason == "Settling"
    assert tune(observed(**few, waiting=40.0), first.state, 10.0).reason == "TakenBack"


def test_knobs_come_back_where_one_or_two_requests_run_at_a_time() -> None:
    state = State({SEQS: 8})
    for now in range(0, 1300, 10):
        made = tune(observed(tpot=NotANumber("5 requests ended"), running=1.0, prefill=10.0), state, float(now))
        state = made.state
    assert made.knobs[SEQS] > 8


def test_nothing_is_tightened_for_a_rush_that_is_over() -> None:
    assert tune(observed(**SLOW, running=0.0), State(), 0.0).reason == "Steady"
    first = tune(observed(**SLOW), State(), 0.0)
    gone = tune(observed(tpot=0.02, requests=0.5, prefill=50.0, running=2.0), first.state, SETTINGS.settle)
    assert (gone.reason, gone.knobs[CHUNK]) == ("TakenBack", 512)
    assert gone.message.endswith("the load that it was for is gone")


def test_a_step_that_reaches_the_promise_stays_however_small_it_was() -> None:
    first = tune(observed(tpot=0.061), State(), 0.0)
    assert tune(observed(tpot=0.059), first.state, SETTINGS.settle).reason == "Steady"


def test_a_step_is_not_judged_by_first_tokens_of_before_it_and_is_by_those_after() -> None:
    late = {**SLOW, "ttft": 2.1, "first_limit": 2.0}
    first = tune(observed(**{**late, "ttft": 1.9}), State(), 0.0)
    assert first.reason == "Tightened"
    assert tune(observed(**late), first.state, 10.0).reason == "Settling"
    after = tune(observed(**late), first.state, SETTINGS.settle)
    assert (after.reason, after.knobs[CHUNK]) == ("TakenBack", 512)


def test_a_step_before_a_rollout_is_judged_after_it() -> None:
    first = tune(observed(**SLOW), State(), 0.0)
    rolling = tune(replace(observed(**SLOW), rolling=True), first.state, 50.0)
    assert tune(observed(**SLOW), rolling.state, 500.0).reason == "TakenBack"


def test_where_prompts_are_what_makes_steps_long_nobody_is_kept_waiting_for_a_place() -> None:
    """Long documents beside a chat: to let fewer run made answers no faster, and the queue hundreds long."""
    barred = {(CHUNK, True): 900.0, (BUDGET, True): 900.0}
    documents = {"tpot": 0.09, "prefill": 12_000.0, "decode": 900.0}
    assert tune(observed(**documents), State(barred=barred), 0.0).reason == "AtMin"
    answers = {**documents, "prefill": 900.0}
    assert tune(observed(**answers), State(barred=barred), 0.0).knobs[SEQS] < 64


# What is not known.

FAULTS = (Absent("gone"), Stale(0.2, 60.0), NotANumber("NaN"), Present(1.0, 0.0, 1.0, 9.0, missing=1))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "ttft"])
@pytest.mark.parametrize("values", [SLOW, {**WAITING, "waiting": 1.0}], ids=["slow", "waiting"])
def test_what_is_not_known_changes_nothing_and_is_named(name: str, fault: Sample, values: dict[str, float]) -> None:
    state = State({SEQS: 32, BUDGET: 1024, CHUNK: 256})
    made = tune(observed(**{**values, name: fault}), state, 0.0)
    assert made.knobs == state.values
    assert made.reason in ("MetricsUnavailable", "NotEnoughRequests")
    assert name in made.message


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_first_token_that_is_promised_has_to_be_known_and_one_that_is_not_need_not(fault: Sample) -> None:
    """No number is another matter: nobody was given a first token, so that the queue says how long they wait."""
    promised = tune(observed(**SLOW, ttft=fault, first_limit=2.0), State(), 0.0)
    assert promised.reason == ("Tightened" if isinstance(fault, NotANumber) else "MetricsUnavailable")
    queue = tune(observed(**SLOW, ttft=fault, waiting=9.0, first_limit=2.0), State(), 0.0)
    assert queue.reason == ("Overloaded" if isinstance(fault, NotANumber) else "MetricsUnavailable")
    assert tune(observed(**SLOW, ttft=fault), State(), 0.0).reason == "Tightened"


def test_while_another_revision_comes_or_nothing_is_promised_nothing_follows_load() -> None:
    state = State({SEQS: 32, BUDGET: 1024, CHUNK: 256})
    rolling = tune(replace(observed(**SLOW), rolling=True), state, 0.0)
    assert (rolling.reason, rolling.knobs) == ("RollingOut", state.values)
    aimless = tune(replace(observed(**SLOW), limit=None), state, 0.0)
    assert (aimless.reason, aimless.knobs) == ("NoObjective", {SEQS: 64, BUDGET: 2048, CHUNK: 512})
    assert "slo.tpot.p90" in aimless.message


# What a change did.


def changed(before: dict[str, Any], after: dict[str, Any], state: State | None = None) -> tuple[Decision, Decision]:
    first = tune(observed(**before), state or State(), 0.0)
    return first, tune(observed(**after), first.state, SETTINGS.settle)


def test_the_next_change_waits_until_this_one_is_measured() -> None:
    first = tune(observed(**SLOW), State(), 0.0)
    soon = tune(observed(**SLOW), first.state, SETTINGS.settle - 1.0)
    assert (soon.reason, soon.knobs) == ("Settling", first.knobs)


def test_a_step_that_did_not_help_is_taken_back_with_the_numbers_and_the_next_knob_is_tried() -> None:
    _, second = changed(SLOW, {"tpot": 0.091})
    assert (second.reason, second.knobs[CHUNK]) == ("TakenBack", 512)
    assert second.message == "prefillChunkTokens 352 goes back to 512: TPOT was 90 ms before and is 91 ms with it"
    third = tune(observed(**SLOW), second.state, 2 * SETTINGS.settle)
    assert (third.reason, third.knobs) == ("Tightened", {SEQS: 64, BUDGET: 1424, CHUNK: 512})


def test_a_step_that_helped_is_kept_and_goes_on_where_that_was_not_enough() -> None:
    first, second = changed(SLOW, {"tpot": 0.07})
    assert (second.reason, second.knobs[CHUNK]) == ("Tightened", 240)
    first, enough = changed(SLOW, {"tpot": 0.058})
    assert (enough.reason, enough.knobs) == ("Steady", first.knobs)


def test_letting_more_run_is_taken_back_where_answers_then_come_too_late_or_less_is_done() -> None:
    state = State({SEQS: 32, BUDGET: 2048, CHUNK: 512})
    values = {**WAITING, "running": 32.0}
    for after, words in (
        ({"tpot": 0.07, "waiting": 1.0}, "TPOT went from 30 ms to 70 ms, and 60 ms are promised"),
        ({**values, "decode": 100.0, "prefill": 1900.0}, "2600 tokens per second became 2000"),
    ):
        first, second = changed(values, after, state)
        assert first.knobs[SEQS] == 42
        assert (second.reason, second.knobs[SEQS]) == ("TakenBack", 32)
        assert words in second.message


def test_under_another_load_than_before_nobody_can_say_what_a_step_did() -> None:
    _, second = changed(SLOW, {"tpot": 0.0595, "requests": 9.0})
    assert second.reason == "Steady"
    _, more = changed({**SLOW, "tpot": 0.07}, {"tpot": 0.09, "requests": 9.0})
    assert more.reason == "Tightened", "it may be slower for the load, and goes on"


# Limits.


def test_other_limits_hold_at_once_whatever_is_known() -> None:
    narrow = {**RANGES, SEQS: Range(8, 16, 64)}
    unknown = {"tpot": Absent("gone")}
    made = tune(observed(narrow, **unknown), State(), 0.0)
    assert (made.reason, made.knobs[SEQS]) == ("WithinBounds", 16)
    assert tune(observed(narrow, **unknown), made.state, 1.0).reason == "MetricsUnavailable"


def test_values_fit_together_as_a_scheduler_needs_them() -> None:
    assert within({BUDGET: Range(64, 256, 2048), CHUNK: Range(64, 512, 512)}, {BUDGET: 64, CHUNK: 512}) == {
        BUDGET: 256,
        CHUNK: 256,
    }
    with pytest.raises(ValueError, match="the 8 that replicas start with"):
        Range(4, 16, 8)


def test_who_comes_after_another_goes_on_from_what_it_finds_and_eases_nothing_soon() -> None:
    found = resumed({CHUNK: 128}, RANGES, 1000.0)
    waiting = {**WAITING, "running": 10.0}
    calm = {"tpot": 0.03, "waiting": 0.0, "running": 1.0}
    state = found
    for now in range(0, int(SETTINGS.again_after), 10):
        soon = tune(observed(**calm), state, 1000.0 + now)
        assert soon.knobs[CHUNK] == 128
        state = soon.state
    assert tune(observed(**calm), state, 1000.0 + SETTINGS.again_after).reason == "Eased"
    # Whom it keeps waiting is another matter.
    queue = tune(observed(**waiting), found, 1000.0 + SETTINGS.settle)
    assert (queue.reason, queue.knobs[CHUNK]) == ("Loosened", 176)


# Whatever comes.


def a_sample(low: float, high: float) -> st.SearchStrategy[Sample]:
    known = st.floats(low, high).map(lambda value: exactly(value, 0.0))
    return st.one_of(known, known, known, known, known, st.sampled_from(FAULTS))


SAMPLES = st.builds(
    Samples,
    tpot=a_sample(0.001, 0.2),
    requests=a_sample(0.0, 20.0),
    prefill=a_sample(0.0, 5000.0),
    decode=a_sample(0.0, 2000.0),
    waiting=a_sample(0.0, 50.0),
    running=a_sample(0.0, 200.0),
    preempted=a_sample(0.0, 1.0),
    ttft=a_sample(0.0, 5.0),
)


@st.composite
def ranges(draw: Callable[..., Any]) -> dict[Knob, Range]:
    found = {}
    for knob, top in ((SEQS, 64), (CHUNK, 512), (BUDGET, 2048)):
        if draw(st.booleans()):
            least = draw(st.integers(1, top))
            found[knob] = Range(least, draw(st.integers(least, top)), top)
    if BUDGET in found:
        # What the shell sees to: no range is wholly above what the budget may become.
        most = max([found[BUDGET].most, *(one.least for one in found.values())])
        found[BUDGET] = replace(found[BUDGET], most=most)
    return found


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(SAMPLES, st.floats(1.0, 300.0), st.booleans()), min_size=1, max_size=60),
    ranges(),
    st.integers(0, 3),
    st.none() | st.floats(0.1, 3.0),
)
def test_no_value_ever_leaves_its_range_nor_moves_unasked_nor_to_and_fro(
    looks: list[tuple[Samples, float, bool]], allowed: dict[Knob, Range], replicas: int, first: float | None
) -> None:
    now, state = 0.0, State()
    moves: dict[Knob, list[tuple[float, int]]] = {knob: [] for knob in allowed}
    last = float("-inf")
    for number, (said, pause, rolling) in enumerate(looks):
        now += pause
        before = within(allowed, state.values)
        made = tune(Observed(said, allowed, LIMIT, replicas, rolling, first_limit=first), state, now)
        assert made.knobs.keys() == allowed.keys()
        for knob, value in made.knobs.items():
            assert allowed[knob].least <= value <= allowed[knob].most
            assert value <= made.knobs.get(BUDGET, value), "a step holds a piece, and a token of each request"
        different = [knob for knob in allowed if made.knobs[knob] != before[knob]]
        assert len(different) <= 1
        if different:
            known = [one for name, one in said.all() if name not in ("tpot", "ttft")]
            assert all(isinstance(one, Present) and one.complete for one in known)
            assert not rolling
            assert now - last >= SETTINGS.settle or made.reason == "TakenBack", "a queue is not waited for"
            last = now
            moves[different[0]].append((now, made.knobs[different[0]] - before[different[0]]))
        state = made.state
        assert number or made.reason != "Settling"
    for steps in moves.values():
        turns = [at for (_, one), (at, other) in itertools.pairwise(steps) if one * other < 0]
        for begin in turns:
            assert sum(begin <= at < begin + SETTINGS.again_after for at in turns) <= 2


# In a loop with something like an engine.


@dataclass
class Plant:
    """An engine whose steps take a floor, and so much for each request and each token of prompts' pieces in it: smaller
    pieces make shorter steps, and compute fewer of the tokens that come.
    """

    offered: float = 1.0
    prompts: float = 1500.0
    floor: float = 0.010
    per_seq: float = 0.0005
    per_token: float = 0.00015

    def samples(self, knobs: dict[Knob, int]) -> Samples:
        running = min(knobs[SEQS], 64.0 * self.offered)
        piece = min(knobs[CHUNK], knobs[BUDGET] - running)
        step = self.floor + self.per_seq * running + self.per_token * piece
        done = min(self.offered * self.prompts, piece / step)
        return samples(
            tpot=step,
            requests=4.0 * self.offered,
            prefill=done,
            decode=running / step,
            waiting=20.0 * (self.offered - done / self.prompts),
            running=running,
        )


def test_in_a_loop_it_comes_to_rest_within_the_promise_and_follows_the_load_back() -> None:
    plant, state, now, reasons = Plant(), State(), 0.0, []
    for now in range(0, 7200, 10):
        made = tune(Observed(plant.samples(dict(within(RANGES, state.values))), RANGES, LIMIT, 1), state, float(now))
        reasons.append(made.reason)
        state = made.state
    rest = plant.samples(dict(state.values)).tpot
    assert isinstance(rest, Present)
    assert rest.value <= LIMIT
    assert set(reasons[-300:]) <= {"Steady", "Settling"}, "it does not move for ever"
    assert state.values[CHUNK] < 512
    plant.offered = 0.1
    for now in range(7200, 16000, 10):
        made = tune(Observed(plant.samples(dict(state.values)), RANGES, LIMIT, 1), state, float(now))
        state = made.state
    calm = plant.samples(dict(state.values)).tpot
    assert isinstance(calm, Present)
    assert calm.value <= LIMIT


def test_in_a_loop_that_smaller_pieces_cannot_carry_it_stays_with_larger_ones() -> None:
    plant, state, reasons = Plant(prompts=3500.0), State(), []
    for now in range(0, 7200, 10):
        made = tune(Observed(plant.samples(dict(within(RANGES, state.values))), RANGES, LIMIT, 1), state, float(now))
        reasons.append(made.reason)
        state = made.state
    at_rest, tightest = (plant.samples({**state.values, CHUNK: chunk}).waiting for chunk in (state.values[CHUNK], 64))
    assert isinstance(at_rest, Present)
    assert isinstance(tightest, Present)
    assert at_rest.value <= SETTINGS.waiting < tightest.value
    assert "TakenBack" in reasons
