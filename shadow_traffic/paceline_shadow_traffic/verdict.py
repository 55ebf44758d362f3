"""Is the candidate worse than the base: by gate and in all, with numbers, interval and words. Pure.

*No worse* means: the whole interval of the regression lies within the margin. *Worse*: it lies beyond the margin.
Anything else is *not known*, as is too little traffic, a gap, or data that is old.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline_crds.sketch import Sketch

from .evidence import EITHER_WAY, MORE_IS_BETTER, QUANTILES, Seen, Signal, Window
from .sequential import (
    Interval,
    Stratum,
    Unknown,
    dispersion,
    interval,
    joint_interval,
    matched,
    mean_of,
    paired_dispersion,
    quantile_of,
)
from .share import NOTHING, Share
from .spread import RESOLUTION_PERCENT, Spread, below

ALPHA = 0.05
"""False alarms that a whole rollout may have: shared by its gates, pools, shapes and steps (Bonferroni)."""

FEWEST_WINDOWS = 10
WEIGHT_TOLERANCE = 0.02
"""How far the candidate's share of requests may be from what routers were asked for: sessions stay where they are."""

MISSING_SHARE = 0.1
"""Windows that may lack a signal. A version's worst minutes are those in which it is not heard of."""


class Outcome(enum.StrEnum):
    """What a gate says of the candidate."""

    BETTER = "Better"
    NO_WORSE = "NoWorse"
    WORSE = "Worse"
    NOT_KNOWN = "NotKnown"


class Verdict(enum.StrEnum):
    """What all gates say together."""

    PASS = "Pass"
    FAIL = "Fail"
    NOT_KNOWN = "NotKnown"

    @property
    def exit_code(self) -> int:
        """Of `paceline verdict`: 0 good, 1 the answer is no, 3 not known."""
        return {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.NOT_KNOWN: 3}[self]


@dataclass(frozen=True, slots=True)
class Gate:
    """What may not get worse.

    Attributes:
        signal: what is looked at.
        margin: how much worse is still no worse: percent of the base's value for times, lengths and throughput,
            points (of 100) for shares.
        min_samples: requests (pairs, tokens, or windows for throughput) of each version before anything is said.
        settle: seconds after the step began that are left out: warm-up, or until caches are filled.
        stale_after: seconds after which the newest window is too old to say anything.
        score: name of a user's own comparison, for that signal.
    """

    signal: Signal
    margin: float
    min_samples: int = 200
    settle: float = 60.0
    stale_after: float = 180.0
    score: str = ""

    def __post_init__(self) -> None:
        if not 0.0 <= self.margin < 1000.0:
            raise ValueError(f"the margin of {self.signal} is {self.margin}; write percent or points from 0 up")
        if self.signal in QUANTILES and self.margin < RESOLUTION_PERCENT:
            raise ValueError(
                f"{self.signal} is known to {RESOLUTION_PERCENT:g} %; write a margin of {RESOLUTION_PERCENT:g} or more"
            )
        if self.min_samples < 1:
            raise ValueError(f"min_samples of {self.signal} is {self.min_samples}; write 1 or more")

    @property
    def name(self) -> str:
        """Of the signal, and of the score."""
        return f"{self.signal}/{self.score}" if self.score else self.signal.value

    @property
    def unit(self) -> str:
        """`%` or `points`."""
        return "%" if self.signal in QUANTILES or self.signal is Signal.THROUGHPUT else "points"


DEFAULT_GATES = (
    Gate(Signal.TTFT_P50, 10.0),
    Gate(Signal.TTFT_P99, 25.0, min_samples=500),
    Gate(Signal.TPOT_P99, 15.0, min_samples=500),
    Gate(Signal.ERROR_RATE, 1.0),
    Gate(Signal.CANCELLED, 3.0),
    Gate(Signal.GOODPUT, 3.0),
    Gate(Signal.THROUGHPUT, 15.0, min_samples=20),
    Gate(Signal.HIT_RATE, 10.0, settle=600.0),
)


