"""What the model thought of the tokens that were chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch

from paceline_runtime.messages import TokenLogprob
from paceline_runtime.model.sampling.order import largest, num_larger
from paceline_runtime.model.sampling.threads import one_thread

_SLICE_LOGITS: Final = 1 << 22
"""How many logits of a prompt are looked at together: 16 MiB of float32, and a few times this for what is between."""


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> list[TokenLogprob | None]:
    """Log-probability and rank of one token of each row, and the likeliest ones.

    Args:
        logits: [R, vocab] (float32, contiguous).
        token_ids: one for each row.
        counts: how many of the likeliest each row reports.

    Returns:
        One entry a row; `None` where the logits are no numbers.
    """
    logprobs = logits.log_softmax(dim=-1)
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    values: list[float] = logprobs.gather(1, chosen).squeeze(1).tolist()
    larger = num_larger(logits, logits.gather(1, chosen))
    tops: list[list[tuple[int, float]]] = [[] for _ in token_ids]
    if any(counts):
        places = largest(logits, max(counts))[1]
        best = logprobs.gather(1, places)
        tops = [list(zip(*row, strict=True)) for row in zip(places.tolist(), best.tolist(), strict=True)]
    return [
        None if math.isnan(value) else TokenLogprob(token, value, 1 + above, _possible(top[:count]))
        for token, value, above, top, count in zip(token_ids, values, larger, tops, counts, strict=True)
    ]


def _possible(top: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    return tuple(entry for entry in top if entry[1] != -math.inf)


def prompt_logprobs(logits: torch.Tensor, next_token_ids: Sequence[int], count: int) -> list[TokenLogprob | None]:
    """What the model thought of each token of a part of a prompt.

    Args:
        logits: [n, vocab] (float32): of the positions before these tokens.
        next_token_ids: the tokens [n].
        count: how many of the likeliest are reported with each.

    Returns:
        One entry a token; `None` where the logits are no numbers. A token that cannot come has -inf.
    """
    step = max(1, _SLICE_LOGITS // logits.shape[-1])
    found: list[TokenLogprob | None] = []
    with torch.inference_mode(), one_thread():
        for start in range(0, len(next_token_ids), step):
            ids = next_token_ids[start : start + step]
            found += token_logprobs(logits[start : start + step].contiguous(), ids, [count] * len(ids))
    return found
