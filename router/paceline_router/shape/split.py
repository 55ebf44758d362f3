"""Whether a shape should have a pool of its own: only where it is a large part of the traffic *and* demonstrably drags
the others. Pure, from the counts of `interference`.

Method. For each shape, the requests of the other shapes are split by whether more of it than usual was in flight when
they came. The line is the P99 of those that came while there was not. Compared is the share beyond the line, one
against the other, among requests that met the same load (requests in flight, in powers of two): a ratio of risks
after Mantel and Haenszel, with the 99 % interval of Greenland and Robins. So load alone shows no effect. Requests are
not quite independent of each other, therefore the ratio must also be above one in both halves of the window, where
there are two.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline_crds.routing import Shape
from paceline_router.shape.histogram import PER_OCTAVE
from paceline_router.shape.interference import Cell, Window
from paceline_router.table.policy import SHAPES

LARGE_SHARE = 0.30
"""Share of requests or of tokens from which a pool of its own is worth its idle hours."""

MIN_REQUESTS = 500
"""Others' requests that are needed with the shape present, and with it absent."""

MIN_RATIO = 1.5
"""What the lower end of the interval must reach."""

MIN_RISE = 1.08
"""And the P99 itself must rise, by a step of the counts at least. Little more is seen in a busy pool, where some of
every shape is always there, though a pool without the shape would gain much more.
"""

Z = 2.576


