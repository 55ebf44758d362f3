"""Gates that a user writes in PromQL: a number that has to stay within bounds. Pure.

Nothing is assumed about the number's noise, so a look out of bounds says nothing by itself: what counts is that it
stays out, or within, for a while. What Prometheus does not have, or had too long ago, never passes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline_autoscaler.samples import Present, Sample, why_unknown
from paceline_shadow_traffic.verdict import Outcome, Remark

ASK_SECONDS = 15.0
LONGEST_GAP = 75.0
"""Between two answers, seconds: more, and it is not known what was between them."""

WORDS = 300
"""Characters of a query in a sentence."""

NAMES = ("candidatePods", "basePods", "candidate", "base", "namespace", "service")
_NAMES = re.compile(rf"\$({'|'.join(NAMES)})\b")


@dataclass(frozen=True, slots=True)
class QueryGate:
    """What has to stay within bounds.

    Attributes:
        query: an expression that gives one number.
        low, high: the bounds; infinite where there is none.
        hold_for: seconds that it has to be out of them without a break to be worse, or within them to be no worse.
        settle: seconds after the step began that are left out.
    """

    name: str
    query: str
    low: float = -math.inf
    high: float = math.inf
    hold_for: float = 120.0
    settle: float = 60.0

    def about(self, names: Mapping[str, str]) -> QueryGate:
        """With the names of `NAMES` filled in."""
        return replace(self, query=_NAMES.sub(lambda found: names[found[1]], self.query))

    @property
    def bounds(self) -> str:
        """In words."""
        parts = []
        if math.isfinite(self.low):
            parts.append(f"at least {self.low:g}")
        if math.isfinite(self.high):
            parts.append(f"at most {self.high:g}")
        return " and ".join(parts)


Answers = tuple[tuple[float, Sample], ...]
"""When it was asked (seconds since the epoch), and what came back; oldest first."""


def with_answer(gate: QueryGate, before: Answers, at: float, sample: Sample) -> Answers:
    """With another answer; those that nothing depends on any more are let go."""
    oldest = at - gate.hold_for - 2.0 * LONGEST_GAP
    return (*(one for one in before if one[0] >= oldest), (at, sample))


def queried(gate: QueryGate, answers: Sequence[tuple[float, Sample]], since: float, now: float) -> Remark:
    """What a gate says.

    Args:
        since: begin of the step, seconds since the epoch.
        now: the same clock.
    """
    query = gate.query if len(gate.query) <= WORDS else f"{gate.query[:WORDS]}…"

    def said(outcome: Outcome, reason: str, words: str) -> Remark:
        return Remark(f"Query/{gate.name}", outcome, reason, f"{gate.name} {words} ({query})")

    begin = since + gate.settle
    counted = [one for one in answers if one[0] >= begin]
    if now < begin:
        return said(Outcome.NOT_KNOWN, "Settling", f"is not known: {begin - now:.0f} s until it counts")
    if not counted:
        return said(Outcome.NOT_KNOWN, "NoData", "is not known: Prometheus has not answered yet")
    last, newest = counted[-1]
    if not isinstance(newest, Present):
        return said(Outcome.NOT_KNOWN, "NoData", f"is not known: {why_unknown(newest)}")
    if now - last > LONGEST_GAP:
        return said(Outcome.NOT_KNOWN, "Stale", f"is not known: the newest answer is {now - last:.0f} s old")
    run, within = _run(gate, counted)
    number = f"{newest.value:.4g}, {gate.bounds} is allowed"
    if last - run < gate.hold_for:
        left = gate.hold_for - (last - run)
        side = "within" if within else "out of"
        words = f"is not known: {number}; it has to stay {side} bounds for {left:.0f} s more"
        return said(Outcome.NOT_KNOWN, "TooShort", words)
    if within:
        return said(Outcome.NO_WORSE, "WithinBounds", f"is no worse: {number}")
    return said(Outcome.WORSE, "OutOfBounds", f"is worse: {number}, for {last - run:.0f} s")


def _run(gate: QueryGate, answers: Sequence[tuple[float, Sample]]) -> tuple[float, bool]:
    """Since when answers are without a break on the side where the newest is, and whether that is within bounds."""

    def within(sample: Sample) -> bool | None:
        return gate.low <= sample.value <= gate.high if isinstance(sample, Present) else None

    start, newest = answers[-1]
    side = within(newest)
    for at, sample in reversed(answers):
        if within(sample) is not side or start - at > LONGEST_GAP:
            break
        start = at
    return start, bool(side)
