"""Whether a service keeps what it promises, by what its routers saw in a stretch of time. Pure.

P90 is the promise to users, P99 the inner line that warns before it, goodput the one figure that is reported. A request
that failed kept no promise; one that the client caused to fail, or left before it was late, counts nowhere, and neither
does a time that is not known. The routers count so too (`paceline_slo_requests_total`). A quantile of times would not
do: requests that failed have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from paceline_crds.durations import parse_duration
from paceline_crds.routing import ObjectiveSpec, SLOSpec
from paceline_crds.sketch import EDGES, SCALE, Sketch

SIGNALS: Final = ("ttft", "tpot")
LEVELS: Final[Mapping[str, float]] = {"p90": 0.90, "p99": 0.99}

FAILED: Final = ("5xx", "broken_stream")
"""Outcomes that kept no promise."""

NO_SHAPE: Final = "_none"
"""Requests that were refused before anything was known of them: no promise was made."""

LEAST_EXCEPTIONS: Final = 2.0
"""A share is judged once so many exceptions were allowed: 20 requests for a P90, 200 for a P99."""

SURE: Final = 0.01
"""Fewer requests show a broken promise if it would look so bad, were it kept, in less than this share of cases."""


class Word(Enum):
    """What is found."""

    KEPT = "PromisesKept"
    INNER_LINE = "InnerLineCrossed"
    MISSED = "PromiseMissed"
    THIN = "NotEnoughRequests"
    UNAVAILABLE = "MetricsUnavailable"


@dataclass(frozen=True, slots=True)
class Promise:
    """One limit of a spec: `level` is `p90` or `p99`, `limit` seconds."""

    signal: str
    level: str
    limit: float


@dataclass(frozen=True, slots=True)
class Tally:
    """How many requests kept something, of how many that are known."""

    kept: int = 0
    judged: int = 0

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(self.kept + other.kept, self.judged + other.judged)


@dataclass(frozen=True, slots=True)
class Window:
    """What all routers saw of a service.

    Attributes:
        seconds: from its beginning to its end.
        tallies: by signal and level.
        goodput: requests that kept all promises to users.
    """

    seconds: float
    tallies: Mapping[tuple[str, str], Tally] = field(default_factory=dict)
    goodput: Tally = field(default_factory=Tally)


@dataclass(frozen=True, slots=True)
class Judgement:
    """`kept` is None where that is not known; `message` has the window and the numbers."""

    kept: bool | None
    word: Word
    message: str


class PageError(ValueError):
    """A router's page is of another form than the contract's."""


def promises(spec: SLOSpec) -> tuple[Promise, ...]:
    """The limits of a spec.

    Raises:
        ValueError: a duration cannot be read.
    """
    found = []
    for signal in SIGNALS:
        objective: ObjectiveSpec | None = getattr(spec, signal)
        for level in LEVELS:
            text = getattr(objective, level) if objective is not None else None
            if text is not None:
                found.append(Promise(signal, level, parse_duration(text)))
    return tuple(found)


def window(
    pages: Sequence[Mapping[str, Any]],
    service: str,
    slo: SLOSpec | None,
    pool_slo: Mapping[str, SLOSpec] | None = None,
) -> Window:
    """What the routers' pages say of a service.

    Args:
        pages: bodies of `GET /v1/paceline/samples` of all routers, asked with one `since`.
        service: `namespace/name`.
        slo: of the service.
        pool_slo: of pools that have their own.

    Raises:
        PageError: a page is of another form.
    """
    tallies: dict[tuple[str, str], Tally] = {}
    goodput = Tally()
    begin, end = math.inf, -math.inf
    own = {pool: promises(spec) for pool, spec in (pool_slo or {}).items()}
    common = promises(slo) if slo is not None else ()
    try:
        for page in pages:
            if page["scale"] != SCALE:
                raise PageError(f"the sketches are not of the scale {SCALE}: bring routers and operator to one release")
            part = page["services"].get(service)
            if part is None:
                continue
            begin, end = min(begin, float(part["from"])), max(end, float(page["to"]))
            for row in part["rows"]:
                if row["shape"] == NO_SHAPE:
                    continue
                goodput = goodput.plus(Tally(int(row["met"]), int(row["met"]) + int(row["missed"])))
                failed = sum(int(row["outcomes"].get(outcome, 0)) for outcome in FAILED)
                for promise in own.get(row["pool"], common):
                    place = (promise.signal, promise.level)
                    counted = _within(Sketch.decode(row[promise.signal]), promise.limit)
                    tallies[place] = tallies.get(place, Tally()).plus(Tally(counted.kept, counted.judged + failed))
    except (AttributeError, KeyError, TypeError) as error:
        raise PageError(f"a router's samples are of another form: {error!r}") from None
    return Window(max(0.0, end - begin) if begin < end else 0.0, tallies, goodput)


def _within(sketch: Sketch, limit: float) -> Tally:
    """How many are within a limit. Exact for one that is on the scale, as all round ones are."""
    kept = sum(count for bucket, count in sketch.counts.items() if bucket < len(EDGES) and EDGES[bucket] <= limit)
    return Tally(kept, sketch.count)


def judge(seen: Window, limits: Iterable[Promise]) -> Judgement:
    """Whether the promises are kept.

    A signal that has no P90 promises its P99. A P99 beside a P90 is the inner line: crossing it is told and breaks no
    promise. Times are known of answers only; clients that left because none came are in the goodput. Where more of
    that is missed than all its promises together allow, one of them is broken, though it is not known which.

    Args:
        limits: the promises of the service, for the words; those of pools that differ are in the tallies all the same.
    """
    known = {(one.signal, one.level): one.limit for one in limits}
    places = sorted(known.keys() | seen.tallies.keys())
    outward = {place for place in places if place[1] == "p90" or (place[0], "p90") not in places}
    states = {place: _state(seen.tallies.get(place, Tally()), LEVELS[place[1]]) for place in places}
    words = _words(seen, known, places)
    together = sum(1.0 - LEVELS[level] for _, level in outward if level == "p90")
    if any(states[place] is False for place in outward) or (together and _state(seen.goodput, 1.0 - together) is False):
        return Judgement(False, Word.MISSED, words)
    # Waiting for what nobody sends would hide what is known: answers of one token have no time per token.
    if not any(states[place] for place in outward) or any(
        states[place] is None and seen.tallies.get(place, Tally()).judged for place in outward
    ):
        return Judgement(None, Word.THIN, words)
    if any(states[place] is False for place in places):
        return Judgement(True, Word.INNER_LINE, words)
    return Judgement(True, Word.KEPT, words)


def _state(tally: Tally, level: float) -> bool | None:
    """Whether enough kept a limit; None where there were too few to say."""
    allowed, missed = tally.judged * (1.0 - level), tally.judged - tally.kept
    # Floating: a tenth of twenty is not quite two.
    if allowed + 1e-9 >= LEAST_EXCEPTIONS:
        return missed <= allowed + 1e-9
    return False if missed and _at_least(missed, tally.judged, 1.0 - level) < SURE else None


def _at_least(missed: int, judged: int, share: float) -> float:
    """P(X >= missed) of a binomial X."""
    return math.fsum(
        math.comb(judged, count) * share**count * (1.0 - share) ** (judged - count)
        for count in range(missed, judged + 1)
    )


def _words(seen: Window, known: Mapping[tuple[str, str], float], places: Iterable[tuple[str, str]]) -> str:
    parts = []
    if seen.goodput.judged:
        parts.append(f"goodput {_percent(seen.goodput)} of {seen.goodput.judged} requests")
    for signal, level in places:
        limit = f" (at most {seconds(known[signal, level])})" if (signal, level) in known else ""
        tally = seen.tallies.get((signal, level), Tally())
        share = f"kept by {_percent(tally)} of {tally.judged}" if tally.judged else "not known, no request"
        parts.append(f"{signal.upper()} {level.upper()}{limit}: {share}")
    over = f"in the last {max(1, round(seen.seconds / 60.0))} min" if seen.seconds else "no requests"
    return "; ".join((over, *parts))


def _percent(tally: Tally) -> str:
    """Cut, not rounded: 89.96 % is no 90 %."""
    return f"{math.floor(1000.0 * tally.kept / tally.judged) / 10.0:g} %"


def seconds(value: float) -> str:
    """A limit as a spec would have it."""
    return f"{value:g}s" if value >= 1.0 else f"{value * 1000.0:g}ms"
