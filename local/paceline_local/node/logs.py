"""Container logs as the kubelet serves them: from files in the CRI format, followed across rotation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

POLL_SECONDS = 0.1
CHUNK = 64 * 1024


@dataclass(frozen=True)
class LogOptions:
    """What of a log is wanted; `since` in Unix seconds."""

    follow: bool = False
    tail_lines: int | None = None
    since: float | None = None
    timestamps: bool = False
    limit_bytes: int | None = None


def render(record: bytes, options: LogOptions) -> bytes:
    """What a reader sees of one line of the file; nothing of lines before `since` or not of the format."""
    parts = record.split(b" ", 3)
    if len(parts) != 4:
        return b""
    stamp, _, tag, text = parts
    if options.since is not None and stamp_seconds(stamp) < options.since:
        return b""
    end = b"\n" if tag == b"F" else b""
    return (stamp + b" " if options.timestamps else b"") + text + end


def stamp_seconds(stamp: bytes) -> float:
    """Unix seconds of a log line's time, which has nine digits after the second."""
    text = stamp.decode()
    whole = datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    return whole + float("0." + text[20:].rstrip("Z"))


def last_lines(path: Path, count: int | None) -> tuple[list[bytes], int, int | None]:
    """The last `count` lines (None: all) of the rotated file and the current one; the offset behind them, its inode."""
    records: list[bytes] = []
    offset, inode = 0, None
    for part in (path.with_name(path.name + ".1"), path):
        try:
            with open(part, "rb") as file:
                data = file.read()
                inode = os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            continue
        offset = data.rfind(b"\n") + 1
        records += data[:offset].split(b"\n")[:-1]
    if count is not None:
        records = records[-count:] if count else []
    return records, offset, inode


async def stream(path: Path, options: LogOptions, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The log in pieces; with `follow` until `running()` is False and everything has been read."""
    left = options.limit_bytes

    def take(data: bytes) -> bytes:
        nonlocal left
        if left is None:
            return data
        data = data[:left]
        left -= len(data)
        return data

    records, offset, inode = await asyncio.to_thread(last_lines, path, options.tail_lines)
    for start in range(0, len(records), 1000):
        piece = take(b"".join(render(record, options) for record in records[start : start + 1000]))
        if piece:
            yield piece
    while options.follow and left != 0:
        alive = running()
        piece, offset, inode = _more(path, offset, inode, options)
        if piece := take(piece):
            yield piece
        elif not alive:
            return
        else:
            await asyncio.sleep(POLL_SECONDS)


def _more(path: Path, offset: int, inode: int | None, options: LogOptions) -> tuple[bytes, int, int | None]:
    """What came after `offset`; the rest of a file that was rotated away first."""
    try:
        now = path.stat().st_ino
    except FileNotFoundError:
        return b"", offset, inode
    if inode is not None and now != inode:
        old = path.with_name(path.name + ".1")
        piece, _ = _read(old, offset, options) if old.exists() and old.stat().st_ino == inode else (b"", 0)
        more, end = _read(path, 0, options)
        return piece + more, end, now
    piece, offset = _read(path, offset, options)
    return piece, offset, now


def _read(path: Path, offset: int, options: LogOptions) -> tuple[bytes, int]:
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read(16 * CHUNK)
    complete = data[: data.rfind(b"\n") + 1]
    text = b"".join(render(record, options) for record in complete.split(b"\n"))
    return text, offset + len(complete)
