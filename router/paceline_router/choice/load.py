"""What one router knows of the load of one replica, weighed in one unit.

The unit is a *prompt token*: the time in which a replica computes one token of a prompt. What waits there already,
what a request will cost there and what a prefix saves are then the same kind of number, and no replica's speed need be
known.

A first token waits for the prompts ahead of it, which count in full. Answers under way only slow those steps down, and
are slowed by them: they count for less. Their weights were measured, not derived, in the simulator on the Mooncake
conversation trace: times to the first token are flat from 0.2 to 4 for a token of an answer and from 0 to 0.05 for a
token of context; 0.2 for context, about what decoding it costs the card, makes the median a fifth longer, because
prompts then queue where few tokens are being decoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

STALE_AFTER: Final = 3.0
"""Seconds after which a load report says nothing any more."""

EJECT_AFTER: Final = 2
"""Connect failures in a row that take a replica out of the choice."""

EJECT_FIRST: Final = 0.5
EJECT_MOST: Final = 10.0
"""Seconds a replica stays out: doubled with each further failure. A successful probe ends it at once."""

WARM_SECONDS: Final = 30.0
WARM_ANSWERS: Final = 64
"""A replica that has just become ready takes its full share after this time, or after so many answers; until then the
share grows linearly in the sum of both."""

WARM_LEAST: Final = 0.1
"""The share that it begins with: caches, compiled kernels and page tables are cold, but no answer, no warmth."""

OUTPUT_WEIGHT: Final = 1.0
"""Prompt tokens that one expected token of an answer counts for."""

CONTEXT_WEIGHT: Final = 0.02
"""Prompt tokens that one token of context counts for while its request is decoded."""

OUTPUT_DEFAULT: Final = 256
"""Tokens of an answer when nothing is known."""

KV_PRESSURE_FROM: Final = 85
KV_PRESSURE_MOST: Final = 32768.0
"""Percent of the KV cache in use from which a new request may have to wait for another's blocks, and what a full cache
adds, in prompt tokens: about half an answer's time (170 steps of 8 ms). It grows with the square in between."""

KV_LEARN_FROM: Final = 10
"""Percent of the KV cache in use from which its size is learnt from the contexts that fill it."""


