"""What the makers of the models of the catalogue publish about their size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline_planner.models import KNOWN


@dataclass(frozen=True)
class Public:
    """Published parameters in billions, and KV cache for one token in bytes (16 bit) where somebody published it."""

    config: Mapping[str, Any]
    billions: float
    active_billions: float | None
    source: str
    kv_bytes: int | None = None
    kv_source: str = ""


def _of(name: str, *published: Any) -> Public:
    return Public(KNOWN[name].config, *published)


MODELS: dict[str, Public] = {
    name: _of(name, *published)
    for name, *published in (
        (
            "Llama-3.1-8B",
            8.03,
            None,
            "model card of meta-llama/Llama-3.1-8B",
            131072,
            "0.125 MiB for 32 layers x 8 heads x 128 (requirements, L1)",
        ),
        ("Llama-3.1-70B", 70.6, None, "model card of meta-llama/Llama-3.1-70B", 327680, "80 x 8 x 128 x 2 x 2"),
        ("Mistral-7B-v0.1", 7.24, None, "model card of mistralai/Mistral-7B-v0.1"),
        ("Mixtral-8x7B", 46.7, 12.9, "Mixtral of Experts (arXiv:2401.04088) and its announcement"),
        ("Qwen2.5-7B", 7.61, None, "model card of Qwen/Qwen2.5-7B"),
        ("Qwen3-30B-A3B", 30.5, 3.3, "model card of Qwen/Qwen3-30B-A3B"),
        (
            "DeepSeek-V3",
            671.0,
            37.0,
            "DeepSeek-V3 Technical Report (arXiv:2412.19437)",
            70272,
            "70.272 KB: Insights into DeepSeek-V3 (arXiv:2505.09343), table 1",
        ),
        (
            "Gemma-2-9B",
            9.24,
            None,
            "Gemma 2 (arXiv:2408.00118), table 2: 917,962,752 embedding and 8,324,201,984 other parameters",
        ),
        ("Phi-3-mini-4k", 3.82, None, "model card of microsoft/Phi-3-mini-4k-instruct"),
        ("gpt-oss-20b", 20.9, 3.6, "gpt-oss model card (arXiv:2508.10925), table 1"),
        ("SmolLM2-135M", 0.135, None, "model card of HuggingFaceTB/SmolLM2-135M"),
        ("Llama-3.2-1B", 1.23, None, "model card of meta-llama/Llama-3.2-1B"),
        ("Llama-3.2-3B", 3.21, None, "model card of meta-llama/Llama-3.2-3B"),
        ("SmolLM2-360M", 0.362, None, "model card of HuggingFaceTB/SmolLM2-360M"),
        ("SmolLM2-1.7B", 1.71, None, "model card of HuggingFaceTB/SmolLM2-1.7B"),
    )
}
