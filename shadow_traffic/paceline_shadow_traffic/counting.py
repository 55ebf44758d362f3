"""Comparisons, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from paceline_crds.sketch import Sketch

from .both import Both
from .compare import Comparison
from .share import NOTHING, Share
from .tally import Side, Tally


def tally(comparisons: Iterable[Comparison]) -> Tally:
    """Add up comparisons. Of replayed pairs only, `different`, `distance` and `finish_changed` count."""
    total = Tally()
    for one in comparisons:
        total = total + _of(one)
    return total


def _of(one: Comparison) -> Tally:
    sides = Both(
        Side(
            1,
            Sketch.of([one.length.base / 1000.0]),
            Counter([one.finish_reason.base]),
            _share(one.refused.base),
            _share(_not(one.json_valid.base)),
            _share(_not(one.tool_calls_valid.base)),
        ),
        Side(
            1,
            Sketch.of([one.length.candidate / 1000.0]),
            Counter([one.finish_reason.candidate]),
            _share(one.refused.candidate),
            _share(_not(one.json_valid.candidate)),
            _share(_not(one.tool_calls_valid.candidate)),
        ),
    )
    if one.exact is None or one.distance is None:
        return Tally(sides)
    changed = one.same_finish_reason
    divergences: Counter[int] = Counter([] if one.first_divergence is None else [one.first_divergence])
    return Tally(sides, _share(not one.exact), Share(one.distance, 1), _share(_not(changed)), divergences)


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _share(value: bool | None) -> Share:
    return NOTHING if value is None else Share(float(value), 1.0)
