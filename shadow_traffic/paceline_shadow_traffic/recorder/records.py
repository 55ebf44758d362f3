"""One compared pair as it is kept: statistics and hashes, and the texts only where somebody asked for them."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from paceline_crds.sketch import Sketch
from paceline_shadow_traffic.answers import Mode
from paceline_shadow_traffic.both import Both
from paceline_shadow_traffic.compare import Comparison
from paceline_shadow_traffic.comparisons_page import Row
from paceline_shadow_traffic.counting import tally
from paceline_shadow_traffic.reading import Times
from paceline_shadow_traffic.share import NOTHING, Share
from paceline_shadow_traffic.tally import Tally

AT_ONCE: Final = 1000
"""Records that are read and added up together."""


class Kind(enum.StrEnum):
    """What was held against what.

    PAIR: the answer that the client got, and the candidate's to the copy.
    REPLAY: both versions' answers to the request asked again, greedy.
    ITSELF: two answers of the base: how much one version differs from itself.
    FAILED: the base answered and the candidate did not.
    """

    PAIR = "pair"
    REPLAY = "replay"
    ITSELF = "itself"
    FAILED = "failed"


class Place(NamedTuple):
    """What is told apart."""

    service: str
    base: str
    candidate: str
    pool: str
    shape: str


@dataclass(frozen=True, slots=True)
class Record:
    """One comparison.

    Attributes:
        id: of the request.
        at: Unix seconds when it was copied.
        failure: of a FAILED one, in a word.
        comparison: of the others.
        times: of both streams, where they were streams.
        scores: of users' own comparisons, 0 to 1 by name.
        hashes: of both texts, keyed, so that equal answers can be found and no text guessed.
        raw: request and texts as JSON, where they are kept.
    """

    id: str
    kind: Kind
    at: float
    place: Place
    failure: str = ""
    comparison: Comparison | None = None
    times: Both[Times | None] = Both(None, None)  # noqa: RUF009 - frozen
    scores: Mapping[str, float] = field(default_factory=dict)
    hashes: Both[str] = Both("", "")  # noqa: RUF009 - frozen
    raw: bytes | None = None


def statistics(record: Record) -> dict[str, Any]:
    """All of a record that is neither key nor text, for JSON."""
    one = record.comparison
    found: dict[str, Any] = {"scores": dict(record.scores), "hashes": _pair(record.hashes)}
    if any(times is not None for times in _pair(record.times)):
        found["times"] = [None if t is None else [t.ttft, t.tpot, t.tokens] for t in _pair(record.times)]
    if one is not None:
        found["comparison"] = {
            "mode": one.mode.value,
            "unit": one.unit,
            "exact": one.exact,
            "firstDivergence": one.first_divergence,
            "distance": one.distance,
            "length": _pair(one.length),
            "finishReason": _pair(one.finish_reason),
            "refused": _pair(one.refused),
            "jsonValid": _pair(one.json_valid),
            "toolCallsValid": _pair(one.tool_calls_valid),
        }
    return found


def read_record(key: tuple[str, str, float, str], place: Place, found: Mapping[str, Any], raw: bytes | None) -> Record:
    """The record of what `statistics` made.

    Args:
        key: id, kind, time and failure.
    """
    comparison = None
    if "comparison" in found:
        one = found["comparison"]
        comparison = Comparison(
            Mode(one["mode"]),
            one["unit"],
            one["exact"],
            one["firstDivergence"],
            one["distance"],
            Both(*one["length"]),
            Both(*one["finishReason"]),
            Both(*one["refused"]),
            Both(*one["jsonValid"]),
            Both(*one["toolCallsValid"]),
        )
    times = [None if t is None else Times(*t) for t in found.get("times", (None, None))]
    request_id, kind, at, failure = key
    return Record(
        request_id,
        Kind(kind),
        at,
        place,
        failure,
        comparison,
        Both(*times),
        found["scores"],
        Both(*found["hashes"]),
        raw,
    )


def rows_of(records: Iterable[Record]) -> dict[Place, Row]:
    """What the page tells of each place, without ever holding more than some of the records."""
    rows: dict[Place, Row] = {}
    left = iter(records)
    while some := list(islice(left, AT_ONCE)):
        places: dict[Place, list[Record]] = {}
        for record in some:
            places.setdefault(record.place, []).append(record)
        for place, found in places.items():
            row = _row(place, found)
            rows[place] = rows[place] + row if place in rows else row
    return rows


def _row(place: Place, records: Iterable[Record]) -> Row:
    kinds: dict[Kind, list[Record]] = {kind: [] for kind in Kind}
    for record in records:
        kinds[record.kind].append(record)
    failed: dict[str, int] = {}
    for record in kinds[Kind.FAILED]:
        failed[record.failure] = failed.get(record.failure, 0) + 1
    pairs, replays = (tally(_comparisons(kinds[kind])) for kind in (Kind.PAIR, Kind.REPLAY))
    scores: dict[str, Share] = {}
    for record in kinds[Kind.PAIR]:
        for name, value in record.scores.items():
            scores[name] = scores.get(name, NOTHING) + Share(value, 1.0)
    ttft, tpot = _sketches(kinds[Kind.PAIR])
    return Row(
        place.base,
        place.candidate,
        place.pool,
        place.shape,
        pairs=len(kinds[Kind.PAIR]),
        failed=failed,
        candidate=Tally(
            pairs.sides,
            pairs.different + replays.different,
            pairs.distance + replays.distance,
            pairs.finish_changed + replays.finish_changed,
            pairs.divergences + replays.divergences,
        ),
        itself=tally(_comparisons(kinds[Kind.ITSELF])),
        ttft=ttft,
        tpot=tpot,
        scores=scores,
    )


def _comparisons(records: list[Record]) -> Iterable[Comparison]:
    return (record.comparison for record in records if record.comparison is not None)


def _sketches(records: list[Record]) -> tuple[Both[Sketch], Both[Sketch]]:
    base = [record.times.base for record in records if record.times.base is not None]
    candidate = [record.times.candidate for record in records if record.times.candidate is not None]
    return (
        Both(*(Sketch.of(t.ttft for t in side) for side in (base, candidate))),
        Both(*(Sketch.of(t.tpot for t in side if t.tpot is not None) for side in (base, candidate))),
    )


def _pair(both: Both[Any]) -> list[Any]:
    return [both.base, both.candidate]
