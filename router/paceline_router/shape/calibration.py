"""How right the expected lengths turn out to be, by shape and by what they stand on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from paceline_crds.routing import Shape
from paceline_router.shape.output_length import Basis
from paceline_router.table.policy import SHAPES

KEEP: Final = 1 - 1 / 500
"""Weight of an answer relative to the next one."""

ENOUGH: Final = 50
WIDE: Final[tuple[tuple[float, int], ...]] = ((0.6, 4), (0.8, 2))
"""A P90 that held less than this share of answers is multiplied by so much."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One line of the report.

    Attributes:
        answers: how many the shares stand on, the newest weighing the most.
        below_median: the share of answers that were no longer than the expected median; 0.5 is right, and more where
            `max_tokens` cuts many.
        below_high: the share that were no longer than the P90; 0.9 is right.
    """

    shape: Shape
    basis: Basis
    answers: float
    below_median: float
    below_high: float


class Calibration:
    """Shares of answers below their estimates.

    Attributes:
        widen: by shape, what a learned P90 is multiplied by so that it holds; 1 while it does or nothing is known.
    """

    __slots__ = ("_answers", "_held", "_high", "_median", "_seen", "widen")

    def __init__(self) -> None:
        places = len(SHAPES) * len(Basis)
        self._answers = [0.0] * places
        self._median = [0.0] * places
        self._high = [0.0] * places
        self._held = [1.0] * len(SHAPES)
        self._seen = [0] * len(SHAPES)
        self.widen = [1] * len(SHAPES)

    def learn(self, shape: int, basis: int, below_median: bool, below_high: bool) -> None:
        """One answer beside its estimate. `below_high` is of the P90 before it was widened."""
        place = shape * len(Basis) + basis
        self._answers[place] = self._answers[place] * KEEP + 1
        self._median[place] = self._median[place] * KEEP + below_median
        self._high[place] = self._high[place] * KEEP + below_high
        if basis:
            # By shape alone: what an early, coarse basis got wrong must not count for ever because nobody uses it now.
            seen = self._seen[shape] = self._seen[shape] + 1
            held = self._held[shape]
            held = self._held[shape] = held + (below_high - held) * max(1 / seen, 1 - KEEP)
            if seen >= ENOUGH:
                self.widen[shape] = 1 if held >= WIDE[-1][0] else next(times for limit, times in WIDE if held < limit)

    def samples(self) -> Iterator[Calibrated]:
        """Shapes and bases of which there were answers."""
        for shape in range(len(SHAPES)):
            for basis in Basis:
                place = shape * len(Basis) + basis
                answers = self._answers[place]
                if answers:
                    yield Calibrated(
                        SHAPES[shape], basis, answers, self._median[place] / answers, self._high[place] / answers
                    )
