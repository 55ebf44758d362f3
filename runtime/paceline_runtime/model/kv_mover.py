"""Moves whole blocks between the KV cache, host memory and disk (`engine.tiers` decides which)."""

from __future__ import annotations

import os
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from paceline_runtime.engine.batch import BlockCopy
from paceline_runtime.engine.tiers import Memory, MoveReport, Transfer

KVCache = Sequence[tuple[torch.Tensor, ...]]
"""What each layer keeps of a block: keys and values, and scales if it has any; the first dimension is its number."""

Rows = NDArray[np.uint8]
"""Whole blocks as bytes, [blocks, block_bytes]."""

BLOCKS_AT_ONCE = 64
"""Blocks gathered in one go: bounds the memory that a step's transfers take."""


class KVMover:
    """Executes transfers and copies over a KV cache. A block is one row of bytes: all that is kept of it, by layer.

    Each place remembers the hash of what was stored there, and nothing is handed out under another.

    Args:
        kv_cache: contiguous tensors; shape and type are taken from them.
        host_blocks: room in host memory.
        disk_blocks: room on disk, in a file that has no name and goes with the process.
        folder: where that file is; `None` is the system's folder for temporary files.

    Raises:
        OSError: if the disk has not that much room.
    """

    def __init__(
        self, kv_cache: KVCache, *, host_blocks: int = 0, disk_blocks: int = 0, folder: Path | None = None
    ) -> None:
        self._tensors = [tensor for layer in kv_cache for tensor in layer]
        self._widths = [tensor[0].numel() * tensor.itemsize for tensor in self._tensors]
        self._device = self._tensors[0].device
        self._on_cpu = self._device.type == "cpu"
        # On a CPU the cache is written as plain bytes: torch copies rows of bytes element by element.
        flat = [tensor.view(torch.uint8).view(len(tensor), -1) for tensor in self._tensors if self._on_cpu]
        self._bytes = [_as_rows(tensor) for tensor in flat]
        self._pools: dict[Memory, Pool] = {}
        if host_blocks:
            self._pools[Memory.HOST] = HostPool(host_blocks, self.block_bytes, pinned=self._device.type == "cuda")
        if disk_blocks:
            self._pools[Memory.DISK] = DiskPool(disk_blocks, self.block_bytes, folder)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return sum(self._widths)

    @torch.inference_mode()
    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks within the cache."""
        if not copies:
            return
        sources = self._numbers([copy.source for copy in copies])
        targets = self._numbers([copy.target for copy in copies])
        for tensor in self._tensors:
            tensor.index_copy_(0, targets, tensor.index_select(0, sources))

    @torch.inference_mode()
    def execute(self, transfers: Sequence[Transfer]) -> MoveReport:
        """See `BlockMover`."""
        seconds: dict[tuple[Memory, Memory], float] = {}
        failed: list[Transfer] = []
        directions: dict[tuple[Memory, Memory], list[Transfer]] = {}
        for transfer in transfers:
            directions.setdefault((transfer.source.memory, transfer.target.memory), []).append(transfer)
        for direction, group in directions.items():
            started = time.monotonic()
            for part in _parts(group):
                failed += self._move(*direction, part)
            seconds[direction] = time.monotonic() - started
        return MoveReport(tuple(failed), seconds)

    def close(self) -> None:
        """Give memory and disk back."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _move(self, source: Memory, target: Memory, transfers: Sequence[Transfer]) -> list[Transfer]:
        keys = [transfer.key for transfer in transfers]
        origins = [transfer.source.number for transfer in transfers]
        if source is Memory.DEVICE:
            rows, good = self._gather(origins), [True] * len(keys)
        else:
            rows, good = self._pools[source].read(origins, keys)
        targets = [transfer.target.number for transfer in transfers]
        if target is Memory.DEVICE:
            usable = [i for i, ok in enumerate(good) if ok]
            if usable:
                self._scatter(rows[usable], [targets[i] for i in usable])
        else:
            stored = self._pools[target].write(
                targets, [key if ok else None for key, ok in zip(keys, good, strict=True)], rows
            )
            good = [a and b for a, b in zip(good, stored, strict=True)]
        return [transfer for transfer, ok in zip(transfers, good, strict=True) if not ok]

    def _gather(self, blocks: list[int]) -> Rows:
        if self._on_cpu:
            rows = np.empty((len(blocks), self.block_bytes), dtype=np.uint8)
            for content, columns in zip(self._bytes, self._columns(), strict=True):
                rows[:, columns] = content[blocks]
            return rows
        numbers = self._numbers(blocks)
        parts = [tensor.index_select(0, numbers).view(len(blocks), -1).view(torch.uint8) for tensor in self._tensors]
        return _as_rows(torch.cat(parts, dim=1).cpu())

    def _scatter(self, rows: Rows, blocks: list[int]) -> None:
        if self._on_cpu:
            for content, columns in zip(self._bytes, self._columns(), strict=True):
                content[blocks] = rows[:, columns]
            return
        numbers, moved = self._numbers(blocks), torch.from_numpy(rows).to(self._device)
        for tensor, columns in zip(self._tensors, self._columns(), strict=True):
            part = moved[:, columns].contiguous().view(tensor.dtype).view(len(blocks), *tensor.shape[1:])
            tensor.index_copy_(0, numbers, part)

    def _columns(self) -> Iterator[slice]:
        """Where each tensor's part of a row is."""
        start = 0
        for width in self._widths:
            yield slice(start, start + width)
            start += width

    def _numbers(self, blocks: list[int]) -> torch.Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self._device)


