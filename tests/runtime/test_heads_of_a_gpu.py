"""A model whose heads the kernels of a GPU do not take is refused before anything of it is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline_runtime.config import resolve
from paceline_runtime.engine import startup
from paceline_runtime.model.source import ModelInvalid


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"head_dim": 12}, "heads have 12 elements; a multiple of 8 from 16 to 256 is needed"),
        (
            {"num_attention_heads": 65, "num_key_value_heads": 1, "head_dim": 16, "hidden_size": 1040},
            "65 query heads share a key-value head; at most 64 can",
        ),
    ],
    ids=["head size", "group"],
)
def test_heads_that_a_gpu_does_not_take_are_told_before_weights_are_read(
    tiny_model_factory: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, int], words: str
) -> None:
    config = resolve(
        source=tiny_model_factory(**options).as_uri(),
        flags={"max_model_len": 64, "kv_cache_memory": "1Mi"},
        environ={"PACELINE_NATIVE": "0"},
    )
    read: list[object] = []
    monkeypatch.setattr(startup, "digest", read.append)
    monkeypatch.setattr(startup, "ModelRunner", read.append)
    monkeypatch.setattr(startup, "pick_device", lambda asked: (torch.device("cuda"), torch.bfloat16))
    with pytest.raises(ModelInvalid, match=f"do not take this model: {words}; serve it on a CPU"):
        startup.start(config)
    assert read == []
