"""What an engine should be told where nobody has said it: from the ledger of its model on its accelerator. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .fitting import nearest
from .ledger import Ledger, Setup, arithmetic, gib, kib, kv_bytes_per_token, ledger
from .shapes import ModelShape

MIB = 2**20

MOST_SEQS = 256
"""Past it a step's own bookkeeping grows faster than what the batch saves."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is given, None where it is left to the ledger, and what is usual. Tokens, requests, bytes.

    Attributes:
        usual_model_len, usual_num_seqs: a request of this length, and this many at a time, are the least that is aimed
            at; undercut only where the cache or the model has no more.
        most_num_seqs: a bound from elsewhere.
    """

    max_model_len: int | None
    max_num_seqs: int | None
    kv_cache_bytes: int | None
    usual_model_len: int
    usual_num_seqs: int
    most_num_seqs: int = MOST_SEQS


@dataclass(frozen=True, slots=True)
class Resolved:
    """All three, and the sum behind them as a sentence."""

    max_model_len: int
    max_num_seqs: int
    kv_cache_bytes: int
    words: str


LEAST_MODEL_LEN = 16
"""A cache that does not hold a request of so many tokens is of no use."""


class DoesNotFit(ValueError):
    """It cannot run; the message has the arithmetic and the nearest that can."""


def resolve(model: ModelShape, setup: Setup, asked: Asked, *, mapped_weights: bool = False) -> Resolved:
    """Cache, longest request and batch.

    - The cache takes what weights and margin leave, in whole MiB.
    - `max_model_len` is the longest power of two at which the whole batch fits, as far as the model was made for; never
      less than the usual length for the batch's sake.
    - `max_num_seqs` is what fits at that length, where that is more than usual, but not past the batch from which
      arithmetic takes over: beyond it every step takes longer. Where that is not known it stays as usual.

    Args:
        setup: of one device; our engine has no more.
        mapped_weights: they are read from files again where memory is short, as on a CPU: counted, but no reason to
            refuse a cache that somebody asked for.

    Raises:
        DoesNotFit: weights and cache are more than there is, or one request of the length that is asked for is more
            than the cache holds or the model was made for.
    """
    _require_made_for(model, asked.max_model_len)
    found = ledger(model, setup)
    least = asked.max_model_len or min(asked.usual_model_len, model.context_length or asked.usual_model_len)
    cache = asked.kv_cache_bytes
    if cache is None:
        if not found.fits:
            raise DoesNotFit(f"{arithmetic(found)}{_nearest(found, least)}")
        cache = found.kv_room // MIB * MIB
    else:
        _require_room(found, cache, least, mapped_weights)
    held = tokens_held(model, setup, cache)
    if asked.max_model_len is not None and asked.max_model_len > held and asked.kv_cache_bytes is None:
        words = f"a request of {asked.max_model_len} tokens does not fit: {arithmetic(found)}, {held} tokens"
        raise DoesNotFit(words + _nearest(found, asked.max_model_len))
    require_length(model, setup, cache, asked.max_model_len or LEAST_MODEL_LEN)
    length = asked.max_model_len or _length(model, asked, held)
    seqs = asked.max_num_seqs
    if seqs is None:
        most = min(found.compute_takes_over or 0, MOST_SEQS)
        seqs = min(max(asked.usual_num_seqs, min(held // length, most)), asked.most_num_seqs)
    words = f"{arithmetic(found)}; a cache of {gib(cache)} holds {held // length} requests of {length} tokens at a time"
    return Resolved(length, seqs, cache, words)


def tokens_held(model: ModelShape, setup: Setup, cache: int) -> int:
    """Tokens in the whole blocks of a cache of so many bytes. Our engine keeps the blocks of a sliding window too."""
    per_token = kv_bytes_per_token(model, setup.kv, setup.kv_scales, setup.devices)
    return cache // (per_token * setup.block_size) * setup.block_size


def require_length(model: ModelShape, setup: Setup, cache: int, length: int) -> None:
    """Check that one request has room in a cache of so many bytes; the accelerator's own figures are not looked at.

    Raises:
        DoesNotFit: it has not, or the model was not made for it.
    """
    _require_made_for(model, length)
    held = tokens_held(model, setup, cache)
    if length <= held:
        return
    per_token = kv_bytes_per_token(model, setup.kv, setup.kv_scales, setup.devices)
    needed = -(-length // setup.block_size) * setup.block_size * per_token
    shorter = f", or maxModelLen: {held} or less" if held >= LEAST_MODEL_LEN else ""
    raise DoesNotFit(
        f"a request of {length} tokens does not fit: kvCache.memory {gib(cache)} at {kib(per_token)} a token holds "
        f"{held} tokens; write kvCache.memory: {-(-needed // MIB)}Mi or more{shorter}"
    )


def _require_made_for(model: ModelShape, length: int | None) -> None:
    """A longer request than the model was made for is refused by the engine at its start; so it is told before."""
    most = model.context_length
    if length is not None and most is not None and length > most:
        raise DoesNotFit(
            f"a request of {length} tokens is longer than the {most} that this model was made for; write maxModelLen: "
            f"{most} or less"
        )


def _require_room(found: Ledger, cache: int, least: int, mapped_weights: bool) -> None:
    weights = 0 if mapped_weights else found.weights
    if weights + cache <= found.memory:
        return
    if not found.fits:
        raise DoesNotFit(f"{arithmetic(found)}{_nearest(found, least)}")
    beside = f"weights {gib(weights)} ({found.setup.weights}) and " if weights else ""
    raise DoesNotFit(
        f"{beside}kvCache.memory {gib(cache)} are more than the {gib(found.memory)} of {found.setup.accelerator.name}: "
        f"write kvCache.memory: {found.kv_room // MIB}Mi or less, or leave it out"
    )


def _length(model: ModelShape, asked: Asked, held: int) -> int:
    """The longest power of two at which the whole batch fits, within what model and cache have."""
    whole = held // (asked.max_num_seqs or asked.usual_num_seqs)
    longest = max(asked.usual_model_len, 1 << (whole.bit_length() - 1) if whole else 0)
    return min(longest, held, model.context_length or longest)


def _nearest(found: Ledger, context: int) -> str:
    """What to write instead, as far as a spec can say it: one change each."""
    suggestions = nearest(found.model, found.setup, context, more_devices=False, narrower=("bf16",))
    if not suggestions:
        return "; nothing with one change does: take a smaller model"
    return f"; nearest that does: {', or '.join(suggestion.words for suggestion in suggestions)}"
