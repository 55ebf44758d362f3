"""llama.cpp through its C interface: one `llama_batch` per step over all sequences, greedy by its own sampler."""

from __future__ import annotations

import ctypes
import os
from importlib import metadata
from typing import Any

CELLS = 256
"""llama.cpp rounds a sequence's room up to this many tokens."""
STEP_TOKENS = 2048


class Backend:
    """A context of llama.cpp.

    Args:
        model: GGUF file.
        dtype: of its matrices.
        max_batch: sequences at once.
        max_len: tokens of prompt and answer together.
    """

    def __init__(self, model: str, dtype: str, max_batch: int, max_len: int) -> None:
        import llama_cpp  # type: ignore[import-not-found]

        self._api: Any = llama_cpp
        self._api.llama_backend_init()
        options = self._api.llama_model_default_params()
        options.n_gpu_layers = 0
        self._model = self._api.llama_model_load_from_file(model.encode(), options)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        threads = int(os.environ["OMP_NUM_THREADS"])
        context = self._api.llama_context_default_params()
        # A stream of its own for each sequence: one for all makes each attend over the room of all.
        context.kv_unified = False
        context.n_ctx = max_batch * (-(-max_len // CELLS) * CELLS)
        context.n_batch = context.n_ubatch = STEP_TOKENS
        context.n_seq_max = max_batch
        context.n_threads = context.n_threads_batch = threads
        self._context = self._api.llama_init_from_model(self._model, context)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        self._sampler = self._api.llama_sampler_init_greedy()
        self._batch = self._api.llama_batch_init(STEP_TOKENS, 0, 1)

    def versions(self) -> dict[str, str]:
        """What is measured."""
        return {"llama-cpp-python": metadata.version("llama-cpp-python")}

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """As in `on_paceline`."""
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), False)
        made: list[list[int]] = [[] for _ in prompts]
        group: list[int] = []
        for number in range(len(prompts)):  # as many prompts in one call as fit
            if sum(len(prompts[n]) for n in (*group, number)) > STEP_TOKENS:
                self._prefill(prompts, group, made)
                group = []
            group.append(number)
        self._prefill(prompts, group, made)
        for step in range(new_tokens - 1):
            self._run([(n, len(prompts[n]) + step, made[n][-1], True) for n in range(len(prompts))], made)
        return made

    def _prefill(self, prompts: list[list[int]], group: list[int], made: list[list[int]]) -> None:
        last = {n: len(prompts[n]) - 1 for n in group}
        self._run([(n, at, token, at == last[n]) for n in group for at, token in enumerate(prompts[n])], made)

    def _run(self, rows: list[tuple[int, int, int, bool]], made: list[list[int]]) -> None:
        """One decode over rows of (sequence, position, token, whether its logits are wanted)."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (sequence, position, token, wanted) in enumerate(rows):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = ctypes.c_int8(wanted)
        status = self._api.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        for index, (sequence, _, _, wanted) in enumerate(rows):
            if wanted:
                made[sequence].append(self._api.llama_sampler_sample(self._sampler, self._context, index))