class Answer(enum.StrEnum):
    """Whether to split."""

    YES = "yes"
    NO = "no"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a shape does to one latency of the others. Latencies are seconds.

    Attributes:
        signal: ttft or tpot.
        present, absent: others' requests that met more of the shape than usual, and those that did not.
        p99_present, p99_absent: their P99, whatever the load.
        ratio, low, high: how many times more often they are beyond `p99_absent` where it is present, at equal load,
            with the 99 % interval; None when that cannot be said.
        repeated: above one in each half of the window.
    """

    signal: str
    present: int
    absent: int
    p99_present: float | None = None
    p99_absent: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    repeated: bool = False

    @property
    def known(self) -> bool:
        """Whether there were enough requests to tell."""
        return self.ratio is not None

    @property
    def demonstrated(self) -> bool:
        """Whether the others are slower for it beyond doubt."""
        return (
            self.low is not None
            and self.low >= MIN_RATIO
            and self.repeated
            and self.p99_present is not None
            and self.p99_absent is not None
            and self.p99_present >= MIN_RISE * self.p99_absent
        )

    @property
    def words(self) -> str:
        """One line."""
        if not self.known or self.p99_present is None or self.p99_absent is None:
            return (
                f"{self.signal}: not known, {self.present} of the others' requests met more of it than usual and "
                f"{self.absent} did not; {MIN_REQUESTS} of each are needed, half of them at the same load"
            )
        return (
            f"{self.signal}: the others' P99 is {self.p99_present * 1e3:.0f} ms beside more of it than usual and "
            f"{self.p99_absent * 1e3:.0f} ms otherwise; at equal load {self.ratio:.1f} times as many are beyond the "
            f"latter (99 % interval {self.low:.1f} to {self.high:.1f}; {self.present} and {self.absent} requests)"
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """What is advised about one shape."""

    shape: Shape
    answer: Answer
    requests_share: float
    tokens_share: float
    effects: tuple[Effect, ...]
    words: str


@dataclass(frozen=True, slots=True)
class Advice:
    """About all shapes that came in the window."""

    seconds: float
    requests: int
    findings: tuple[Finding, ...]

    @property
    def split(self) -> tuple[Shape, ...]:
        """Shapes that should have a pool of their own."""
        return tuple(finding.shape for finding in self.findings if finding.answer is Answer.YES)


def advise(window: Window) -> Advice:
    """What the window says of each shape that is in it."""
    requests = [sum(half.requests[at] for half in window.halves) for at in range(len(SHAPES))]
    tokens = [sum(half.tokens[at] for half in window.halves) for at in range(len(SHAPES))]
    total, total_tokens = sum(requests), max(1, sum(tokens))
    findings = tuple(
        _finding(window, at, requests[at] / total, tokens[at] / total_tokens)
        for at in range(len(SHAPES))
        if requests[at]
    )
    return Advice(window.seconds, total, findings)


def _finding(window: Window, shape: int, requests_share: float, tokens_share: float) -> Finding:
    effects = (
        _effect("ttft", [half.ttft for half in window.halves], shape, 1e-3),
        _effect("tpot", [half.tpot for half in window.halves], shape, 1e-4),
    )
    shares = f"{requests_share:.0%} of requests, {tokens_share:.0%} of tokens"
    if requests_share == 1:
        answer, why = Answer.NO, "there are no requests of other shapes here"
    elif max(requests_share, tokens_share) <= LARGE_SHARE:
        answer, why = Answer.NO, f"less than {LARGE_SHARE:.0%}, a pool of its own would mostly be idle"
    elif any(effect.demonstrated for effect in effects):
        answer, why = Answer.YES, "; ".join(effect.words for effect in effects if effect.demonstrated)
    elif any(effect.known for effect in effects):
        answer, why = Answer.NO, "no clear effect on the others; " + "; ".join(effect.words for effect in effects)
    else:
        answer, why = Answer.NOT_KNOWN, "; ".join(effect.words for effect in effects)
    advice = {
        Answer.YES: "give it a pool of its own",
        Answer.NO: "leave it where it is",
        Answer.NOT_KNOWN: "not known yet",
    }[answer]
    words = f"{SHAPES[shape].value} ({shares}): {advice}: {why}"
    return Finding(SHAPES[shape], answer, requests_share, tokens_share, effects, words)


def _effect(signal: str, halves: list[Mapping[Cell, int]], shape: int, unit: float) -> Effect:
    others = [
        (cell, count, bool(cell.present >> shape & 1))
        for half in halves
        for cell, count in half.items()
        if cell.shape != shape
    ]
    present = sum(count for _, count, there in others if there)
    absent = sum(count for _, count, there in others if not there)
    if min(present, absent) < MIN_REQUESTS:
        return Effect(signal, present, absent)
    line = _p99((cell.bucket, count) for cell, count, there in others if not there)
    beyond = _p99((cell.bucket, count) for cell, count, there in others if there)
    found = _risk_ratio(others, line)
    p99_present, p99_absent = (unit * 2 ** ((bucket + 0.5) / PER_OCTAVE) for bucket in (beyond, line))
    if found is None:
        return Effect(signal, present, absent, p99_present, p99_absent)
    by_half = [
        _risk_ratio([(c, n, bool(c.present >> shape & 1)) for c, n in half.items() if c.shape != shape], line)
        for half in halves
    ]
    repeated = all(half is None or half[0] > 1 for half in by_half)
    return Effect(signal, present, absent, p99_present, p99_absent, *found, repeated)


def _p99(counts: Iterable[tuple[int, int]]) -> int:
    """The bucket of the 99th percentile."""
    by_bucket: dict[int, int] = {}
    for bucket, count in counts:
        by_bucket[bucket] = by_bucket.get(bucket, 0) + count
    wanted = 0.99 * sum(by_bucket.values())
    reached = 0
    for bucket in sorted(by_bucket):
        reached += by_bucket[bucket]
        if reached >= wanted:
            return bucket
    return 0


def _risk_ratio(others: list[tuple[Cell, int, bool]], line: int) -> tuple[float, float, float] | None:
    """How many times more often a latency is beyond the line with the shape present, over strata of equal load, and the
    interval of that; None where no load was met both with and without it often enough.
    """
    strata: dict[int, list[float]] = {}
    for cell, count, there in others:
        found = strata.setdefault(cell.load, [0, 0, 0, 0])
        found[0 if there else 1] += count
        if cell.bucket > line:
            found[2 if there else 3] += count
    with_it = without = variance = 0.0
    compared = [0.0, 0.0]
    for there_all, away_all, there_slow, away_slow in strata.values():
        if not there_all or not away_all:
            continue
        compared[0] += there_all
        compared[1] += away_all
        # Half a request each, so that a stratum without a slow one has no infinite ratio.
        n1, n0, a, b = there_all + 1, away_all + 1, there_slow + 0.5, away_slow + 0.5
        n = n1 + n0
        with_it += a * n0 / n
        without += b * n1 / n
        variance += ((a + b) * n1 * n0 - a * b * n) / n**2
    if min(compared) < MIN_REQUESTS / 2:
        return None
    ratio = with_it / without
    spread = math.exp(Z * math.sqrt(variance / (with_it * without)))
    return ratio, ratio / spread, ratio * spread


def split_page(windows: Mapping[str, Window]) -> dict[str, Any]:
    """The advice by pool as JSON, for the admin API, the status and `paceline plan split`."""
    return {pool: _page(advise(window)) for pool, window in windows.items()}


def _page(advice: Advice) -> dict[str, Any]:
    return {
        "seconds": round(advice.seconds),
        "requests": advice.requests,
        "split": [shape.value for shape in advice.split],
        "shapes": [
            {
                "shape": finding.shape.value,
                "answer": finding.answer.value,
                "requestsShare": round(finding.requests_share, 4),
                "tokensShare": round(finding.tokens_share, 4),
                "words": finding.words,
                "effects": [
                    {
                        "signal": effect.signal,
                        "present": effect.present,
                        "absent": effect.absent,
                        "p99PresentSeconds": effect.p99_present,
                        "p99AbsentSeconds": effect.p99_absent,
                        "ratio": effect.ratio,
                        "low": effect.low,
                        "high": effect.high,
                        "demonstrated": effect.demonstrated,
                    }
                    for effect in finding.effects
                ],
            }
            for finding in advice.findings
        ],
    }
