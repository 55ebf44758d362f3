"""Whether a request kept what the service promises: the counts from which goodput is made.

A request that failed missed every promise. One that the client caused to fail counts nowhere, nor does one that it
left, unless the promised time for the first token had passed in vain. A time that is not known counts nowhere either,
and a one-token answer has no time per token.
"""

from __future__ import annotations

from typing import Final

from paceline_crds.durations import parse_duration
from paceline_crds.routing import ObjectiveSpec, SLOSpec

SLOS: Final = ("ttft_p90", "ttft_p99", "tpot_p90", "tpot_p99", "goodput")
RESULTS: Final = ("met", "missed")

GOODPUT: Final = 4
NOT_KNOWN: Final = -1.0
"""In place of a time, seconds."""


class Objectives:
    """The limits of one pool, seconds; None where nothing is promised."""

    __slots__ = ("limits", "tpot", "ttft")

    def __init__(self, spec: SLOSpec) -> None:
        ttft, tpot = spec.ttft or ObjectiveSpec(), spec.tpot or ObjectiveSpec()
        self.limits = tuple(
            None if text is None else parse_duration(text) for text in (ttft.p90, ttft.p99, tpot.p90, tpot.p99)
        )
        self.ttft, _, self.tpot, _ = self.limits

    @property
    def promised(self) -> tuple[int, ...]:
        """Which of `SLOS` can be counted: each limit there is, and goodput if users are promised anything."""
        some = tuple(index for index, limit in enumerate(self.limits) if limit is not None)
        return (*some, GOODPUT) if self.ttft is not None or self.tpot is not None else some

    def answered(self, counts: list[int], ttft: float, tpot: float, total: float, tokens: int | None) -> bool | None:
        """Count a request that was answered.

        Args:
            counts: by `2 * SLOS + RESULTS`.
            ttft, tpot, total: seconds; `NOT_KNOWN` where so.
            tokens: of the answer; None when not known.

        Returns:
            Whether it kept the promises to users; None when that cannot be said.
        """
        ttft_90, ttft_99, tpot_90, tpot_99 = self.limits
        if ttft < 0.0 and tpot < 0.0 and ttft_90 is not None and tpot_90 is not None and tokens is not None:
            # An answer that comes whole shows no first token: what both promises allow for all of it decides.
            kept = total <= ttft_90 + tpot_90 * (tokens - 1 if tokens > 1 else 0)
            counts[8 if kept else 9] += 1
            return kept
        if ttft >= 0.0:
            if ttft_90 is not None:
                counts[0 if ttft <= ttft_90 else 1] += 1
            if ttft_99 is not None:
                counts[2 if ttft <= ttft_99 else 3] += 1
        if tpot >= 0.0:
            if tpot_90 is not None:
                counts[4 if tpot <= tpot_90 else 5] += 1
            if tpot_99 is not None:
                counts[6 if tpot <= tpot_99 else 7] += 1
        good = self._good(ttft, tpot, tokens)
        if good is not None:
            counts[8 if good else 9] += 1
        return good

    def _good(self, ttft: float, tpot: float, tokens: int | None) -> bool | None:
        ttft_90, tpot_90 = self.ttft, self.tpot
        if ttft_90 is None and tpot_90 is None:
            return None
        late = ttft_90 is not None and ttft > ttft_90
        slow = tpot_90 is not None and tpot > tpot_90
        if late or slow:
            return False
        # One token has no time between tokens to keep to.
        if (ttft_90 is None or ttft >= 0.0) and (tpot_90 is None or tpot >= 0.0 or tokens in (0, 1)):
            return True
        return None

    def left(self, counts: list[int], waited: float) -> bool | None:
        """Count a stream whose client left after `waited` seconds without a first token: what was promised sooner was
        missed, and more is not known. Returns what `answered` would.
        """
        ttft_90, ttft_99, _, _ = self.limits
        if ttft_99 is not None and waited > ttft_99:
            counts[3] += 1
        if ttft_90 is None or waited <= ttft_90:
            return None
        counts[1] += 1
        counts[9] += 1
        return False

    def failed(self, counts: list[int]) -> bool | None:
        """Count a request that failed. Returns what `answered` would."""
        for index in self.promised:
            counts[2 * index + 1] += 1
        return None if self.ttft is None and self.tpot is None else False
