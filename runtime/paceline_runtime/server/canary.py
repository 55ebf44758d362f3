"""The output canary: a fixed question, asked as everybody asks, whose answer must not change. Only hashes of it leave.

The prompt's beginning is meant to be hard on a tokeniser, and its end easy on a model: it counts on, so that each next
token is far ahead of the others, and the small differences of sums in another batch do not choose another one.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

from paceline_runtime.messages import FinishReason, SamplingParams

from .errors import ApiError, unavailable
from .replica import Replica
from .submission import Caller, EngineGone, RequestRejected

PROMPT: Final = (
    "Zażółć gęślą jaźń; naïve café — 東京 🦊 x_1 = -3.14e2;\n"
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,"
)
ANSWER_TOKENS: Final = 16
SAMPLING: Final = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0, seed=0, ignore_eos=True)
PATIENCE_SECONDS: Final = 20.0
"""For each of the two answers, in the queue of everybody."""
YOUNG_SECONDS: Final = 5.0
"""An answer as young as that is given again: whoever asks often costs no more."""


class Canary:
    """Asks the engine of one replica, once at a time."""

    def __init__(self, replica: Replica, clock: Callable[[], float] = time.monotonic) -> None:
        self._replica = replica
        self._clock = clock
        self._lock = asyncio.Lock()
        self._last: tuple[float, dict[str, Any]] | None = None

    async def ask(self) -> dict[str, Any]:
        """The question's tokens and the answer, as hashes of 64 bits.

        `cold` is computed anew. `warm` is the same answer with the prompt from the prefix cache, as far as its
        `cachedTokens`; of 0 it was computed too, and tells nothing of the cache.

        Raises:
            ApiError: 503 while the replica is too busy to answer soon, or draining.
        """
        refusal = self._replica.refusal(new_work=True)
        if refusal is not None:
            raise refusal
        async with self._lock:
            if self._last is None or self._clock() - self._last[0] >= YOUNG_SECONDS:
                body = await self._ask()
                self._last = self._clock(), body
            return self._last[1]

    async def _ask(self) -> dict[str, Any]:
        tokenizer = self._replica.tokenizer
        prompt = tokenizer.encode(PROMPT)[: max(1, self._replica.max_model_len - ANSWER_TOKENS)]
        cold, _ = await self._answer(prompt, salt=uuid.uuid4().hex)
        warm, cached = await self._answer(prompt, salt="")
        if not cached:
            # The first one with this prompt; now it is in the cache, if there is one.
            warm, cached = await self._answer(prompt, salt="")
        return {
            "v": 1,
            "prompt": _digest(prompt),
            "cold": _digest(cold),
            "warm": _digest(warm),
            "text": hashlib.blake2b(tokenizer.decode_all(cold).encode("utf-8", "replace"), digest_size=8).hexdigest(),
            "promptTokens": len(prompt),
            "cachedTokens": cached,
            "answerTokens": len(cold),
        }

    async def _answer(self, prompt: list[int], salt: str) -> tuple[list[int], int]:
        """The tokens of an answer, and how many of the prompt came from the cache."""
        caller = Caller(priority=1, deadline=time.monotonic() + PATIENCE_SECONDS, cache_salt=salt)
        tokens: list[int] = []
        cached = 0
        finished: FinishReason | None = None
        try:
            submission = self._replica.engine.submit([(prompt, SAMPLING)], caller=caller, counted=False)
            try:
                while outputs := await submission.next():
                    for _, output in outputs:
                        tokens += output.new_token_ids
                        cached = max(cached, output.num_cached_tokens)
                        finished = output.finish_reason
                        if output.finish_reason is FinishReason.ERROR:
                            raise ApiError(500, output.message or "The engine could not answer.")
            finally:
                submission.close()
        except RequestRejected as error:
            raise unavailable(f"The engine did not take the question: {error}") from None
        except EngineGone as error:
            raise unavailable(str(error), close=True) from None
        if finished not in (FinishReason.STOP, FinishReason.LENGTH):
            raise unavailable(f"No answer came within {PATIENCE_SECONDS:g} s.")
        return tokens, cached


def _digest(token_ids: Sequence[int]) -> str:
    return hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=8).hexdigest()