class Said(Protocol):
    """What anything that decides has to say of one place."""

    @property
    def name(self) -> str:
        """Of the gate."""
        ...

    @property
    def outcome(self) -> Outcome:
        """What it says."""
        ...

    @property
    def reason(self) -> str:
        """Why, one word of CamelCase."""
        ...

    @property
    def message(self) -> str:
        """Why, a sentence."""
        ...


@dataclass(frozen=True, slots=True)
class Remark:
    """What something other than the statistics of two versions says, see `Said`."""

    name: str
    outcome: Outcome
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What one gate says, and with which numbers.

    Attributes:
        samples: of base and candidate.
        values: of base and candidate: seconds, tokens per second or shares; None where not known.
        regression: interval of how much worse the candidate is, in the gate's unit (negative: better); None where
            there is none.
        effective: what the samples are worth, base and candidate, since requests of one minute are alike.
        reason: one word of CamelCase.
        message: a sentence.
    """

    gate: Gate
    outcome: Outcome
    reason: str
    message: str
    samples: tuple[float, float] = (0.0, 0.0)
    values: tuple[float | None, float | None] = (None, None)
    regression: Interval | None = None
    effective: tuple[float, float] = (0.0, 0.0)

    @property
    def name(self) -> str:
        """Of the gate."""
        return self.gate.name


@dataclass(frozen=True, slots=True)
class Question:
    """Gates, and the windows by place in which their signals are measured. Gates without any place are not known."""

    gates: Sequence[Gate]
    evidence: Mapping[str, Sequence[Window]]


@dataclass(frozen=True, slots=True)
class Judged:
    """What all gates say.

    Attributes:
        findings: by place (pool and shape) and gate.
        message: a sentence that names what decided.
    """

    verdict: Verdict
    message: str
    findings: tuple[tuple[str, Finding], ...]


def judge(
    gates: Sequence[Gate],
    evidence: Mapping[str, Sequence[Window]],
    since: float,
    now: float,
    steps: int,
    alpha: float = ALPHA,
    weight: float | None = None,
    beside: Sequence[Question] = (),
    remarks: Sequence[tuple[str, Said]] = (),
) -> Judged:
    """The verdict of one step.

    Args:
        gates: at least one; none is no proof of anything.
        evidence: windows by place (pool and shape), in order.
        since: when the step began and the candidate was ready, Unix seconds.
        now: Unix seconds.
        steps: of the whole rollout that are judged; each gets its part of `alpha`.
        alpha: probability that a rollout of a candidate that is no worse anywhere is ever called worse.
        weight: the candidate's share of requests (0 to 1) that routers were asked for; where they did another thing,
            nothing passes. None where it gets copies only.
        beside: what was measured elsewhere; it shares `alpha` with the rest.
        remarks: what others say, by place; they count like gates, and are in no findings.
    """
    questions = (Question(gates, evidence), *beside)
    part = alpha / max(1, sum(len(one.gates) * len(one.evidence) for one in questions) * steps)
    findings = tuple(
        (place, judge_gate(gate, windows, since, now, part))
        for one in questions
        for place, windows in one.evidence.items()
        for gate in one.gates
    )
    verdict, message = decided((*findings, *remarks))
    lacking = [gate.name for one in questions if not one.evidence for gate in one.gates]
    if verdict is Verdict.PASS and lacking:
        verdict, message = Verdict.NOT_KNOWN, f"there is no data of {', '.join(lacking)}"
    judged = Judged(verdict, message, findings)
    if weight is not None and judged.verdict is not Verdict.FAIL and (words := _not_followed(evidence, weight, since)):
        return Judged(Verdict.NOT_KNOWN, words, findings)
    return judged


def _not_followed(evidence: Mapping[str, Sequence[Window]], weight: float, since: float) -> str | None:
    """What routers did instead of sending `weight` to the candidate, by their own counters; None where they did."""
    counts = []
    for windows in evidence.values():
        for one in windows:
            if one.start >= since and Signal.ERROR_RATE in one.base.shares:
                base, candidate = (side.shares.get(Signal.ERROR_RATE, NOTHING).of for side in (one.base, one.candidate))
                counts.append((candidate, base + candidate))
    got, of = sum(hits for hits, _ in counts), sum(every for _, every in counts)
    if not of:
        return "it is not known how many requests each version got"
    worth = of / dispersion(counts)
    span = interval(mean_of(got / of * worth, worth), ALPHA)
    if span.low <= weight + WEIGHT_TOLERANCE and span.high >= weight - WEIGHT_TOLERANCE:
        return None
    return f"the candidate got {100 * got / of:.1f} % of {of:.0f} requests where {100 * weight:g} % were asked for"


def decided(findings: Sequence[tuple[str, Said]]) -> tuple[Verdict, str]:
    """What findings by place say together, and a sentence that names what decided."""
    worse = [(place, one) for place, one in findings if one.outcome is Outcome.WORSE]
    if worse:
        words = "; ".join(f"{place}: {one.message}" for place, one in worse)
        return Verdict.FAIL, words
    unknown = [(place, one) for place, one in findings if one.outcome is Outcome.NOT_KNOWN]
    if unknown or not findings:
        words = "; ".join(f"{place}: {one.message}" for place, one in unknown) or "nothing was looked at"
        return Verdict.NOT_KNOWN, words
    return Verdict.PASS, f"no worse by {len(findings)} gates"


def judge_gate(gate: Gate, windows: Sequence[Window], since: float, now: float, alpha: float) -> Finding:
    """What one gate says of one place's windows.

    Args:
        since, now: as in `judge`.
        alpha: probability that it ever says worse of a candidate that is within the margin.
    """

    def unknown(reason: str, message: str, samples: tuple[float, float] = (0.0, 0.0)) -> Finding:
        return Finding(gate, Outcome.NOT_KNOWN, reason, f"{gate.name} is not known: {message}", samples)

    settled = [one for one in windows if one.start >= since + gate.settle]
    if not settled:
        left = since + gate.settle - now
        return unknown("Settling", f"{left:.0f} s until it counts") if left > 0 else unknown("NoData", "no data")
    both = [one for one in settled if _measured(one.base, gate) and _measured(one.candidate, gate)]
    if not both:
        return unknown("NoData", "no data")
    if any(_nonsense(seen, gate) for one in both for seen in (one.base, one.candidate)):
        return unknown("NotANumber", "a sample is not a number from the range of the signal")
    if len(both) < (1.0 - MISSING_SHARE) * len(settled):
        return unknown("Missing", f"{len(settled) - len(both)} of {len(settled)} windows lack it")
    age = now - both[-1].end
    if age > gate.stale_after:
        return unknown("Stale", f"the newest data is {age:.0f} s old")
    if gate.signal in QUANTILES:
        found = _times(gate, both, alpha)
    elif gate.signal is Signal.THROUGHPUT:
        found = _throughput(gate, both, alpha)
    else:
        found = _shares(gate, both, alpha)
    if min(found.samples) < gate.min_samples:
        base, candidate = found.samples
        words = f"{base:.0f} samples of the base and {candidate:.0f} of the candidate, {gate.min_samples} are needed"
        if gate.signal is Signal.SCORE and not candidate:
            words += f"; install {gate.score} beside the recorder, as an entry point of paceline.comparisons"
        return unknown("ThinTraffic", words, found.samples)
    if len(both) < FEWEST_WINDOWS:
        return unknown("TooFewWindows", f"{len(both)} windows, {FEWEST_WINDOWS} are needed", found.samples)
    return found


def _measured(seen: Seen, gate: Gate) -> bool:
    if gate.signal in QUANTILES:
        return getattr(seen, QUANTILES[gate.signal][0]) is not None
    if gate.signal is Signal.THROUGHPUT:
        return seen.throughput is not None
    return _share(seen, gate) is not None


def _share(seen: Seen, gate: Gate) -> Share | None:
    """None where it was not measured. A comparison that had no question in a window has a share of nothing."""
    if gate.signal is Signal.SCORE:
        return None if seen.scores is None else seen.scores.get(gate.score, NOTHING)
    return seen.shares.get(gate.signal)


def _nonsense(seen: Seen, gate: Gate) -> bool:
    if gate.signal in QUANTILES:
        return False
    if gate.signal is Signal.THROUGHPUT:
        return seen.throughput is None or not (math.isfinite(seen.throughput) and seen.throughput >= 0.0)
    share = _share(seen, gate) or NOTHING
    return not (math.isfinite(share.of) and 0.0 <= share.hits <= share.of)


def _times(gate: Gate, windows: Sequence[Window], alpha: float) -> Finding:
    name, level = QUANTILES[gate.signal]
    pairs: list[tuple[Sketch, Sketch]] = [(getattr(one.base, name), getattr(one.candidate, name)) for one in windows]
    strata = [Stratum(base.count, candidate.count) for base, candidate in pairs]
    base, candidate = (_together([one[side] for one in pairs], strata) for side in (0, 1))
    blocks = [
        (
            one.weight * (below(new, candidate.at(level)) / one.candidate - below(old, base.at(level)) / one.base),
            one.weight * level * (1.0 - level),
        )
        for one, (old, new) in zip(strata, pairs, strict=True)
        if one.weight
    ]
    effective = _effective(strata, blocks)
    found = joint_interval(
        quantile_of(level, effective[0], base.at), quantile_of(level, effective[1], candidate.at), alpha, _ratio
    )
    values = (base.at(level) if base.count else None, candidate.at(level) if candidate.count else None)
    change = Interval(100.0 * (found.low - 1.0), 100.0 * (found.high - 1.0))
    regression = _either_way(change) if gate.signal in EITHER_WAY else change
    return _decide(gate, _counts(strata), values, regression, effective)


def _together(sketches: Sequence[Sketch], strata: Sequence[Stratum]) -> Spread:
    """All windows of one version, each with the weight that it has for both."""
    total: dict[int, float] = {}
    for sketch, stratum in zip(sketches, strata, strict=True):
        if stratum.weight:
            each = stratum.weight / sketch.count
            for bucket, count in sketch.counts.items():
                total[bucket] = total.get(bucket, 0.0) + count * each
    return Spread.of_buckets(total)


def _effective(strata: Sequence[Stratum], blocks: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """What the samples of both versions are worth."""
    worth, worse = matched(strata), paired_dispersion(blocks)
    return worth[0] / worse, worth[1] / worse


def _counts(strata: Sequence[Stratum]) -> tuple[float, float]:
    return sum(one.base for one in strata), sum(one.candidate for one in strata)


def _either_way(change: Interval) -> Interval:
    if change.low <= 0.0 <= change.high:
        return Interval(0.0, max(-change.low, change.high))
    return change if change.low > 0.0 else Interval(-change.high, -change.low)


def _ratio(candidate: float, base: float) -> float:
    if math.isinf(base):
        return 0.0
    return candidate / base if base > 0.0 else math.inf


def _throughput(gate: Gate, windows: Sequence[Window], alpha: float) -> Finding:
    """The median over windows of the two versions' ratio: both are seen under the same load."""
    pairs = [(one.base.throughput or 0.0, one.candidate.throughput or 0.0) for one in windows]
    ratios = [candidate / base for base, candidate in pairs if base > 0.0]
    spread = Spread.of_values(ratios)
    middle = spread.at(0.5)
    effective = len(ratios) / dispersion([(float(ratio <= middle), 1.0) for ratio in ratios])
    ratio = interval(quantile_of(0.5, effective, spread.at), alpha)
    samples = (float(len(ratios)), float(len(ratios)))
    values = (_mean([base for base, _ in pairs]), _mean([candidate for _, candidate in pairs]))
    regression = Interval(100.0 * (1.0 - ratio.high), 100.0 * (1.0 - ratio.low))
    return _decide(gate, samples, values, regression, (effective, effective))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _shares(gate: Gate, windows: Sequence[Window], alpha: float) -> Finding:
    pairs = [(_share(one.base, gate) or NOTHING, _share(one.candidate, gate) or NOTHING) for one in windows]
    strata = [Stratum(base.of, candidate.of) for base, candidate in pairs]
    weighed = [(one.weight, *both) for one, both in zip(strata, pairs, strict=True) if one.weight]
    total = sum(one.weight for one in strata)
    base = Share(sum(weight * old.hits / old.of for weight, old, _ in weighed), total)
    candidate = Share(sum(weight * new.hits / new.of for weight, _, new in weighed), total)
    means = (base.value or 0.0, candidate.value or 0.0)
    blocks = [
        (
            weight * (new.hits / new.of - old.hits / old.of - (means[1] - means[0])),
            weight**2 * (means[0] * (1.0 - means[0]) / old.of + means[1] * (1.0 - means[1]) / new.of),
        )
        for weight, old, new in weighed
    ]
    effective = _effective(strata, blocks)
    if gate.signal is Signal.SCORE:
        difference = interval(_worth(candidate, effective[1]), alpha)  # the base is what it is held against
    else:
        difference = joint_interval(
            _worth(base, effective[0]), _worth(candidate, effective[1]), alpha, lambda one, other: one - other
        )
    low, high = 100.0 * difference.low, 100.0 * difference.high
    regression = Interval(-high, -low) if gate.signal in MORE_IS_BETTER else Interval(low, high)
    return _decide(gate, _counts(strata), (base.value, candidate.value), regression, effective)


