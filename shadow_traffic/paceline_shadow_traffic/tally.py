"""Many comparisons, added up into counts that a verdict can be made of. Tallies are added, so that several recorders'
can be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from paceline_crds.sketch import Sketch

from .both import Both
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
