"""A model folder: `config.json` and one or more safetensors files."""

from __future__ import annotations

from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from .checkpoint import Checkpoint
from .source import CONFIG_FILE, ModelFiles, ModelInvalid, read_json
from .spec import from_hf_config

GENERATION_FILE = "generation_config.json"


class SafetensorsCheckpoint(Checkpoint):
    """Tensors are mapped from the files and read when asked for."""

    def __init__(self, files: ModelFiles) -> None:
        self.files = files
        generation = files.path / GENERATION_FILE
        self.spec = from_hf_config(
            read_json(files.path / CONFIG_FILE), read_json(generation) if generation.is_file() else {}
        )
        self._shard_of: dict[str, Any] = {}
        for path in files.weights:
            try:
                shard = safe_open(path, framework="pt", device="cpu")
                self._shard_of.update(dict.fromkeys(shard.keys(), shard))  # type: ignore[no-untyped-call]
            except (SafetensorError, OSError) as error:
                raise ModelInvalid(f"the weight file {path.name} cannot be read: {error}") from error

    def has(self, name: str) -> bool:
        return name in self._shard_of

    def read(self, name: str) -> torch.Tensor:
        shard = self._shard_of.get(name)
        if shard is None:
            raise ModelInvalid(f"the weights have no tensor {name}")
        try:
            value: torch.Tensor = shard.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelInvalid(f"the tensor {name} cannot be read: {error}") from error
        if not value.is_floating_point():
            raise ModelInvalid(f"the tensor {name} is of type {value.dtype}; quantised safetensors are not supported")
        return value
