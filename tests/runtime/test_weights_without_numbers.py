"""A model that computes no numbers is refused at the start, and not found out by the first request."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from paceline_crds.conditions import EXIT_MODEL_INVALID
from paceline_runtime.config import resolve
from paceline_runtime.engine.startup import start
from paceline_runtime.model.source import ModelInvalid


@pytest.mark.parametrize("tensor", ["model.layers.0.mlp.down_proj.weight", "model.norm.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_end_the_start_with_words(
    tiny_model_dir: Path, tmp_path: Path, tensor: str, value: float
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_dir, folder)
    [path] = folder.glob("*.safetensors")
    weights = load_file(path)
    weights[tensor].view(-1)[3] = value
    save_file(weights, path, metadata={"format": "pt"})
    flags = {"kv_cache_memory": "8Mi", "max_model_len": 128, "prefill_chunk_tokens": 64, "max_batched_tokens": 64}
    with pytest.raises(ModelInvalid, match="not a number") as error:
        start(resolve(source=str(folder), flags=flags, environ={}))
    assert error.value.exit_code == EXIT_MODEL_INVALID
