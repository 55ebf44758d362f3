"""What is kept of each answer besides its blocks, and what is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline_runtime.messages import FinishReason, TokenLogprob, TokenOutput
from paceline_runtime.model.sampling import Sampled, SamplingState

from .request import Request
from .scheduler import Finished


@dataclass(slots=True)
class Answer:
    """The sampler's state of one answer, which a preempted request takes along.

    Attributes:
        reported: tokens of the prompt whose log-probabilities were told.
        told: whether an output with a token was sent.
    """

    sampling: SamplingState
    reported: int = 0
    told: bool = False


def answer_of(request: Request, eos_token_ids: Sequence[int], vocab_size: int) -> Answer:
    """A request's answer, begun at the first call."""
    if not isinstance(request.sampling_state, Answer):
        prompt = request.tokens[: request.prompt_len]
        request.sampling_state = Answer(
            SamplingState(request.sampling, request.seed, prompt, eos_token_ids, vocab_size)
        )
    return request.sampling_state


def prompt_positions(request: Request, count: int) -> range:
    """Positions among the next `count` tokens after which the next token of the prompt is to be looked at.

    Empty where nobody asked, and for what was told before (a preempted request computes its prompt again). After the
    prompt's last token there is none of it left.
    """
    if request.sampling.prompt_logprobs is None or not isinstance(request.sampling_state, Answer):
        return range(0)
    start, told = request.num_computed, request.sampling_state.reported
    return range(max(start, told - 1), min(start + count, request.prompt_len - 1))


def token_output(
    request: Request,
    tokens: list[int],
    ended: Finished | None,
    now: float,
    *,
    sampled: Sampled | None = None,
    prompt_logprobs: list[TokenLogprob | None] | None = None,
) -> TokenOutput:
    """What the front end is told after a step."""
    answer = request.sampling_state
    first = bool(tokens) and isinstance(answer, Answer) and not answer.told
    if tokens and isinstance(answer, Answer):
        answer.told = True
    message = ended.message if ended else None
    if ended is not None and ended.reason is FinishReason.ERROR and sampled is not None and sampled.fault:
        message = sampled.fault
    admitted = request.admitted_at
    return TokenOutput(
        request_id=request.request_id,
        new_token_ids=tokens,
        logprobs=[sampled.logprob] if tokens and sampled is not None and sampled.logprob is not None else None,
        prompt_logprobs=prompt_logprobs,
        finish_reason=ended.reason if ended else None,
        stop_token_id=ended.stop_token_id if ended else None,
        message=message,
        num_cached_tokens=request.num_cached,
        queue_seconds=max(admitted - request.arrival_time, 0.0) if first and admitted is not None else None,
        prefill_seconds=now - admitted if first and admitted is not None else None,
        num_preemptions=request.num_preemptions,
    )
