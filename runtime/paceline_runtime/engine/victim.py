"""Which running request gives its blocks up when there are too few."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .request import Request


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running request that may be preempted.

    Attributes:
        freed: blocks that nobody else holds.
        lost: tokens to compute again when it comes back, after what the prefix cache and lower memory give back; where
            its blocks are swapped out, the tokens that could be computed in the time of the copies.
        urgency: class, where there are classes (less is more urgent).
        swaps: whether its blocks would go to lower memory.
    """

    request: Request
    freed: int
    lost: float
    urgency: int = 0
    swaps: bool = False

    @property
    def cost(self) -> float:
        """Tokens of work wasted, output counted twice (someone reads along), more with each time it happened before."""
        return (self.lost + self.request.num_output) * (1 + self.request.num_preemptions)


ChooseVictim = Callable[[Iterable[Candidate], int], Candidate | None]
"""From those that may be preempted and the blocks needed, the one that is."""


def choose_victim(candidates: Iterable[Candidate], need: int) -> Candidate | None:
    """The cheapest of the least urgent class: one that frees what is needed if there is one.

    The most senior of the most urgent class is spared where another will do: it always gets on, so everything ends.
    Among equals the youngest gives way.
    """
    able = list(candidates)
    if len(able) > 1:
        able.remove(min(able, key=lambda c: (c.urgency, c.request.sequence)))
    # One that frees nothing still helps where all share a block that somebody wants to write.
    return min(able, key=lambda c: (-c.urgency, c.freed < need, not c.freed, c.cost, -c.request.sequence), default=None)
