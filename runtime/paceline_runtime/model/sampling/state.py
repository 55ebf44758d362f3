"""What the sampler knows of one answer: it lives as long as the request, whatever happens to its blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from paceline_runtime.messages import SamplingParams
from paceline_runtime.model.sampling.bad_words import BadWords
from paceline_runtime.model.sampling.flat import Ids
from paceline_runtime.model.sampling.penalties import PenaltyTable
from paceline_runtime.model.sampling.stream import uniform

GREEDY_BELOW: Final = 1e-5
"""A lower temperature is treated as 0: dividing by it would leave one token anyway, or overflow."""

ADJUSTS: Final = 1
"""Bits of `SamplingState.needs`: logits are changed before anything is chosen."""
DRAWS: Final = 2
"""The token is drawn, not simply the likeliest."""
REPORTS: Final = 4
"""Log-probabilities are wanted."""


class SamplingState:
    """How the next token of one answer is chosen, given those before it.

    Attributes:
        params: what was asked for.
        seed: of this answer's random stream.
        num_output: tokens made so far.
        needs: which parts of the sampler this answer needs now, as bits; 0 is the plain likeliest token.
        top_k, top_p, min_p, temperature: those of `params`; a `top_k` that keeps all tokens is 0.
        truncates: the draw is from some of the tokens only.
        penalties: tokens of the sequence that are penalised; `None` where no penalty was asked for.
        bias: token ids and what is added to their logits.
        allowed: the tokens of `allowed_token_ids`.
    """

    __slots__ = (
        "_allowed_mask",
        "_bad_words",
        "_bad_words_state",
        "_endings",
        "_vocab_size",
        "allowed",
        "bias",
        "min_p",
        "needs",
        "num_output",
        "params",
        "penalties",
        "seed",
        "temperature",
        "top_k",
        "top_p",
        "truncates",
    )

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        prompt_token_ids: Sequence[int],
        eos_token_ids: Iterable[int],
        vocab_size: int,
    ) -> None:
        """Begin an answer.

        Args:
            params: values that `check_sampling` found to be in range.
            seed: the client's, or a fresh one.
            prompt_token_ids: what the answer follows.
            eos_token_ids: the model's own end-of-sequence tokens.
            vocab_size: columns of the logits.
        """
        self.params = params
        self.seed = seed
        self.num_output = 0
        self._vocab_size = vocab_size
        self.temperature = params.temperature
        self.top_k = params.top_k if params.top_k < vocab_size else 0
        self.top_p = params.top_p
        self.min_p = params.min_p
        self.truncates = self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0
        penalised = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1.0, 0.0, 0.0)
        self.penalties = PenaltyTable(params, prompt_token_ids) if penalised else None
        self.bias: tuple[Ids, npt.NDArray[np.float32]] | None = None
        if params.logit_bias:
            self.bias = (
                np.array(list(params.logit_bias), np.int64),
                np.array(list(params.logit_bias.values()), np.float32),
            )
        self.allowed: Ids | None = None
        if params.allowed_token_ids is not None:
            self.allowed = np.unique(np.array(params.allowed_token_ids, np.int64))
        self._bad_words = BadWords(params.bad_words) if params.bad_words else None
        self._bad_words_state = self._bad_words.start(prompt_token_ids) if self._bad_words else 0
        self._endings: Ids | None = None
        if params.min_tokens > 0:
            endings = sorted({token for token in (*eos_token_ids, *params.stop_token_ids) if token < vocab_size})
            self._endings = np.array(endings, np.int64)
        self._allowed_mask: torch.Tensor | None = None
        self.needs = self._find_needs()

    @property
    def greedy(self) -> bool:
        """Only the likeliest token can come out."""
        return not self.needs & DRAWS

    @property
    def allowed_mask(self) -> torch.Tensor | None:
        """Tokens that may come next [vocab] (bool); `None` allows all. Whoever sets it keeps it up to date."""
        return self._allowed_mask

    @allowed_mask.setter
    def allowed_mask(self, mask: torch.Tensor | None) -> None:
        self._allowed_mask = mask
        self.needs = self._find_needs()

    def append(self, token_id: int) -> None:
        """Take note of the answer's next token; the cost does not depend on how many there are."""
        self.num_output += 1
        if self.penalties is not None:
            self.penalties.add(token_id)
        if self._bad_words is not None:
            self._bad_words_state = self._bad_words.advance(self._bad_words_state, token_id)
        if self._endings is not None and self.num_output >= self.params.min_tokens:
            self._endings = None
            self.needs = self._find_needs()

    def forbidden(self) -> list[Ids]:
        """Tokens that must not come next, in pieces: ends before `min_tokens`, and ends of bad words."""
        pieces = [] if self._endings is None else [self._endings]
        if self._bad_words is not None:
            pieces += self._bad_words.forbidden(self._bad_words_state)
        return pieces

    def uniform(self, ahead: int = 0) -> float:
        """The random number for the next token, or for the one so many after it, in [0, 1)."""
        return uniform(self.seed, self.num_output + ahead)

    def _find_needs(self) -> int:
        adjusts = (self.penalties, self.bias, self.allowed, self._bad_words, self._endings, self._allowed_mask)
        needs = ADJUSTS if any(part is not None for part in adjusts) else 0
        if self.temperature >= GREEDY_BELOW and self.top_k != 1:
            needs |= DRAWS
        if self.params.logprobs is not None:
            needs |= REPORTS
        return needs
