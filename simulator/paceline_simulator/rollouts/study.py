"""Many rollouts of one truth: how often they pass, fail, or never know, and when."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

import numpy as np

from paceline_bench.results import Row
from paceline_shadow_traffic.evidence import Signal
from paceline_shadow_traffic.verdict import ALPHA, Gate, Outcome, Verdict, judge

from .world import WINDOW, Truth, windows

STEPS = ((0.05, 60), (0.25, 60), (0.5, 60))
"""Weight of the candidate and minutes, of each step that is judged."""

GATES = (
    Gate(Signal.TTFT_P50, 10.0),
    Gate(Signal.TTFT_P99, 25.0, min_samples=500),
    Gate(Signal.TPOT_P99, 15.0, min_samples=500),
    Gate(Signal.ERROR_RATE, 1.0),
    Gate(Signal.GOODPUT, 3.0),
)

SCENARIOS: dict[str, Truth] = {
    "no change": Truth(),
    "no change, uneven load": Truth(swing=0.15, own_swing=0.05),
    "no change, thin": Truth(rate=2 / 60 / 0.05),
    "at the margin (TTFT +10 %)": Truth(ttft=1.10),
    "TTFT +20 %": Truth(ttft=1.20),
    "TTFT +40 %": Truth(ttft=1.40),
    "TTFT +40 %, uneven load": Truth(ttft=1.40, swing=0.15, own_swing=0.05),
    "slowest 5 % x 2 (P99 +12 %)": Truth(tail=2.0),
    "slowest 5 % x 4 (P99 +69 %)": Truth(tail=4.0),
    "errors 0.2 % to 3 %": Truth(errors=(0.002, 0.03)),
    "TTFT -20 %": Truth(ttft=0.80),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One rollout.

    Attributes:
        verdict: FAIL as soon as a look at a step says so; PASS where every step's last look did; else NOT_KNOWN.
        minutes: until it failed, or of the whole rollout.
        step: in which it failed, from 1; else the number of steps.
        gates: that were worse when it failed, or not known at the end of the last step.
    """

    verdict: Verdict
    minutes: float
    step: int
    gates: tuple[str, ...]


def run(truth: Truth, every: int, seed: int) -> Run:
    """One rollout that is looked at every so many minutes. A step that is not known at its end goes on to the next,
    as under `onNotKnown: Continue`, which gives false alarms the most chances.
    """
    draw = np.random.default_rng(seed)
    passed, gone = True, 0
    unknown: tuple[str, ...] = ()
    for number, (weight, minutes) in enumerate(STEPS, 1):
        seen = list(windows(truth, weight, minutes, draw))
        judged = None
        for now in range(every, minutes + 1, every):
            judged = judge(GATES, {"default": seen[:now]}, 0.0, now * WINDOW, len(STEPS))
            if judged.verdict is Verdict.FAIL:
                worse = tuple(one.gate.signal for _, one in judged.findings if one.outcome is Outcome.WORSE)
                return Run(Verdict.FAIL, gone + now, number, worse)
        assert judged is not None
        passed = passed and judged.verdict is Verdict.PASS
        unknown = tuple(one.gate.signal for _, one in judged.findings if one.outcome is Outcome.NOT_KNOWN)
        gone += minutes
    return Run(Verdict.PASS if passed else Verdict.NOT_KNOWN, gone, len(STEPS), unknown)


@dataclass(frozen=True, slots=True)
class Found:
    """All runs of one scenario."""

    name: str
    runs: tuple[Run, ...]

    def share(self, verdict: Verdict) -> float:
        """0 to 1."""
        return sum(one.verdict is verdict for one in self.runs) / len(self.runs)

    @property
    def minutes_to_fail(self) -> float | None:
        """Median of the runs that failed."""
        times = [one.minutes for one in self.runs if one.verdict is Verdict.FAIL]
        return statistics.median(times) if times else None

    @property
    def gates(self) -> str:
        """What failed them, or was not known, most often first."""
        counts = Counter(gate for one in self.runs if one.verdict is not Verdict.PASS for gate in one.gates)
        return ", ".join(f"{gate} {count}" for gate, count in counts.most_common(3))


def rows(found: Found, every: int) -> list[Row]:
    """For `results.json`."""
    params = {"runs": len(found.runs), "look_minutes": every, "alpha": ALPHA}
    shares = {"passed": Verdict.PASS, "failed": Verdict.FAIL, "not_known": Verdict.NOT_KNOWN}
    made = [
        Row(found.name, "paceline", metric, found.share(verdict), "share", params) for metric, verdict in shares.items()
    ]
    minutes = found.minutes_to_fail
    return made if minutes is None else [*made, Row(found.name, "paceline", "failed_after_p50", minutes, "min", params)]
