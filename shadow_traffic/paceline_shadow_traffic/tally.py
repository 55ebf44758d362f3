"""Many comparisons, added up into counts that a verdict can be made of. Tallies are added, so that several recorders'
can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline_crds.sketch import Sketch

from .compare import Both, Comparison
from .share import NOTHING, Share


@dataclass(frozen=True, slots=True)
class Side:
    """What one version's answers were like, each taken by itself.

    Attributes:
        answers: how many.
        length: of each, thousands of units.
        finish_reasons: how often each came; None stands for answers that broke off.
        refused, json_invalid, tool_calls_invalid: of those of which it was a question.
    """

    answers: int = 0
    length: Sketch = field(default_factory=Sketch)
    finish_reasons: Counter[str | None] = field(default_factory=Counter)
    refused: Share = NOTHING
    json_invalid: Share = NOTHING
    tool_calls_invalid: Share = NOTHING

    def __add__(self, other: Side) -> Side:
        return Side(
            self.answers + other.answers,
            self.length.merged(other.length),
            self.finish_reasons + other.finish_reasons,
            self.refused + other.refused,
            self.json_invalid + other.json_invalid,
            self.tool_calls_invalid + other.tool_calls_invalid,
        )

    @property
    def truncated(self) -> Share:
        """Answers that ended at their token limit."""
        return Share(self.finish_reasons["length"], self.answers)


@dataclass(frozen=True, slots=True)
class Tally:
    """Comparisons, added up.

    Attributes:
        sides: by distribution, over all pairs.
        different: replayed pairs whose answers are not the same.
        distance: replayed pairs' normalised edit distances.
        finish_changed: replayed pairs that end for another reason.
        divergences: positions of the first divergence of replayed pairs that have one, in units.
    """

    sides: Both[Side] = field(default_factory=lambda: Both(Side(), Side()))
    different: Share = NOTHING
    distance: Share = NOTHING
    finish_changed: Share = NOTHING
    divergences: Counter[int] = field(default_factory=Counter)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            Both(self.sides.base + other.sides.base, self.sides.candidate + other.sides.candidate),
            self.different + other.different,
            self.distance + other.distance,
            self.finish_changed + other.finish_changed,
            self.divergences + other.divergences,
        )


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
