"""Our engine, whole: its scheduler, its block manager, its sampler."""

from __future__ import annotations

import time
from importlib import metadata


class Backend:
    """`LLMEngine` in this process.

    Args:
        model: safetensors folder.
        dtype: `float32` or `bfloat16`.
        max_batch: sequences at once.
        max_len: tokens of prompt and answer together.
    """

    def __init__(self, model: str, dtype: str, max_batch: int, max_len: int) -> None:
        from paceline_crds.runtime_config import WeightType
        from paceline_runtime.config import resolve
        from paceline_runtime.engine.llm import LLMEngine

        flags = {
            "max_num_seqs": max_batch,
            "max_model_len": max(max_len, 256),
            "prefix_caching": False,
            "kv_cache_memory": "1Gi",
            "dtype": {"float32": WeightType.FLOAT32, "bfloat16": WeightType.BFLOAT16}[dtype],
        }
        self._engine = LLMEngine(resolve(source=model, flags=flags, environ={}))
        if self._engine.ready.dtype != dtype:
            raise ValueError(f"the engine holds weights as {self._engine.ready.dtype}, not as {dtype}")

    def versions(self) -> dict[str, str]:
        """What is measured."""
        return {"paceline": metadata.version("paceline"), "torch": metadata.version("torch")}

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """Greedy tokens for each prompt, all in one batch, end-of-sequence ignored."""
        from paceline_runtime.messages import AddRequest, SamplingParams

        sampling = SamplingParams(max_tokens=new_tokens, temperature=0, ignore_eos=True)
        made: dict[str, list[int]] = {}
        for number, prompt in enumerate(prompts):
            made[str(number)] = []
            self._engine.add_request(
                AddRequest(
                    request_id=str(number), prompt_token_ids=prompt, sampling=sampling, arrival_time=time.monotonic()
                )
            )
        while (step := self._engine.step()) is not None:
            for output in step.outputs:
                if output.message is not None:
                    raise RuntimeError(output.message)
                made[output.request_id] += output.new_token_ids
        return list(made.values())
