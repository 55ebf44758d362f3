"""Logits on given tokens in each type, as prompts and as decodes: how far from float32, beside transformers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from paceline_runtime.model.checkpoint import open_checkpoint
from paceline_runtime.model.device.memory import LargestSteps
from paceline_runtime.model.runner import ModelRunner, SequenceInput
from paceline_runtime.model.source import locate

from .models import SMALL, write_small
from .record import Record

TOKENS, DECODED = 160, 32
"""Of the sequence, and how many of its last ones are computed one by one."""
FEW_TOKENS, FEW_DECODED = 40, 4
"""The same in a dry run: types of 16 bits are slow on a processor that does not compute in them."""
ALLOWED = 1.5
"""Times the error of transformers in the same type on the same device: each rounds at other places."""
EXACT = 1e-4
"""Error of float32 as a share of the logits' size: sums in another order."""


KEPT = (torch.int8, torch.float8_e4m3fn)
"""Types of 8-bit caches."""


def run(record: Record) -> None:
    """Root mean square errors of logits in each type, and in bfloat16 over 8-bit caches, over that of the logits."""
    device = torch.device("cuda" if record.measuring else "cpu")
    tokens, decoded = (TOKENS, DECODED) if record.measuring else (FEW_TOKENS, FEW_DECODED)
    ids = [(7 * i * i + 3 * i) % (SMALL["vocab_size"] - 3) + 3 for i in range(tokens)]
    with tempfile.TemporaryDirectory() as folder:
        model = write_small(Path(folder))
        exact = _theirs(model, ids, torch.float32, torch.device("cpu"))
        size = exact.square().mean().sqrt()

        def error_of(rows: torch.Tensor) -> float:
            return float((rows - exact[-len(rows) :]).square().mean().sqrt() / size)

        def judge(how: str, error: float, allowed: float, beside: str, **params: str) -> None:
            words = f"error {error:.1e} of the logits' size, {allowed:.1e} is allowed; {beside}"
            record.check(f"logits {' over '.join(params.values())} as {how}", error <= allowed, words)
            record.figure("logits_error", error, "share", how=how, **params)

        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            name = str(dtype).removeprefix("torch.")
            theirs = error_of(_theirs(model, ids, dtype, device))
            allowed = EXACT if dtype is torch.float32 else ALLOWED * theirs
            for how, rows in _ours(model, ids, decoded, dtype, device).items():
                judge(how, error_of(rows), allowed, f"transformers {theirs:.1e}", dtype=name)
            record.figure("logits_error", theirs, "share", system="transformers", dtype=name, how="prompt")
            if dtype is not torch.bfloat16:
                continue
            for kept in KEPT:
                cache = str(kept).removeprefix("torch.")
                # What the rounding of keys and values alone makes of them.
                rounding = error_of(_ours(model, ids, decoded, torch.float32, torch.device("cpu"), kept)["prompt"])
                for how, rows in _ours(model, ids, decoded, dtype, device, kept).items():
                    allowed = ALLOWED * (theirs + rounding)
                    judge(how, error_of(rows), allowed, f"float32 on a CPU {rounding:.1e}", dtype=name, cache=cache)


@torch.inference_mode()
def _theirs(model: Path, ids: list[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(device)
    logits: torch.Tensor = loaded(torch.tensor([ids], device=device)).logits[0].float().cpu()
    return logits


def _ours(
    model: Path, ids: list[int], decoded: int, dtype: torch.dtype, device: torch.device, kept: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """Logits of all tokens as one prompt, and of the last ones as decodes after it."""
    runner = ModelRunner(
        open_checkpoint(locate(model.as_uri())),
        device=device,
        dtype=dtype,
        kv_dtype=kept,
        block_size=16,
        max_model_len=256,
    )
    runner.allocate_cache(32)
    largest = LargestSteps(max_batched_tokens=256, chunk_tokens=256, max_num_seqs=2, max_model_len=256)
    runner.warm_up(largest)
    # From all over the cache.
    blocks = list(range(30, 8, -2))
    prompt = runner.forward(runner.prepare([SequenceInput(ids, 0, blocks, len(ids))])).float().cpu()
    start = len(ids) - decoded
    decodes = [
        runner.forward(runner.prepare([SequenceInput([ids[at]], at, blocks, 1)])).float().cpu()
        for at in range(start, len(ids))
    ]
    return {"prompt": prompt, "decodes": torch.cat(decodes)}
