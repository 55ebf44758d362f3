"""Samples of several systems under the same work, and what may be said of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .results import Row

OURS = "paceline"


@dataclass(frozen=True)
class Sample:
    """One timed turn of one system: metric to value, and its answers (where they are compared)."""

    values: dict[str, float]
    answers: Sequence[object] | None = None


@dataclass
class Case:
    """One work with fixed parameters: a sample of each system for each round, taken side by side.

    Attributes:
        work: as in the results.
        params: as in the results.
        samples: system to its samples, one per round in the same order.
    """

    work: str
    params: dict[str, Any]
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def add(self, system: str, sample: Sample) -> None:
        """Enter a system's sample of the round that is under way."""
        self.samples.setdefault(system, []).append(sample)

    @property
    def metrics(self) -> list[str]:
        """Names of what was measured."""
        return list(dict.fromkeys(m for samples in self.samples.values() for s in samples for m in s.values))

    def median(self, system: str, metric: str) -> float:
        """Over the rounds."""
        return statistics.median(s.values[metric] for s in self.samples[system])

    def ratios(self, peer: str, metric: str) -> list[float]:
        """Ours over the peer's, round by round: what the machine did meanwhile is in both."""
        pairs = zip(self.samples.get(OURS, ()), self.samples[peer], strict=False)
        return [ours.values[metric] / theirs.values[metric] for ours, theirs in pairs]

    def same_answers(self, peer: str) -> tuple[int, int] | None:
        """How many of all answers are token for token ours, and of how many; `None` where answers were not kept."""
        same = total = 0
        for ours, theirs in zip(self.samples.get(OURS, ()), self.samples[peer], strict=False):
            if ours.answers is None or theirs.answers is None:
                return None
            same += sum(a == b for a, b in zip(ours.answers, theirs.answers, strict=True))
            total += len(ours.answers)
        return (same, total) if total else None

    def rows(self, units: dict[str, str]) -> Iterator[Row]:
        """One row per system and metric, and one per peer for the median of the ratios and for equal answers.

        Args:
            units: metric to its unit.
        """
        for system in self.samples:
            for metric in self.metrics:
                values = [s.values[metric] for s in self.samples[system]]
                spread: dict[str, Any] = {"min": min(values), "max": max(values), "rounds": len(values)}
                yield Row(self.work, system, metric, statistics.median(values), units[metric], self.params | spread)
        for peer in self.peers():
            for metric in self.metrics:
                ratios = self.ratios(peer, metric)
                spread = {"peer": peer, "min": min(ratios), "max": max(ratios), "rounds": len(ratios)}
                value = statistics.median(ratios)
                yield Row(self.work, OURS, f"{metric}_ratio", value, "ratio", self.params | spread)
            same = self.same_answers(peer)
            if same is not None:
                answers = {"peer": peer, "answers": same[1]}
                yield Row(self.work, OURS, "same_answers_percent", 100 * same[0] / same[1], "%", self.params | answers)

    def peers(self) -> Sequence[str]:
        """Systems other than ours that have samples beside ours."""
        return [system for system in self.samples if system != OURS and OURS in self.samples]
