"""Drawing tokens: the same one as the reference, unless the random number is at a border."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from paceline_runtime.kernels.check.parity import Case, Outcome
from paceline_runtime.kernels.interface import Kernels
from paceline_runtime.kernels.reference.sampling import ranked

ALLOWED = 1e-5
"""How far, as a share of the whole weight, a draw may be from the drawn token: weights are float32 on a GPU."""
SHAPES = ("normal", "peaked", "tied", "masked")


def sampling_cases(gpu: Kernels, *, full: bool) -> Iterator[Case]:
    """Flat, peaked, tied and masked rows with all ways to cut; the largest vocabulary needs several readings."""
    some = [(1, "normal"), (97, "peaked"), (97, "masked"), (500, "tied"), (500, "peaked"), (4100, "normal")]
    every = [(vocab, shape) for vocab in (1, 2, 97, 500, 4100, 32000) for shape in SHAPES]
    for vocab, shape in every if full else some:
        yield Case("sample", torch.float32, f"{shape}, vocabulary {vocab}", partial(_sample, gpu, shape, vocab))


def _sample(gpu: Kernels, shape: str, vocab: int, device: torch.device) -> Outcome:
    torch.manual_seed(vocab)
    top_k = torch.tensor([vocab, 1, 5, vocab, vocab, 40, vocab, vocab])
    top_p = torch.tensor([0.9, 1.0, 0.5, 1e-6, 1.0, 0.95, 1.0, 1.0]).double()
    min_p = torch.tensor([0.0, 0.0, 0.01, 0.0, 0.05, 0.001, 0.0, 0.0]).double()
    rows = len(top_k)
    logits = torch.randn(rows, vocab) * (20 if shape == "peaked" else 2)
    if shape == "tied":
        logits = logits.round()
    if shape == "masked":
        logits[torch.rand(rows, vocab) < 0.5] = -torch.inf
        logits[:, vocab // 2] = 0.0
    logits -= logits.max(dim=-1, keepdim=True).values
    uniform = torch.rand(rows, dtype=torch.float64)
    uniform[:2] = torch.tensor([0.0, 1.0 - 2**-53])
    uniform[-1] = 1.0 - 2**-53
    logits, top_k, top_p, min_p, uniform = (t.to(device) for t in (logits, top_k, top_p, min_p, uniform))
    tokens = gpu.sample(logits, top_k, top_p, min_p, uniform)
    ids, running = ranked(logits, top_k, top_p, min_p)
    rank = (ids == tokens.unsqueeze(1)).int().argmax(dim=-1, keepdim=True)
    whole = running[:, -1:]
    low = torch.where(rank > 0, running.gather(1, (rank - 1).clamp(min=0)), 0.0) / whole
    high = running.gather(1, rank) / whole
    at = uniform.unsqueeze(1)
    # A token that does not stay has no width: it is as far away as the draw is from its place.
    outside = torch.maximum((low - at).clamp(min=0), (at - high).clamp(min=0))
    outside = torch.where(high > low, outside, 1.0)
    return Outcome(float(outside.max()), ALLOWED)
