"""Evidence from what routers hand out: `GET /v1/paceline/samples` of each, for one stretch of time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline_crds.sketch import SCALE, Sketch

from .evidence import Seen, Signal, Window
from .share import Share

FAILED = ("4xx", "5xx", "broken_stream")
"""Requests that a router refuses itself carry no revision. What a client does wrong meets both versions alike, so that
a difference in 4xx is the version's."""

ANSWERED = ("2xx", "3xx", *FAILED)
"""All but those whose client left."""

LEFT = ("cancelled",)
"""Their latency is in no figure: a version so slow that clients leave looks fast without this one."""


class PageError(ValueError):
    """A page is of another form than the contract's."""


def window(pages: Sequence[Mapping[str, Any] | None], service: str, base: str, candidate: str) -> dict[str, Window]:
    """Both versions in one stretch of time, by pool and shape as `pool/shape`.

    Args:
        pages: of every ready router, asked at one time with the same `since`; None of one that did not answer. Then
            nothing is measured in this stretch: what that router saw may be what matters.
        service: its key, `namespace/name`.
        base, candidate: revisions.

    Raises:
        PageError: a page is of another form, or its sketches are of another scale.
    """
    whole = [page for page in pages if page is not None]
    if not whole:
        return {}
    if any(page.get("scale") != SCALE for page in whole):
        raise PageError(f"the sketches are not of the scale {SCALE}: bring routers and operator to one release")
    try:
        found = [(page, page["services"][service]) for page in whole if service in page["services"]]
        rows: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
        for _, part in found:
            for row in part["rows"]:
                if row["revision"] in (base, candidate):
                    rows.setdefault(f"{row['pool']}/{row['shape']}", {}).setdefault(row["revision"], []).append(row)
        start = min((moment(part["from"]) for _, part in found), default=0.0)
        end = min(moment(page["to"]) for page in whole)
        silent = len(whole) < len(pages)
        return {
            place: Window(start, end, Seen(), Seen())
            if silent
            else Window(start, end, *_both(by_revision.get(base, []), by_revision.get(candidate, [])))
            for place, by_revision in rows.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PageError(f"a router's samples are of another form: {error}") from None


def moment(value: Any) -> float:
    """Unix seconds.

    Raises:
        ValueError: it is no moment. Of NaN and infinity nothing would ever be too old.
    """
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{found} is no moment")
    return found


def _both(base: list[Mapping[str, Any]], candidate: list[Mapping[str, Any]]) -> tuple[Seen, Seen]:
    # Without objectives no request is met or missed; with them, a version without requests has none of none.
    objectives = any(_counted(row["met"]) + _counted(row["missed"]) for row in (*base, *candidate))
    return _seen(base, objectives), _seen(candidate, objectives)


def _seen(rows: list[Mapping[str, Any]], objectives: bool) -> Seen:
    shares = {Signal.ERROR_RATE: Share(_count(rows, FAILED), _count(rows, ANSWERED))}
    shares[Signal.CANCELLED] = Share(_count(rows, LEFT), _count(rows, (*ANSWERED, *LEFT)))
    if objectives:
        met = sum(row["met"] for row in rows)
        shares[Signal.GOODPUT] = Share(met, met + sum(row["missed"] for row in rows))
    return Seen(ttft=_merged(rows, "ttft"), tpot=_merged(rows, "tpot"), shares=shares)


def _count(rows: list[Mapping[str, Any]], outcomes: Iterable[str]) -> int:
    return sum(_counted(row["outcomes"].get(outcome, 0)) for row in rows for outcome in outcomes)


def _counted(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _merged(rows: list[Mapping[str, Any]], name: str) -> Sketch:
    total = Sketch()
    for row in rows:
        total.add(Sketch.decode(row[name]).counts.items())
    return total
