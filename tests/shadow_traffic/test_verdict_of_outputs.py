"""From answers to a verdict: noise of the base is not held against the candidate, and a wrong model is caught."""

from __future__ import annotations

import random

import pytest

from paceline_shadow_traffic.answers import Answer, Asked, Mode, ToolCall
from paceline_shadow_traffic.compare import compare
from paceline_shadow_traffic.counting import tally
from paceline_shadow_traffic.evidence import Signal, Window
from paceline_shadow_traffic.outputs import seen
from paceline_shadow_traffic.verdict import Gate, Outcome, judge_gate

PAIRS, MINUTES = 20, 45
ASKED = Asked(Mode.REPLAYED, wants_json=True, tools={"look": {}})
GATES = {
    signal: Gate(signal, margin)
    for signal, margin in (
        (Signal.OUTPUT_DIFFERENCE, 5.0),
        (Signal.JSON_INVALID, 3.0),
        (Signal.REFUSALS, 3.0),
        (Signal.LENGTH_P50, 20.0),
    )
}


def answer(draw: random.Random, number: int, noise: float, broken: float = 0.0, length: float = 1.0) -> Answer:
    """The greedy answer to a request; now and then a late token is another one, as batches make it."""
    asked = random.Random(number)
    tokens = [asked.randrange(1000) for _ in range(int(length * 20 * (1 + asked.expovariate(0.5))))]
    if draw.random() < noise:
        tokens[-1] = -1
    text = "{" if draw.random() < broken else "{}"
    return Answer(text, tuple(tokens), "stop")


def windows(noise: float, candidate_noise: float, broken: float = 0.0, length: float = 1.0) -> list[Window]:
    draw = random.Random(4)
    made = []
    for minute in range(MINUTES):
        requests = range(minute * PAIRS, (minute + 1) * PAIRS)
        base = [answer(draw, number, noise) for number in requests]
        again = [answer(draw, number, noise) for number in requests]
        new = [answer(draw, number, candidate_noise, broken, length) for number in requests]
        sides = seen(
            tally(compare(ASKED, one, other) for one, other in zip(base, new, strict=True)),
            tally(compare(ASKED, one, other) for one, other in zip(base, again, strict=True)),
        )
        made.append(Window(60.0 * minute, 60.0 * minute + 60.0, *sides))
    return made


def outcomes(made: list[Window]) -> dict[Signal, Outcome]:
    return {
        signal: judge_gate(gate, made, 0.0, 60.0 * MINUTES, 0.05 / len(GATES)).outcome for signal, gate in GATES.items()
    }


def test_a_candidate_as_noisy_as_the_base_is_no_worse() -> None:
    """C073: one version against itself, with answers that differ now and then."""
    assert set(outcomes(windows(0.02, 0.02)).values()) == {Outcome.NO_WORSE}


@pytest.mark.parametrize(
    ("noise", "candidate_noise", "broken", "length", "signal"),
    [
        (0.02, 0.3, 0.0, 1.0, Signal.OUTPUT_DIFFERENCE),
        (0.02, 0.02, 0.15, 1.0, Signal.JSON_INVALID),
        (0.0, 0.0, 0.0, 2.0, Signal.LENGTH_P50),
        (0.0, 0.0, 0.0, 0.5, Signal.LENGTH_P50),
    ],
    ids=["other tokens", "broken JSON", "twice as long", "half as long"],
)
def test_answers_that_changed_are_caught_by_their_gate(
    noise: float, candidate_noise: float, broken: float, length: float, signal: Signal
) -> None:
    assert outcomes(windows(noise, candidate_noise, broken, length))[signal] is Outcome.WORSE


def test_what_no_request_asked_for_is_not_known() -> None:
    plain = Asked(Mode.REPLAYED)
    call = Answer("", (), "tool_calls", tool_calls=(ToolCall("look", "{}"),))
    same = tally(compare(plain, Answer("x", (1,), "stop"), Answer("x", (1,), "stop")) for _ in range(9))
    made = [Window(60.0 * at, 60.0 * at + 60.0, *seen(same, same)) for at in range(MINUTES)]
    found = judge_gate(Gate(Signal.TOOL_CALLS_INVALID, 3.0), made, 0.0, 60.0 * MINUTES, 0.01)
    assert found.outcome is Outcome.NOT_KNOWN
    unknown_tool = tally([compare(plain, call, call)])
    assert unknown_tool.sides.base.tool_calls_invalid.hits == 1.0
