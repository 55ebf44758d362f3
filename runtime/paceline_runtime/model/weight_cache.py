"""Packed weights kept on disk, so that a model is expanded and laid out once on a machine and not at every start.

A file is a header of one page and the weights exactly as the kernels read them. It is mapped, not read: the next start
costs a walk over the pages, and replicas on one machine share them. The first start packs straight into such a mapping.

`PACELINE_WEIGHT_CACHE=0` switches it off.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from paceline_runtime.native import Library, cache_root

from .packed_weights import LAYOUT_VERSION, PackedLayout

HEADER_BYTES = mmap.ALLOCATIONGRANULARITY
MIN_BYTES = 256 << 20
"""Smaller weights are packed in less than a second; a file would not pay."""
MAX_BYTES = 32 << 30
"""Of all files together; beyond it the one that was not used for longest goes."""
MIN_FREE_SHARE = 0.1
"""Of the disk that stays free."""
LEFTOVER_SECONDS = 3600.0
"""A half-written file or a lock of that age belongs to a process that is gone."""

SUFFIX = ".weights"

log = logging.getLogger(__name__)

Fill = Callable[[torch.Tensor], None]
"""Writes all weights into zeroed memory, uint8 [nbytes]."""


def enabled() -> bool:
    """Whether the user has not switched the cache off."""
    return os.environ.get("PACELINE_WEIGHT_CACHE", "1") != "0"


def load_or_fill(layout: PackedLayout, library: Library, digest: str, fill: Fill) -> torch.Tensor | None:
    """The packed weights of the model with this digest, mapped from a file that is made where there is none.

    Returns:
        uint8 [layout.nbytes]; `None` where the disk has no room or does not allow it, which is logged.
    """
    dtype = str(layout.weight_dtype).removeprefix("torch.")
    name = f"{digest.removeprefix('sha256:')[:32]}-v{LAYOUT_VERSION}-{dtype}-{layout.lanes}{SUFFIX}"
    try:
        folder = cache_root() / "weights"
        path = folder / name
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f".{name}.lock"):
            found = _open(path, layout.nbytes, library)
            if found is not None:
                os.utime(path)
                return found
            _make_room(folder, layout.nbytes + HEADER_BYTES)
            return _make(path, layout.nbytes, library, fill)
    except OSError as error:
        log.warning("packed weights are not kept on disk: %s", error)
        return None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Replicas of a model that start together pack once; the others wait and map the result."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _open(path: Path, nbytes: int, library: Library) -> torch.Tensor | None:
    """Map a file; `None` if it is not there, or damaged: then it is removed."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == HEADER_BYTES + nbytes:
                header = json.loads(file.read(HEADER_BYTES).rstrip(b"\0") or b"{}")
                weights = _map(file.fileno(), nbytes, mmap.MAP_PRIVATE)
                if header.get("checksum") == _checksum(weights, library):
                    return weights
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError):
        pass  # no header of ours: as any other damage
    log.warning("the packed weights %s are damaged: they are made again", path)
    path.unlink()
    return None


def _make(path: Path, nbytes: int, library: Library, fill: Fill) -> torch.Tensor:
    handle, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        # Room first: writing to a mapping for which the disk has none would kill the process.
        os.posix_fallocate(handle, 0, HEADER_BYTES + nbytes)
        weights = _map(handle, nbytes, mmap.MAP_SHARED)
        fill(weights)
        os.pwrite(handle, json.dumps({"checksum": _checksum(weights, library)}).encode(), 0)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(handle)
    return weights


def _map(handle: int, nbytes: int, flags: int) -> torch.Tensor:
    memory = mmap.mmap(handle, HEADER_BYTES + nbytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # not every file system has large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8, count=nbytes, offset=HEADER_BYTES)


def _checksum(weights: torch.Tensor, library: Library) -> int:
    return int(library.functions.paceline_checksum(weights.data_ptr(), weights.nbytes // 8))


def _make_room(folder: Path, nbytes: int) -> None:
    """Remove files until one more of this size fits.

    Raises:
        OSError: if it cannot.
    """
    for path in folder.glob(".*"):
        if time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
            path.unlink(missing_ok=True)
    kept = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in folder.glob(f"*{SUFFIX}"))
    while kept and (sum(size for _, size, _ in kept) + nbytes > MAX_BYTES or not _fits(folder, nbytes)):
        kept.pop(0)[2].unlink(missing_ok=True)
    if nbytes > MAX_BYTES or not _fits(folder, nbytes):
        raise OSError(f"{nbytes >> 20} MiB more would fill the disk or the cache's {MAX_BYTES >> 30} GiB")


def _fits(folder: Path, nbytes: int) -> bool:
    usage = shutil.disk_usage(folder)
    return usage.free - nbytes > MIN_FREE_SHARE * usage.total
