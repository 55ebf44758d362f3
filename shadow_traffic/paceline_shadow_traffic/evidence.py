"""What was seen of two versions, by stretches of time. Values only.

What was not measured is None or absent: never zero.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline_crds.sketch import Sketch

from .share import Share


class Signal(enum.StrEnum):
    """What a gate looks at."""

    TTFT_P50 = "TTFTP50"
    TTFT_P90 = "TTFTP90"
    TTFT_P99 = "TTFTP99"
    TPOT_P50 = "TPOTP50"
    TPOT_P90 = "TPOTP90"
    TPOT_P99 = "TPOTP99"
    LENGTH_P50 = "LengthP50"
    LENGTH_P90 = "LengthP90"
    ERROR_RATE = "ErrorRate"
    CANCELLED = "Cancelled"
    GOODPUT = "Goodput"
    PREEMPTIONS = "Preemptions"
    HIT_RATE = "HitRate"
    THROUGHPUT = "Throughput"
    OUTPUT_DIFFERENCE = "OutputDifference"
    REFUSALS = "Refusals"
    JSON_INVALID = "JSONInvalid"
    TOOL_CALLS_INVALID = "ToolCallsInvalid"
    TRUNCATED = "Truncated"
    SCORE = "Score"


QUANTILES: Mapping[Signal, tuple[str, float]] = {
    Signal.TTFT_P50: ("ttft", 0.5),
    Signal.TTFT_P90: ("ttft", 0.9),
    Signal.TTFT_P99: ("ttft", 0.99),
    Signal.TPOT_P50: ("tpot", 0.5),
    Signal.TPOT_P90: ("tpot", 0.9),
    Signal.TPOT_P99: ("tpot", 0.99),
    Signal.LENGTH_P50: ("length", 0.5),
    Signal.LENGTH_P90: ("length", 0.9),
}
"""Which values, and which share of them."""

EITHER_WAY = frozenset({Signal.LENGTH_P50, Signal.LENGTH_P90})
"""Longer answers cost more and shorter ones say less: both are a regression."""

MORE_IS_BETTER = frozenset({Signal.GOODPUT, Signal.HIT_RATE, Signal.THROUGHPUT})


@dataclass(frozen=True, slots=True)
class Seen:
    """One version in one stretch of time.

    Attributes:
        ttft, tpot: seconds, of the requests that ended in it.
        length: of answers, thousands of tokens (or characters, where tokens are not known).
        throughput: answer tokens per second, as if all requests had come to this version.
        shares: by signal: failed requests of all; requests whose client left; requests within the objectives;
            preemptions of requests (one a request at the most); prompt tokens found in the cache of all, as requests;
            of replayed pairs those that differ (for the base: from a second answer of its own, so that noise is known);
            and so on.
        scores: of users' own comparisons by name, of the candidate's answers: a sum of values from 0 (as good as the
            base's) to 1; of the base's the sum is 0. None: not looked at.
    """

    ttft: Sketch | None = None
    tpot: Sketch | None = None
    length: Sketch | None = None
    throughput: float | None = None
    shares: Mapping[Signal, Share] = field(default_factory=dict)
    scores: Mapping[str, Share] | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """Both versions in the same stretch of time, Unix seconds. One pool and shape, so that another mix is no
    regression.
    """

    start: float
    end: float
    base: Seen
    candidate: Seen
