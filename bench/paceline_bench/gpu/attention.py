"""How fast the attention kernels are: decode against the device's copy, prompts against PyTorch's own attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from paceline_runtime.kernels.interface import AttentionOptions, KVCache, select
from paceline_runtime.kernels.plan import AttentionPlan, AttentionShape, plan_attention

from .record import Record
from .timing import copy_bandwidth, seconds_of

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 32, 8, 128, 16
DECODES = ((256, 1024), (64, 4096), (8, 32768), (1, 131072))
"""Sequences and context: about a gigabyte of cache each, many times what a device's own caches hold."""
PROMPTS = ((4096, 4096), (8192, 8192), (2048, 16384))
"""New tokens of a sequence, and its tokens after them."""


def run(record: Record) -> None:
    """Effective bandwidth of decodes, and rates of prompts, in bfloat16."""
    device = torch.device("cuda" if record.measuring else "cpu")
    copied = copy_bandwidth(device, 4 << 30 if record.measuring else 1 << 20)
    record.figure("copy_bandwidth", copied / 1e9, "GB/s", system="device")
    for seqs, context in DECODES if record.measuring else ((3, 40),):
        if record.left < 3:
            record.note("decode attention was cut short: no time")
            break
        _decode(record, device, seqs, context, copied)
    for new, length in PROMPTS if record.measuring else ((20, 40),):
        if record.left < 3:
            record.note("prompt attention was cut short: no time")
            break
        _prompt(record, device, new, length)


def _decode(record: Record, device: torch.device, seqs: int, context: int, copied: float) -> None:
    plan, cache, query = _step(device, [1] * seqs, [context] * seqs)
    out, kernels, options = torch.empty_like(query), select(device), AttentionOptions.plain(HEAD_DIM)
    seconds = seconds_of(lambda: kernels.decode_attention(query, cache, plan, options, out), device)
    # Keys and values; the copy, too, is counted by what moves.
    read = 2 * seqs * context * KV_HEADS * HEAD_DIM * query.element_size() / seconds
    params: dict[str, Any] = {"seqs": seqs, "context": context, "splits": plan.num_splits, "dtype": "bfloat16"}
    record.figure("decode_bandwidth", read / 1e9, "GB/s", **params)
    record.figure("decode_bandwidth_of_copy", 100 * read / copied, "%", **params)


def _prompt(record: Record, device: torch.device, new: int, length: int) -> None:
    plan, cache, query = _step(device, [new], [length])
    out, kernels, options = torch.empty_like(query), select(device), AttentionOptions.plain(HEAD_DIM)
    ours = seconds_of(lambda: kernels.varlen_attention(query, cache, plan, options, out), device)
    # What PyTorch needs is in one piece, and gathering it is not counted.
    q = query.transpose(0, 1).unsqueeze(0)
    k, v = (
        t[plan.block_table[0].long()].flatten(0, 1)[:length].transpose(0, 1).unsqueeze(0).contiguous()
        for t in (cache.key, cache.value)
    )
    mask = None
    if new != length:
        position = torch.arange(length, device=device)
        mask = position[None, :] <= position[length - new :, None]

    def sdpa() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)

    theirs = seconds_of(sdpa, device)
    error = float((out.float() - sdpa()[0].transpose(0, 1).float()).abs().max())
    record.check(f"attention of {new} of {length} tokens", error < 0.05, f"differs from PyTorch's by {error:.1e}")
    # Two products over what each new token sees.
    operations = 4 * HEADS * HEAD_DIM * new * (length - new + (new + 1) / 2)
    for system, seconds in (("paceline", ours), ("torch-sdpa", theirs)):
        rate = operations / seconds / 1e12
        record.figure("prompt_attention", rate, "TFLOP/s", system=system, new=new, length=length, dtype="bfloat16")


def _step(device: torch.device, new: list[int], lengths: list[int]) -> tuple[AttentionPlan, KVCache, torch.Tensor]:
    """A step over a cache whose blocks lie anywhere."""
    torch.manual_seed(0)
    blocks = [-(-length // BLOCK) for length in lengths]
    order = torch.randperm(sum(blocks))
    table = torch.zeros((len(new), max(blocks)), dtype=torch.int32)
    for row, (end, count) in enumerate(zip(np.cumsum(blocks), blocks, strict=True)):
        table[row, :count] = order[end - count : end]
    shape = (sum(blocks), BLOCK, KV_HEADS, HEAD_DIM)
    cache = KVCache(*(torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2)))
    query = torch.randn((sum(new), HEADS, HEAD_DIM), device=device, dtype=torch.bfloat16)
    seq_lens, query_lens = np.array(lengths, dtype=np.int32), np.array(new, dtype=np.int32)
    starts = np.concatenate(([0], np.cumsum(query_lens))).astype(np.int32)
    on_gpu = device.type == "cuda"
    plan = plan_attention(
        table.to(device),
        torch.from_numpy(seq_lens).to(device),
        torch.from_numpy(starts).to(device),
        host_seq_lens=seq_lens,
        host_query_lens=query_lens,
        shape=AttentionShape(HEADS, KV_HEADS, HEAD_DIM, query.element_size()),
        processors=torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 1,
        to_device=lambda array: torch.from_numpy(array).to(device),
    )
    return plan, cache, query
