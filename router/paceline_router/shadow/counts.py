"""What became of the copies of one service's requests, for `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from paceline_crds import metrics as catalogue
from paceline_router.report.text import Labels, Sample, sample

GIVEN_UP: Final = ("client_left", "base_failed", "answer_too_large", "memory", "stopped")
"""Why the router itself ends a copy. The first two: the request had no answer to compare with; `memory`: all copies
together hold as much as they may; `stopped`: the router stops, or no copies are wanted any more.
"""

SKIPPED: Final = (
    "by_hand",
    "shape",
    "opt_out",
    "several_choices",
    "body_too_large",
    "prompt_too_long",
    "answer_too_long",
    "same_revision",
    "no_replica",
    "queue_full",
    "waited",
    *GIVEN_UP,
)
"""Why a request of the sampled share was not copied, or its copy given up before it was sent."""

OUTCOMES: Final = ("answered", "status", "connect", "reset", "timeout", *GIVEN_UP)
"""How a copy that was sent ended. `status`: with another answer than 2xx; `timeout`: not within its deadline."""

PAIRS: Final = ("posted", "dropped", "refused", "lost")
"""`dropped`: the queue was full; `refused`: by the recorder; `lost`: the recorder did not answer."""


class Counts:
    """Counters of one service. All exist from the start, so that a rate can be taken of the first."""

    __slots__ = ("in_flight", "outcomes", "pairs", "skipped")

    def __init__(self) -> None:
        self.skipped = dict.fromkeys(SKIPPED, 0)
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.pairs = dict.fromkeys(PAIRS, 0)
        self.in_flight = 0

    def samples(self, labels: Labels) -> Iterator[Sample]:
        """All series."""
        for metric, counts in (
            (catalogue.ROUTER_SHADOW_SKIPPED, self.skipped),
            (catalogue.ROUTER_SHADOW_COPIES, self.outcomes),
            (catalogue.ROUTER_SHADOW_PAIRS, self.pairs),
        ):
            for label, count in counts.items():
                yield sample(metric, labels, label, value=count)
        yield sample(catalogue.ROUTER_SHADOW_IN_FLIGHT, labels, value=self.in_flight)
