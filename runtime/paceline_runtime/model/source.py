"""From a model's source to files on this machine. Imports no torch: the front end finds its tokeniser the same way."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from paceline_crds.conditions import EXIT_MODEL_INVALID, EXIT_MODEL_NOT_FOUND
from paceline_runtime.config import StartupError

from .hub import cached

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"


class ModelNotFound(StartupError):
    """There is nothing at the model's source."""

    exit_code = EXIT_MODEL_NOT_FOUND


class ModelInvalid(StartupError):
    """The files are there but cannot be served."""

    exit_code = EXIT_MODEL_INVALID


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk.

    Attributes:
        path: the GGUF file, or the folder with `config.json` and safetensors.
        weights: the weight files in a fixed order.
    """

    path: Path
    weights: tuple[Path, ...]

    @property
    def is_gguf(self) -> bool:
        """One GGUF file holds weights, configuration and tokeniser."""
        return self.path.suffix == ".gguf"


def locate(source: str) -> ModelFiles:
    """Find a model's files.

    Args:
        source: `package://DISTRIBUTION` or `package://DISTRIBUTION/PATH/INSIDE` (files of an installed Python
            distribution; nothing is ever installed), `file:///ABSOLUTE/PATH` of a folder or a GGUF file, or
            `hf://ORG/NAME@REVISION`, which must have been fetched (`hub.fetch`).

    Raises:
        StartupError: if there is nothing (`ModelNotFound`, for a hub `HubError`).
        ModelInvalid: if what is there is no complete model.
    """
    scheme, _, rest = source.partition("://")
    if scheme == "package" and rest:
        return _in_package(*rest.partition("/")[::2])
    if scheme == "file":
        parts = urlsplit(source)
        if parts.netloc not in ("", "localhost"):
            raise ModelNotFound(f"{source}: a file source has three slashes, for example file:///models/llama")
        return _at(Path(unquote(parts.path)), source)
    if scheme == "hf":
        return _at(cached(source), source)
    raise ModelNotFound(
        f"{source!r} is no model source; write package://DISTRIBUTION (data of an installed Python package), "
        "file:///ABSOLUTE/PATH or hf://ORG/NAME@REVISION"
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a model folder.

    Raises:
        ModelInvalid: if it is not there or not an object.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelInvalid(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelInvalid(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelInvalid(f"{path} is not a JSON object")
    return value


def _in_package(name: str, inside: str) -> ModelFiles:
    source = f"package://{name}" + (f"/{inside}" if inside else "")
    try:
        listed = importlib.metadata.files(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelNotFound(
            f"{source}: the Python distribution {name!r} is not installed here; put it into the image (it is never "
            "downloaded at start)"
        ) from error
    files = [Path(str(entry.locate())) for entry in listed or ()]
    if inside:
        wanted = [f for entry, f in zip(listed or (), files, strict=True) if _below(str(entry), inside)]
        if not wanted:
            raise ModelNotFound(f"{source}: the distribution {name!r} has nothing at {inside!r}")
        files = wanted
    models = sorted({f.parent for f in files if f.name == CONFIG_FILE} | {f for f in files if f.suffix == ".gguf"})
    if not models:
        raise ModelNotFound(f"{source}: the distribution {name!r} holds neither a GGUF file nor a config.json")
    if len(models) > 1:
        names = ", ".join(sorted(path.name for path in models))
        raise ModelInvalid(f"{source} holds several models ({names}); name one: {source}/PATH/INSIDE")
    return _at(models[0], source)


def _below(entry: str, inside: str) -> bool:
    inside = inside.strip("/")
    return entry == inside or entry.startswith(inside + "/")


def _hint(name: str) -> str:
    """For a distribution's name without its scheme, which reads as a path."""
    try:
        importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""
    return f"; did you mean package://{name}?"


def _at(path: Path, source: str) -> ModelFiles:
    if not path.exists():
        raise ModelNotFound(f"{source}: there is nothing at {path}{_hint(path.name)}")
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelInvalid(f"{source}: {path.name} is no GGUF file; name a .gguf file or the folder of a model")
        return ModelFiles(path, (path,))
    if not (path / CONFIG_FILE).is_file():
        gguf = sorted(path.glob("*.gguf"))
        if len(gguf) == 1:
            return ModelFiles(gguf[0], (gguf[0],))
        if gguf:
            names = ", ".join(file.name for file in gguf)
            raise ModelInvalid(f"{source} holds several models ({names}); name one of these files")
        raise ModelInvalid(f"{source}: the folder {path} has no {CONFIG_FILE} and no GGUF file")
    if (path / INDEX_FILE).is_file():
        weight_map = read_json(path / INDEX_FILE).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelInvalid(f"{path / INDEX_FILE} has no weight_map")
        shards = tuple(path / str(name) for name in sorted(set(weight_map.values())))
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing:
            raise ModelInvalid(f"{source}: weight files named in {INDEX_FILE} are missing: {', '.join(missing)}")
        return ModelFiles(path, shards)
    weights = tuple(sorted(path.glob("*.safetensors")))
    if not weights:
        raise ModelInvalid(f"{source}: the folder {path} has no .safetensors weights")
    return ModelFiles(path, weights)
