"""CTranslate2's generator: a static batch through its own C++ kernels."""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any


class Backend:
    """`ctranslate2.Generator` over the folder converted once, kept beside it. Arguments as in `on_paceline`."""

    def __init__(self, model: str, dtype: str, max_batch: int, max_len: int) -> None:
        import ctranslate2  # type: ignore[import-not-found]

        able = ctranslate2.get_supported_compute_types("cpu")
        if dtype not in able:
            raise ValueError(f"CTranslate2 does not compute in {dtype} on this CPU, only in {', '.join(sorted(able))}")
        source = Path(model)
        converted = source.with_name(f"{source.name}.ct2-{dtype}")
        if not converted.exists():
            from ctranslate2.converters import TransformersConverter  # type: ignore[import-not-found]

            unfinished = converted.with_name(f".{converted.name}-{os.getpid()}")
            TransformersConverter(model).convert(str(unfinished), quantization=dtype)
            unfinished.rename(converted)
        threads = int(os.environ["OMP_NUM_THREADS"])
        self._max_batch = max_batch
        self._generator: Any = ctranslate2.Generator(
            str(converted), device="cpu", compute_type=dtype, inter_threads=1, intra_threads=threads
        )
        vocabulary = json.loads((converted / "vocabulary.json").read_text(encoding="utf-8"))
        self._tokens: list[str] = vocabulary

    def versions(self) -> dict[str, str]:
        """What is measured."""
        return {"ctranslate2": metadata.version("ctranslate2")}

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """As in `on_paceline`, but an end-of-sequence token is never chosen before the end."""
        results = self._generator.generate_batch(
            [[self._tokens[token] for token in prompt] for prompt in prompts],
            max_batch_size=self._max_batch,
            max_length=new_tokens,
            min_length=new_tokens,
            sampling_topk=1,
            beam_size=1,
            include_prompt_in_result=False,
            cache_static_prompt=False,
        )
        return [list(result.sequences_ids[0]) for result in results]
