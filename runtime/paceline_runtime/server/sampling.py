"""From a request to what the engine is told, checked against the model: whatever becomes an index is a real token."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from paceline_runtime.messages import SamplingParams

from .errors import bad_request
from .request_models import ChatRequest, CompletionRequest
from .request_parsing import max_tokens_of
from .tokenizer import Tokenizer


def sampling_params(request: ChatRequest | CompletionRequest, tokenizer: Tokenizer, vocab_size: int) -> SamplingParams:
    """How the engine shall choose tokens; `top_k: -1` is how some clients write "all".

    Args:
        vocab_size: ids are below this, in the tokenizer and in the model.

    Raises:
        ApiError: 400 naming the field with an id that the model does not have.
    """
    check_ids(request.stop_token_ids, vocab_size, "stop_token_ids")
    allowed = request.allowed_token_ids or ()
    if len(allowed) > vocab_size:
        raise bad_request(
            f"'allowed_token_ids' has {len(allowed)} ids; the model has {vocab_size}.",
            "allowed_token_ids",
            "invalid_value",
        )
    check_ids(allowed, vocab_size, "allowed_token_ids")
    check_ids(request.logit_bias, vocab_size, "logit_bias")
    echoed = request.logprobs if isinstance(request, CompletionRequest) and request.echo else None
    wanted = [k for k in (request.prompt_logprobs, echoed) if k is not None]
    return SamplingParams(
        max_tokens=max_tokens_of(request),
        min_tokens=request.min_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=max(request.top_k, 0),
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        logit_bias=request.logit_bias,
        allowed_token_ids=None if request.allowed_token_ids is None else tuple(request.allowed_token_ids),
        bad_words=bad_word_sequences(request.bad_words, tokenizer, vocab_size),
        seed=request.seed,
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        logprobs=_logprobs(request),
        prompt_logprobs=max(wanted, default=None),
    )


def _logprobs(request: ChatRequest | CompletionRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        return request.logprobs
    return request.top_logprobs or 0 if request.logprobs else None


def check_ids(token_ids: Collection[int], vocab_size: int, param: str) -> None:
    """Raises: ApiError: 400 for an id that is no token of the model."""
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return  # told quickly: there may be a million
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise bad_request(
                f"{param!r} has the token id {token_id}; the model's ids are 0 to {vocab_size - 1}.",
                param,
                "invalid_value",
            )


def bad_word_sequences(words: Iterable[str], tokenizer: Tokenizer, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """The token sequences of each word as a text begins with it and as it follows a blank.

    A word may have other spellings in tokens still (split in the middle by the text around it); these two are the ones
    that a model writes by itself.

    Raises:
        ApiError: 400 for a word that the model cannot write.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for n, word in enumerate(words):
        bare = word.lstrip()
        for form in (bare, f" {bare}"):
            token_ids = tuple(tokenizer.encode(form, add_special_tokens=False))
            if not bare or not token_ids or max(token_ids) >= vocab_size:
                raise bad_request(f"bad_words.{n} is no word that this model could write.", f"bad_words.{n}")
            sequences[token_ids] = None
    return tuple(sequences)