class ReplicaLoad:
    """The load of one replica.

    Attributes:
        work: what is to be done there before and beside a new request, in prompt tokens; never read it when `stale`.
        in_flight: requests this router has there now.
        others: running and waiting requests there that are not this router's, by the last report.
        kv_percent: KV cache in use, whole percent, by the last report.
        fresh_until: when the report turns stale (monotonic seconds).
        ejected_until: avoided until then, because connections or answers failed.
        busy_until: avoided until then, because it said so (429 or 503 with Retry-After).
        plain_from: from then on neither ejected, busy nor warming up (never, while draining): one comparison for all.
        kv_tokens: what its KV cache holds, by what it said of it; 0 while not known.
        kv_news: that has changed since it was last read.
        failures: connect failures in a row.
        reported: a load report has been taken at some time.
        key: names the replica alike in every router.
        slot: its number in the prefix index; -1 where it has none yet, -2 where none was free.
        chosen: how often it was chosen, for the imbalance.
    """

    __slots__ = (
        "_answers",
        "_base",
        "_draining",
        "_output",
        "_prefill",
        "_prompts",
        "_reports",
        "_sequence",
        "_warm_since",
        "_warm_until",
        "busy_until",
        "chosen",
        "ejected_until",
        "failures",
        "fresh_until",
        "in_flight",
        "key",
        "kv_news",
        "kv_percent",
        "kv_tokens",
        "others",
        "plain_from",
        "reported",
        "slot",
        "work",
    )

    def __init__(self, now: float, key: str = "") -> None:
        self.key = key
        self.slot = -1
        self.work = 0.0
        self.in_flight = 0
        self.others = 0
        self.kv_percent = 0
        self.kv_tokens = 0
        self.kv_news = False
        # A replica that has just appeared has not had time to report.
        self.fresh_until = now + STALE_AFTER
        self.ejected_until = 0.0
        self.busy_until = 0.0
        self.plain_from = 0.0
        self._draining = False
        self.failures = 0
        self.reported = False
        self.chosen = 0
        self._sequence = -1
        self._reports = 0
        self._base = 0.0  # by the last report
        self._prefill = 0  # own prompts not yet answered
        self._prompts = 0  # all own prompts
        self._output = 0.0  # own answers, weighted
        self._answers = 0
        self._warm_since = 0.0
        self._warm_until = 0.0

    # Own requests

    def begin(self, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0) -> int:
        """A request is sent there; keep what this returns for `answered` and `end`.

        Args:
            prompt_tokens: of the whole prompt.
            output_tokens: expected.
            cached_tokens: of the prompt, expected to lie there already.
        """
        self.in_flight += 1
        prefill = prompt_tokens - cached_tokens
        output = output_tokens * OUTPUT_WEIGHT
        self._prefill += prefill
        self._prompts += prompt_tokens
        self._output += output
        self.work += prefill + prompt_tokens * CONTEXT_WEIGHT + output
        return self._reports

    def answered(self, prompt_tokens: int, cached_tokens: int, mark: int) -> None:
        """The first byte of the answer is there, so that the prompt is computed."""
        self._answers += 1
        prefill = prompt_tokens - cached_tokens
        self._prefill -= prefill
        if mark == self._reports or not self.reported:
            self.work -= prefill

    def end(self, prompt_tokens: int, output_tokens: int, cached_tokens: int, mark: int, answered: bool) -> None:
        """A request has ended there, whatever its outcome; with the numbers of its `begin`."""
        left = self.in_flight = self.in_flight - 1
        if left == 0:
            # Nothing of ours is there; and sums of floats drift.
            self._prefill = self._prompts = 0
            self._output = 0.0
            self.work = self._base
            return
        if not answered:
            self.answered(prompt_tokens, cached_tokens, mark)
            self._answers -= 1
        output = output_tokens * OUTPUT_WEIGHT
        self._output -= output
        self._prompts -= prompt_tokens
        if mark == self._reports or not self.reported:
            output += prompt_tokens * CONTEXT_WEIGHT
        self.work -= output

    # What it says

    def take(
        self, running: int, waiting: int, kv_percent: int, ptok: int, dtok: int, sequence: int, now: float
    ) -> bool:
        """Take a whole load report; False when it is older than what is known.

        After silence a lower sequence is believed: the engine has restarted and counts anew. Its cache is then empty,
        so its `slot` is given up and the prefix index forgets it.
        """
        if sequence < self._sequence:
            if now <= self.fresh_until:
                return False
            self.slot = -1
        self._sequence = sequence
        self.reported = True
        self._reports += 1
        self.kv_percent = kv_percent
        self.fresh_until = now + STALE_AFTER
        there = running + waiting
        others = there - self.in_flight
        self.others = others if others > 0 else 0
        base = ptok + dtok * CONTEXT_WEIGHT
        if others > 0:
            base += others * (OUTPUT_DEFAULT * OUTPUT_WEIGHT)
        if kv_percent >= KV_LEARN_FROM:
            holds = dtok * 100 // kv_percent
            if not 0.8 * holds <= self.kv_tokens <= 1.25 * holds:
                self.kv_tokens = holds
                self.kv_news = True
        if kv_percent > KV_PRESSURE_FROM:
            full = (kv_percent - KV_PRESSURE_FROM) / (100 - KV_PRESSURE_FROM)
            base += KV_PRESSURE_MOST * full * full
        self._base = base
        self.work = base + self._output
        return True

    def report(
        self, requests: int, sequence: int, now: float, *, kv_percent: int | None = None, context: int | None = None
    ) -> bool:
        """Take a report of the number of running and waiting requests, and of what else is known. See `take`.

        Args:
            context: tokens of context of the running requests.
        """
        own = self._prompts
        # Others' requests are taken to be like our own, in the middle of their prompts.
        prompts = float(self._prefill)
        if requests > self.in_flight > 0:
            prompts += (requests / self.in_flight - 1.0) * own / 2.0
        return self.take(requests, 0, kv_percent or 0, int(prompts), own if context is None else context, sequence, now)

    def does_not_report(self, now: float) -> None:
        """The replica answers but has no load endpoint: own requests are all there is to go by."""
        self.fresh_until = now + STALE_AFTER

    def stale(self, now: float) -> bool:
        """Whether nothing has been heard of its load for too long."""
        return now > self.fresh_until

    # Its health, as flow/ sees it

    def ejected(self, now: float) -> bool:
        """Whether it is avoided because connections to it failed."""
        return now < self.ejected_until

    def eject(self, until: float) -> None:
        """Avoid it until then; a time that has passed lets it back."""
        self.ejected_until = until
        self._settle()

    def busy(self, until: float) -> None:
        """It has asked for nothing more until then."""
        if until > self.busy_until:
            self.busy_until = until
            self._settle()

    def warm_up(self, now: float) -> None:
        """It has become ready just now, while others serve already: its share grows from here."""
        self._warm_since = now
        self._warm_until = now + WARM_SECONDS
        self._answers = 0
        self._settle()

    def connect_failed(self, now: float) -> None:
        """Count a failed connection, and eject the replica when it is the second in a row or a further one."""
        self.failures += 1
        if self.failures >= EJECT_AFTER:
            self.eject(now + min(EJECT_MOST, EJECT_FIRST * 2.0 ** min(10, self.failures - EJECT_AFTER)))

    def connected(self) -> None:
        """A connection was made, or the replica answered."""
        self.failures = 0
        if self.ejected_until:
            self.eject(0.0)

    @property
    def draining(self) -> bool:
        """Whether it gets nothing new."""
        return self._draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._draining = draining
        self._settle()

    def _settle(self) -> None:
        held = math.inf if self._draining else self._warm_until
        self.plain_from = max(self.ejected_until, self.busy_until, held)

    def share(self, now: float) -> float:
        """Of a full share, how much it should take: from `WARM_LEAST` to 1."""
        if now >= self._warm_until:
            return 1.0
        grown = (now - self._warm_since) / WARM_SECONDS + self._answers / WARM_ANSWERS
        if grown >= 1.0:
            self._warm_until = 0.0
            self._settle()
            return 1.0
        return max(WARM_LEAST, grown)


def imbalance(measure: Callable[[ReplicaLoad], float], loads: list[ReplicaLoad]) -> float | None:
    """The largest over the mean of a measure; 1 is even. None where there is nothing to compare."""
    values = [measure(load) for load in loads]
    total = sum(values)
    return max(values) * len(values) / total if len(values) > 1 and total > 0 else None
