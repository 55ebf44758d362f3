"""Drawing tokens by sorting the vocabulary."""

from __future__ import annotations

import torch


def sample(
    scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor, uniform: torch.Tensor
) -> torch.Tensor:
    """See `Kernels.sample`."""
    ids, running = ranked(scaled, top_k, top_p, min_p)
    target = (uniform * running[:, -1]).unsqueeze(1)
    last = torch.searchsorted(running, running[:, -1:].contiguous())
    rank = torch.minimum(torch.searchsorted(running, target, right=True), last)
    return ids.gather(1, rank.clamp(max=ids.shape[1] - 1)).squeeze(1)


def ranked(
    scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids in the order of the draw [R, V], and the running sums (float64) of the weights of those that stay."""
    ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
    everything = (top_k >= scaled.shape[1]) & (top_p >= 1.0) & (min_p <= 0.0)
    ids = torch.where(everything.unsqueeze(1), torch.arange(scaled.shape[1], device=scaled.device), ids)
    weights = (scaled.gather(1, ids) - ordered[:, :1]).double().exp()
    weights[torch.arange(weights.shape[1], device=weights.device) >= top_k.unsqueeze(1)] = 0.0
    running = weights.cumsum(dim=-1)
    keep = weights >= min_p.double().unsqueeze(1)
    keep[:, 1:] &= running[:, :-1] < top_p.double().unsqueeze(1) * running[:, -1:]
    return ids, (weights * keep).cumsum(dim=-1)
