"""What a recorder hands out at `GET /v1/paceline/comparisons`: tallies as JSON, and the verdict's evidence from them.

Pure, and read by the operator, so nothing here needs more than the contract.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from paceline_crds.sketch import SCALE, Sketch

from .both import Both
from .evidence import Seen, Signal, Window
from .outputs import seen
from .pages import PageError, moment
from .share import NOTHING, Share
from .tally import Side, Tally

PATH: Final = "/v1/paceline/comparisons"

BROKEN_OFF: Final = ""
"""Stands for the finish reason of an answer that has none."""


@dataclass(frozen=True, slots=True)
class Row:
    """What was compared of one base, candidate, pool and shape in a stretch of time.

    Attributes:
        pairs: requests that both versions answered.
        failed: requests that the base answered and the candidate did not, by why.
        candidate: sides over all pairs; differences over those that can be compared token for token: greedy requests,
            and sampled ones that were replayed greedy.
        itself: the same of the base's answers and second answers of the base: the noise.
        ttft, tpot: seconds, of streams. The candidate's are under the load of its copies, not under the base's.
        scores: of users' own comparisons, by name: a sum of values from 0 to 1, and of how many.
    """

    base: str
    candidate_revision: str
    pool: str
    shape: str
    pairs: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    candidate: Tally = field(default_factory=Tally)
    itself: Tally = field(default_factory=Tally)
    ttft: Both[Sketch] = field(default_factory=lambda: Both(Sketch(), Sketch()))
    tpot: Both[Sketch] = field(default_factory=lambda: Both(Sketch(), Sketch()))
    scores: Mapping[str, Share] = field(default_factory=dict)

    def __add__(self, other: Row) -> Row:
        """Both together, of the same place."""
        return Row(
            *(self.base, self.candidate_revision, self.pool, self.shape),
            pairs=self.pairs + other.pairs,
            failed=dict(Counter(self.failed) + Counter(other.failed)),
            candidate=self.candidate + other.candidate,
            itself=self.itself + other.itself,
            ttft=_merged(self.ttft, other.ttft),
            tpot=_merged(self.tpot, other.tpot),
            scores={
                name: self.scores.get(name, NOTHING) + other.scores.get(name, NOTHING)
                for name in {**self.scores, **other.scores}
            },
        )

    def encode(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "base": self.base,
            "candidate": self.candidate_revision,
            "pool": self.pool,
            "shape": self.shape,
            "pairs": self.pairs,
            "failed": dict(self.failed),
            "answers": encode_tally(self.candidate),
            "itself": encode_tally(self.itself),
            "ttft": _encode_both(self.ttft),
            "tpot": _encode_both(self.tpot),
            "scores": {name: _encode_share(share) for name, share in self.scores.items()},
        }


def page(since: float, until: float, services: Mapping[str, list[Row]]) -> dict[str, Any]:
    """The body. Times are Unix seconds; what was copied from `since` on and before `until` is in it."""
    return {
        "scale": SCALE,
        "since": since,
        "until": until,
        "services": {key: {"rows": [row.encode() for row in rows]} for key, rows in services.items()},
    }


def window(body: Mapping[str, Any] | None, service: str, base: str, candidate: str) -> dict[str, Window]:
    """Both versions' answers in the page's stretch of time, by pool and shape as `pool/shape`.

    Times to tokens are not in it: a candidate that gets copies of some requests has another load than the base.

    Args:
        body: None of a recorder that did not answer: then nothing is measured.
        service: its key, `namespace/name`.
        base, candidate: revisions.

    Raises:
        PageError: the page is of another form, or its sketches are of another scale.
    """
    if body is None:
        return {}
    if body.get("scale") != SCALE:
        raise PageError(f"the sketches are not of the scale {SCALE}: bring recorder and operator to one release")
    try:
        start, end = moment(body["since"]), moment(body["until"])
        rows = body["services"].get(service, {"rows": []})["rows"]
        return {
            f"{row['pool']}/{row['shape']}": Window(start, end, *_both(row))
            for row in rows
            if row["base"] == base and row["candidate"] == candidate
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PageError(f"the recorder's comparisons are of another form: {error}") from None


def _both(row: Mapping[str, Any]) -> tuple[Seen, Seen]:
    old, new = seen(decode_tally(row["answers"]), decode_tally(row["itself"]))
    failed, pairs = sum(int(count) for count in row["failed"].values()), int(row["pairs"])
    if min(failed, pairs) < 0:
        raise ValueError("pairs are counted from 0 up")
    scores = {str(name): _decode_share(share) for name, share in row["scores"].items()}
    none = {name: Share(0.0, share.of) for name, share in scores.items()}
    # Only requests that the base answered are in it, so that what fails is the candidate's own.
    return _with(old, Share(0.0, pairs + failed), none), _with(new, Share(failed, pairs + failed), scores)


def _with(one: Seen, errors: Share, scores: Mapping[str, Share]) -> Seen:
    return replace(one, shares={**one.shares, Signal.ERROR_RATE: errors}, scores=scores)


def encode_tally(one: Tally) -> dict[str, Any]:
    """For JSON."""
    return {
        "sides": {"base": _encode_side(one.sides.base), "candidate": _encode_side(one.sides.candidate)},
        "different": _encode_share(one.different),
        "distance": _encode_share(one.distance),
        "finishChanged": _encode_share(one.finish_changed),
        "divergences": [[position, count] for position, count in sorted(one.divergences.items())],
    }


def decode_tally(value: Mapping[str, Any]) -> Tally:
    """Read what `encode_tally` made.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    sides = value["sides"]
    return Tally(
        Both(_decode_side(sides["base"]), _decode_side(sides["candidate"])),
        _decode_share(value["different"]),
        _decode_share(value["distance"]),
        _decode_share(value["finishChanged"]),
        Counter({int(position): int(count) for position, count in value["divergences"]}),
    )


def _encode_side(one: Side) -> dict[str, Any]:
    return {
        "answers": one.answers,
        "length": one.length.encode(),
        "finishReasons": {reason or BROKEN_OFF: count for reason, count in one.finish_reasons.items()},
        "refused": _encode_share(one.refused),
        "jsonInvalid": _encode_share(one.json_invalid),
        "toolCallsInvalid": _encode_share(one.tool_calls_invalid),
    }


def _decode_side(value: Mapping[str, Any]) -> Side:
    reasons: Counter[str | None] = Counter()
    for reason, count in value["finishReasons"].items():
        reasons[str(reason) or None] += int(count)
    return Side(
        int(value["answers"]),
        Sketch.decode(value["length"]),
        reasons,
        _decode_share(value["refused"]),
        _decode_share(value["jsonInvalid"]),
        _decode_share(value["toolCallsInvalid"]),
    )


def _encode_share(one: Share) -> list[float]:
    return [one.hits, one.of]


def _decode_share(value: Any) -> Share:
    hits, of = map(float, value)
    if not 0.0 <= hits <= of:
        raise ValueError("a share is a pair of numbers, the first from 0 to the second")
    return Share(hits, of) if of else NOTHING


def _merged(one: Both[Sketch], other: Both[Sketch]) -> Both[Sketch]:
    return Both(one.base.merged(other.base), one.candidate.merged(other.candidate))


def _encode_both(both: Both[Sketch]) -> dict[str, Any]:
    return {"base": both.base.encode(), "candidate": both.candidate.encode()}