class Pool(Protocol):
    """Room for rows of bytes [blocks, block_bytes], each known by a hash."""

    def write(self, places: Sequence[int], keys: Sequence[bytes | None], rows: Rows) -> list[bool]:
        """Store rows; one without a key only empties its place. Which of them are stored."""
        ...

    def read(self, places: Sequence[int], keys: Sequence[bytes]) -> tuple[Rows, list[bool]]:
        """Rows, and which of them are what was stored there under that key."""
        ...

    def close(self) -> None:
        """Give the room back."""
        ...


class HostPool:
    """Rows in host memory, page-locked beside a GPU."""

    def __init__(self, blocks: int, block_bytes: int, *, pinned: bool) -> None:
        memory = torch.empty((blocks, block_bytes), dtype=torch.uint8, pin_memory=pinned)
        # Written once, so that memory which is not there fails now and not under load.
        self._rows = _as_rows(memory.zero_())
        self._keys: list[bytes | None] = [None] * blocks

    def write(self, places: Sequence[int], keys: Sequence[bytes | None], rows: Rows) -> list[bool]:
        """See `Pool`."""
        self._rows[list(places)] = rows
        for place, key in zip(places, keys, strict=True):
            self._keys[place] = key
        return [key is not None for key in keys]

    def read(self, places: Sequence[int], keys: Sequence[bytes]) -> tuple[Rows, list[bool]]:
        """See `Pool`."""
        good = [self._keys[place] == key for place, key in zip(places, keys, strict=True)]
        return self._rows[list(places)], good

    def close(self) -> None:
        """See `Pool`."""
        self._rows = self._rows[:0].copy()


class DiskPool:
    """Rows in a file, with a checksum each: a damaged row is no row.

    The file is read and written, not mapped: a fault of the disk is then an error of that row, where in mapped memory
    it would end the process.
    """

    def __init__(self, blocks: int, block_bytes: int, folder: Path | None) -> None:
        self._block_bytes = block_bytes
        self._file = tempfile.TemporaryFile(dir=folder, prefix="paceline-kv-")  # noqa: SIM115 (closed in `close`)
        try:
            os.posix_fallocate(self._file.fileno(), 0, blocks * block_bytes)
        except OSError:
            self._file.close()
            raise
        self._known: list[tuple[bytes, int] | None] = [None] * blocks

    def write(self, places: Sequence[int], keys: Sequence[bytes | None], rows: Rows) -> list[bool]:
        """See `Pool`."""
        stored = []
        for place, key, row in zip(places, keys, rows, strict=True):
            self._known[place] = None
            if key is not None:
                content = row.data
                try:
                    whole = os.pwrite(self._file.fileno(), content, place * self._block_bytes) == self._block_bytes
                except OSError:
                    whole = False
                if whole:
                    self._known[place] = (key, zlib.crc32(content))
            stored.append(self._known[place] is not None)
        return stored

    def read(self, places: Sequence[int], keys: Sequence[bytes]) -> tuple[Rows, list[bool]]:
        """See `Pool`."""
        rows = np.empty((len(places), self._block_bytes), dtype=np.uint8)
        good = []
        for place, key, row in zip(places, keys, rows, strict=True):
            known = self._known[place]
            content = row.data
            try:
                size = os.preadv(self._file.fileno(), [content], place * self._block_bytes)
            except OSError:
                size = 0
            good.append(size == self._block_bytes and known == (key, zlib.crc32(content)))
        return rows, good

    def close(self) -> None:
        """See `Pool`."""
        self._file.close()


def _parts(transfers: Sequence[Transfer]) -> Iterator[Sequence[Transfer]]:
    for start in range(0, len(transfers), BLOCKS_AT_ONCE):
        yield transfers[start : start + BLOCKS_AT_ONCE]


def _as_rows(tensor: torch.Tensor) -> Rows:
    rows: Rows = tensor.numpy()
    return rows