def _worth(share: Share, effective: float) -> Unknown:
    return mean_of((share.value or 0.0) * effective, effective)


def _decide(
    gate: Gate,
    samples: tuple[float, float],
    values: tuple[float | None, float | None],
    regression: Interval,
    effective: tuple[float, float],
) -> Finding:
    if regression.low > gate.margin:
        outcome, reason = Outcome.WORSE, "BeyondMargin"
    elif regression.high < 0.0:
        outcome, reason = Outcome.BETTER, "Better"
    elif regression.high <= gate.margin:
        outcome, reason = Outcome.NO_WORSE, "WithinMargin"
    else:
        outcome, reason = Outcome.NOT_KNOWN, "WideInterval"
    said = {
        Outcome.WORSE: "is worse",
        Outcome.BETTER: "is better",
        Outcome.NO_WORSE: "is no worse",
        Outcome.NOT_KNOWN: "is not known",
    }[outcome]
    span = f"{_bound(regression.low)} to {_bound(regression.high)} {gate.unit} worse"
    numbers = f"{_value(gate, values[0])} against {_value(gate, values[1])}"
    of = f"{samples[0]:.0f} and {samples[1]:.0f} samples"
    message = f"{gate.name} {said}: {span}, {gate.margin:g} are allowed (base {numbers}, {of})"
    return Finding(gate, outcome, reason, message, samples, values, regression, effective)


def _bound(value: float) -> str:
    return "any number" if math.isinf(value) else f"{value:+.2f}"


def _value(gate: Gate, value: float | None) -> str:
    if value is None or math.isinf(value):
        return "not known"
    if gate.signal in QUANTILES:
        if gate.signal in EITHER_WAY:
            return f"{1000.0 * value:.0f} units"
        return f"{1000.0 * value:.0f} ms" if value >= 0.01 else f"{1000.0 * value:.2f} ms"
    return f"{value:.1f} tokens/s" if gate.signal is Signal.THROUGHPUT else f"{100.0 * value:.2f} %"
