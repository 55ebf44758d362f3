"""How fast this engine is, as measured: what estimates of waiting and of the cost of computing again rest on."""

from __future__ import annotations

from collections import deque

WEIGHT = 0.1
"""Of the newest sample in the running mean."""
LEAST_PREFILL = 16
"""Prompt tokens in a step from which its time says something about prefill."""
LEAST_ADMISSIONS = 4


class Rates:
    """Running means; `None` is not known yet."""

    def __init__(self) -> None:
        self.prefill_token_seconds: float | None = None
        self.decode_step_seconds: float | None = None
        self._admissions: deque[float] = deque(maxlen=64)

    def observe(self, seconds: float, prefill_tokens: int, decodes: int) -> None:
        """Enter a step: seconds from its forward to its tokens, prompt tokens in it, and sequences that decoded."""
        if not prefill_tokens:
            self.decode_step_seconds = _mean(self.decode_step_seconds, seconds)
        elif prefill_tokens >= LEAST_PREFILL and not (decodes and self.decode_step_seconds is None):
            # In a mixed step the decodes' share is what such a step takes without a prompt.
            rest = seconds - (self.decode_step_seconds or 0.0 if decodes else 0.0)
            if rest > 0:
                self.prefill_token_seconds = _mean(self.prefill_token_seconds, rest / prefill_tokens)

    def admitted(self, now: float) -> None:
        """Enter that a request left the queue for the batch."""
        self._admissions.append(now)

    def admissions_per_second(self, now: float) -> float | None:
        """At which rate requests leave the queue, over the last ones; `None` is not known."""
        if len(self._admissions) < LEAST_ADMISSIONS or now <= self._admissions[0]:
            return None
        return len(self._admissions) / (now - self._admissions[0])

    def own_seconds(self, prefill_tokens: int, decode_tokens: int) -> float:
        """Least time to compute so many tokens of a prompt and then make so many, alone; 0 where nothing is known."""
        return prefill_tokens * (self.prefill_token_seconds or 0.0) + decode_tokens * (self.decode_step_seconds or 0.0)


def _mean(mean: float | None, sample: float) -> float:
    return sample if mean is None else mean + WEIGHT * (sample - mean)
