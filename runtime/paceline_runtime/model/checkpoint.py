"""Weights by the names that safetensors checkpoints use, wherever they come from."""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from pathlib import Path

import torch

from .source import CONFIG_FILE, ModelFiles, ModelInvalid
from .spec import ModelSpec


class Checkpoint(ABC):
    """An open model: its spec, and its tensors one by one, so that no second copy of all weights is ever held."""

    spec: ModelSpec
    files: ModelFiles | None = None
    """Where it comes from; `None` if from no file."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name, e.g. `model.layers.0.self_attn.q_proj.weight`."""

    @abstractmethod
    def read(self, name: str) -> torch.Tensor:
        """One tensor as it is stored (dequantised to float32 where it is quantised).

        Raises:
            ModelInvalid: if it is not there or cannot be read.
        """

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """One tensor, which has to have this shape.

        Raises:
            ModelInvalid: if it has not, or as `read`.
        """
        value = self.read(name)
        if tuple(value.shape) != shape:
            raise ModelInvalid(
                f"the tensor {name} has shape {list(value.shape)}; the configuration asks for {list(shape)}"
            )
        return value


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """Open a model's files.

    Raises:
        ModelInvalid: if they are damaged, incomplete or of an architecture that is not supported.
    """
    # Imported here: reading one kind needs no library for the other.
    if files.is_gguf:
        from .gguf_checkpoint import GGUFCheckpoint

        return GGUFCheckpoint(files)
    from .safetensors_checkpoint import SafetensorsCheckpoint

    return SafetensorsCheckpoint(files)


_digests: dict[object, str] = {}
_digesting = threading.Lock()


def digest(files: ModelFiles) -> str:
    """`sha256:…` over configuration and weights: the same on every replica that has the same model, and only there.

    Files that have not changed are hashed once, whoever asks.

    Raises:
        ModelInvalid: if a file cannot be read.
    """
    parts = files.weights if files.is_gguf else (files.path / CONFIG_FILE, *files.weights)
    with _digesting:
        try:
            key = tuple((path, stat.st_size, stat.st_mtime_ns) for path in parts for stat in (path.stat(),))
        except OSError as error:
            raise ModelInvalid(f"cannot read {error.filename}: {error.strerror or error}") from error
        if key not in _digests:
            _digests[key] = _hash(parts)
        return _digests[key]


def _hash(parts: tuple[Path, ...]) -> str:
    total = hashlib.sha256()
    for path in parts:
        try:
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise ModelInvalid(f"cannot read {path}: {error.strerror or error}") from error
    return f"sha256:{total.hexdigest()}"
