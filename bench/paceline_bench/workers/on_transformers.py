"""HF transformers: `generate` over a static batch, or `generate_batch` with continuous batching over paged blocks."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import torch

PAGE = 32
"""Tokens in a block of the paged cache."""


class Backend:
    """A model of `AutoModelForCausalLM`; `continuous` chooses `generate_batch`. Arguments else as in `on_paceline`."""

    def __init__(self, model: str, dtype: str, max_batch: int, max_len: int, continuous: bool) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        self._continuous = continuous
        self._max_batch, self._max_len = max_batch, max_len
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()
        # With an end-of-sequence token these would stop at it, or never choose it; the others go on past it.
        self._model.generation_config.eos_token_id = None

    def versions(self) -> dict[str, str]:
        """What is measured."""
        return {name: metadata.version(name) for name in ("transformers", "torch")}

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """As in `on_paceline`."""
        with torch.inference_mode():
            return self._paged(prompts, new_tokens) if self._continuous else self._static(prompts, new_tokens)

    def _static(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        made = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens, pad_token_id=0
        )
        tokens: list[list[int]] = made[:, ids.shape[1] :].tolist()
        return tokens

    def _paged(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        outputs = self._model.generate_batch(
            inputs=prompts,
            generation_config=GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE,
                num_blocks=self._max_batch * (self._max_len // PAGE + 2),
                max_batch_tokens=2048,
                allow_block_sharing=False,
            ),
            persistent_manager=True,
        )
        if len(outputs) != len(prompts):
            raise RuntimeError(f"{len(outputs)} of {len(prompts)} prompts were answered")
        return [list(output.generated_tokens) for output in outputs.values()]
