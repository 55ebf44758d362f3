"""When an answer is complete."""

from __future__ import annotations

from dataclasses import dataclass

from paceline_runtime.messages import FinishReason

from .request import Request


@dataclass(frozen=True, slots=True)
class Finished:
    """Why a request ended, and the token that did it (if one did)."""

    reason: FinishReason
    stop_token_id: int | None = None
    message: str | None = None


def ending(request: Request, token: int, eos_token_ids: frozenset[int]) -> Finished | None:
    """How a request ends with its newest token, which is among `request.tokens`; `None` if it goes on."""
    sampling = request.sampling
    if (not sampling.ignore_eos and token in eos_token_ids) or token in sampling.stop_token_ids:
        return Finished(FinishReason.STOP, stop_token_id=token)
    if len(request.tokens) >= request.max_len:
        return Finished(FinishReason.LENGTH)
    return None
