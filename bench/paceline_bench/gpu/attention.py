"""How fast the attention kernels are: decode against the device's copy, prompts against PyTorch's own attention.

Over 8-bit caches, too: there the same time is fewer bytes, and what counts is the time beside the plain cache's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from paceline_runtime.kernels.interface import SCALE_BYTES, AttentionOptions, KVCache, select
from paceline_runtime.kernels.plan import AttentionPlan, AttentionShape, plan_attention

from .record import Record
from .timing import copy_bandwidth, seconds_of

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 32, 8, 128, 16
DECODES = ((256, 1024), (64, 4096), (8, 32768), (1, 131072))
"""Sequences and context: about a gigabyte of cache each, many times what a device's own caches hold."""
NARROW = (torch.float8_e4m3fn, torch.int8)
"""Types of 8-bit caches; at the second size of decodes and the first of prompts."""
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
        for kept in NARROW if (seqs, context) in DECODES[1:2] or not record.measuring else ():
            _decode(record, device, seqs, context, copied, kept)
    for new, length in PROMPTS if record.measuring else ((20, 40),):
        if record.left < 3:
            record.note("prompt attention was cut short: no time")
            break
        _prompt(record, device, new, length)
        for kept in NARROW if (new, length) == PROMPTS[0] or not record.measuring else ():
            _narrow_prompt(record, device, new, length, kept)


def _decode(
    record: Record,
    device: torch.device,
    seqs: int,
    context: int,
    copied: float,
    kept: torch.dtype = torch.bfloat16,
) -> None:
    plan, cache, query = _step(device, [1] * seqs, [context] * seqs, kept)
    out, kernels, options = torch.empty_like(query), select(device), AttentionOptions.plain(HEAD_DIM)
    seconds = seconds_of(lambda: kernels.decode_attention(query, cache, plan, options, out), device)
    # Keys and values, with their scales; the copy, too, is counted by what moves.
    read = 2 * seqs * context * KV_HEADS * (HEAD_DIM * kept.itemsize + SCALE_BYTES * cache.quantised) / seconds
    params: dict[str, Any] = {"seqs": seqs, "context": context, "splits": plan.num_splits, "cache": _name(kept)}
    record.figure("decode_attention", seconds * 1e6, "us", **params)
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
    for system, seconds in (("paceline", ours), ("torch-sdpa", theirs)):
        rate = _operations(new, length) / seconds / 1e12
        record.figure("prompt_attention", rate, "TFLOP/s", system=system, new=new, length=length, cache="bfloat16")


def _narrow_prompt(record: Record, device: torch.device, new: int, length: int, kept: torch.dtype) -> None:
    plan, cache, query = _step(device, [new], [length], kept)
    out, kernels, options = torch.empty_like(query), select(device), AttentionOptions.plain(HEAD_DIM)
    seconds = seconds_of(lambda: kernels.varlen_attention(query, cache, plan, options, out), device)
    record.figure(
        "prompt_attention",
        _operations(new, length) / seconds / 1e12,
        "TFLOP/s",
        new=new,
        length=length,
        cache=_name(kept),
    )


def _operations(new: int, length: int) -> float:
    """Two products over what each new token sees."""
    return 4 * HEADS * HEAD_DIM * new * (length - new + (new + 1) / 2)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cache(kept: torch.dtype, shape: tuple[int, ...], device: torch.device) -> KVCache:
    """Random keys and values, with scales for each token and head where they are kept in 8 bits."""
    if kept is torch.bfloat16:
        return KVCache(*(torch.randn(shape, device=device, dtype=kept) for _ in range(2)))
    # Codes below 0x70 are numbers in both types, and none is the largest.
    codes = (torch.randint(0, 0x70, shape, device=device, dtype=torch.uint8).view(kept) for _ in range(2))
    return KVCache(*codes, *(torch.full(shape[:3], 0.01, device=device) for _ in range(2)))


def _step(
    device: torch.device, new: list[int], lengths: list[int], kept: torch.dtype = torch.bfloat16
) -> tuple[AttentionPlan, KVCache, torch.Tensor]:
    """A step over a cache whose blocks lie anywhere."""
    torch.manual_seed(0)
    blocks = [-(-length // BLOCK) for length in lengths]
    order = torch.randperm(sum(blocks))
    table = torch.zeros((len(new), max(blocks)), dtype=torch.int32)
    for row, (end, count) in enumerate(zip(np.cumsum(blocks), blocks, strict=True)):
        table[row, :count] = order[end - count : end]
    shape = (sum(blocks), BLOCK, KV_HEADS, HEAD_DIM)
    cache = _cache(kept, shape, device)
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
