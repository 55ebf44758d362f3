"""Packed weights on disk: mapped at the next start, never trusted blindly, never in the way."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline_runtime import native
from paceline_runtime.model import weight_cache
from paceline_runtime.model.checkpoint import Checkpoint, open_checkpoint
from paceline_runtime.model.runner import ModelRunner, SequenceInput
from paceline_runtime.model.source import ModelInvalid, locate

PROMPT = [SequenceInput([5, 6, 7, 8], 0, [0], 4)]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    native.load()  # from the usual place; only the weights go elsewhere
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(weight_cache, "MIN_BYTES", 0)
    return tmp_path / "weights"


def logits(checkpoint: Checkpoint, weight_dtype: torch.dtype = torch.float32) -> torch.Tensor:
    runner = ModelRunner(
        checkpoint,
        device=torch.device("cpu"),
        dtype=torch.float32,
        weight_dtype=weight_dtype,
        block_size=16,
        max_model_len=64,
    )
    assert runner.kernels.startswith("native")
    runner.allocate_cache(4)
    return runner.forward(runner.prepare(PROMPT))


def opened(model: Path) -> Checkpoint:
    return open_checkpoint(locate(model.as_uri()))


def unreadable(model: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    checkpoint = opened(model)

    def read(name: str) -> torch.Tensor:
        raise ModelInvalid(f"{name} was read")

    monkeypatch.setattr(checkpoint, "read", read)
    return checkpoint


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.weights"))


def test_the_next_start_reads_no_tensor(folder: Path, monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path) -> None:
    first = logits(opened(tiny_model_dir))
    (path,) = kept(folder)
    os.utime(path, (1, 1))
    assert torch.equal(logits(unreadable(tiny_model_dir, monkeypatch)), first)
    assert path.stat().st_mtime > 1  # used again, so it is not the next to go
    assert {entry.name for entry in folder.iterdir()} == {path.name, f".{path.name}.lock"}
    with pytest.raises(ModelInvalid, match="was read"):
        logits(unreadable(tiny_model_dir, monkeypatch), torch.bfloat16)
    assert kept(folder) == [path]
    logits(opened(tiny_model_dir), torch.bfloat16)
    assert len(kept(folder)) == 2


def test_weights_that_changed_are_packed_anew(folder: Path, tiny_model_dir: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_bytes((tiny_model_dir / "config.json").read_bytes())
    tensors = load_file(tiny_model_dir / "model.safetensors")
    save_file(tensors, model / "model.safetensors")
    before = logits(opened(model))
    save_file({name: value * 1.5 for name, value in tensors.items()}, model / "model.safetensors")
    assert not torch.equal(logits(opened(model)), before)
    assert len(kept(folder)) == 2


@pytest.mark.parametrize("damage", ["byte", "header", "no-header", "short", "empty"])
def test_a_damaged_file_is_noticed_and_made_again(
    folder: Path, tiny_model_dir: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    first = logits(opened(tiny_model_dir))
    (path,) = kept(folder)
    content = bytearray(path.read_bytes())
    whole = bytes(content)
    if damage == "byte":
        content[len(content) // 2] ^= 0x10
    elif damage == "header":
        content[:64] = b"[1]".ljust(64, b"\0")
    elif damage == "no-header":
        content[: weight_cache.HEADER_BYTES] = bytes(weight_cache.HEADER_BYTES)
    else:
        del content[0 if damage == "empty" else -1 :]
    path.write_bytes(content)
    assert torch.equal(logits(opened(tiny_model_dir)), first)
    assert "are damaged: they are made again" in caplog.text
    assert path.read_bytes() == whole


def test_the_one_not_used_for_longest_makes_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path
) -> None:
    logits(opened(tiny_model_dir))
    (path,) = kept(folder)
    size = path.stat().st_size
    for age, name in enumerate(["new", "old", "older"], start=1):
        other = folder / f"{name}.weights"
        other.write_bytes(bytes(size))
        os.utime(other, (time.time() - 1000 * age,) * 2)
    abandoned, young = folder / ".dead", folder / ".young"
    abandoned.touch()
    young.touch()
    os.utime(abandoned, (1, 1))
    path.unlink()
    monkeypatch.setattr(weight_cache, "MAX_BYTES", 2 * size + 100)
    logits(opened(tiny_model_dir))
    assert [entry.name for entry in kept(folder)] == sorted([path.name, "new.weights"])
    assert young.exists()
    assert not abandoned.exists()


def test_without_room_or_folder_the_model_serves_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(weight_cache, "MAX_BYTES", 1000)
    first = logits(opened(tiny_model_dir))
    assert "packed weights are not kept on disk: 0 MiB more would fill the disk" in caplog.text
    assert kept(folder) == []
    shutil.rmtree(folder)
    folder.touch()
    assert torch.equal(logits(opened(tiny_model_dir)), first)
    assert "packed weights are not kept on disk: [Errno 17] File exists" in caplog.text


def test_a_model_that_cannot_be_read_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path
) -> None:
    with pytest.raises(ModelInvalid, match="was read"):
        logits(unreadable(tiny_model_dir, monkeypatch))
    assert [entry.suffix for entry in folder.iterdir()] == [".lock"]


def test_it_can_be_switched_off_and_small_models_do_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path
) -> None:
    monkeypatch.setenv("PACELINE_WEIGHT_CACHE", "0")
    logits(opened(tiny_model_dir))
    monkeypatch.delenv("PACELINE_WEIGHT_CACHE")
    monkeypatch.setattr(weight_cache, "MIN_BYTES", 1 << 30)
    logits(opened(tiny_model_dir))
    assert not folder.exists()
