"""Where records are kept: one SQLite file, bounded by size and by age."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .records import Place, Record, read_record, statistics

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS records (
    id TEXT NOT NULL, kind TEXT NOT NULL, at REAL NOT NULL,
    service TEXT NOT NULL, base TEXT NOT NULL, candidate TEXT NOT NULL, pool TEXT NOT NULL, shape TEXT NOT NULL,
    failure TEXT NOT NULL, statistics TEXT NOT NULL, raw BLOB, raw_until REAL,
    PRIMARY KEY (id, kind)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_time ON records (service, at);
CREATE INDEX IF NOT EXISTS by_age ON records (at);
CREATE INDEX IF NOT EXISTS raw_by_age ON records (raw_until) WHERE raw IS NOT NULL;
CREATE TABLE IF NOT EXISTS secret (key BLOB NOT NULL);
"""
_COLUMNS: Final = "id, kind, at, failure, service, base, candidate, pool, shape, statistics, raw"

OLDEST_SHARE: Final = 10
"""One in so many records goes at a time when the file is full."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is kept.

    Attributes:
        max_bytes: of the file.
        max_age: of a record, seconds.
        raw_age: of its texts, seconds; 0: none are kept at all.
    """

    max_bytes: int = 512 * 1024 * 1024
    max_age: float = 7 * 86400.0
    raw_age: float = 0.0


class Store:
    """May be used by any thread. One that the process did not end in order is as it was after its last change.

    Raises:
        sqlite3.Error: the file cannot be opened or is none of SQLite's.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self.limits = limits
        self._path = path
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False)
        # What is deleted is overwritten: a text that has expired is not in the file any more.
        self._connection.execute("PRAGMA secure_delete = ON")
        self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        with self._connection:
            self._connection.executescript(_SCHEMA)
            found = self._connection.execute("SELECT key FROM secret").fetchone()
            self._key: bytes = found[0] if found else secrets.token_bytes(32)
            if found is None:
                self._connection.execute("INSERT INTO secret VALUES (?)", (self._key,))

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()

    def hash(self, text: str) -> str:
        """Of a text, with a key that never leaves the file (BLAKE2b, 16 bytes as hex)."""
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=self._key, digest_size=16).hexdigest()

    def add(self, records: Iterable[Record], now: float) -> int:
        """Keep records; how many were new. A request's record of one kind is kept once, however often it is told."""
        rows = [
            (
                *(record.id, record.kind.value, record.at),
                *record.place,
                record.failure,
                json.dumps(statistics(record), separators=(",", ":")),
                record.raw if self.limits.raw_age else None,
                now + self.limits.raw_age if record.raw is not None and self.limits.raw_age else None,
            )
            for record in records
        ]
        with self._lock, self._connection:
            before = self._connection.total_changes
            self._connection.executemany(
                "INSERT OR IGNORE INTO records VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
                rows,
            )
            return self._connection.total_changes - before

    def between(self, since: float, until: float, service: str | None = None) -> Iterator[Record]:
        """Records of requests that were copied from `since` on and before `until`, without their texts, a few at a
        time. They are those of the moment of the first one; what is written meanwhile waits for nobody.
        """
        query = f"SELECT {_COLUMNS.removesuffix('raw')} NULL FROM records WHERE at >= ? AND at < ?"
        values: list[Any] = [since, until]
        if service is not None:
            query += " AND service = ?"
            values.append(service)
        with contextlib.closing(sqlite3.connect(self._path)) as reading:
            yield from map(_read, reading.execute(query, values))

    def of_request(self, request_id: str) -> list[Record]:
        """All records of one request, with their texts where they are kept."""
        with self._lock:
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM records WHERE id = ?", (request_id,)).fetchall()
        return [_read(row) for row in rows]

    def tidy(self, now: float) -> None:
        """Give up what is too old, and the oldest of what is too much."""
        with self._lock:
            connection = self._connection
            with connection:
                connection.execute(
                    "UPDATE records SET raw = NULL, raw_until = NULL WHERE raw IS NOT NULL AND raw_until <= ?", (now,)
                )
                connection.execute("DELETE FROM records WHERE at < ?", (now - self.limits.max_age,))
            while self._bytes_in_use() > self.limits.max_bytes:
                with connection:
                    (count,) = connection.execute("SELECT COUNT(*) FROM records").fetchone()
                    if not count:
                        break
                    connection.execute(
                        "DELETE FROM records WHERE (id, kind) IN (SELECT id, kind FROM records ORDER BY at LIMIT ?)",
                        (max(1, count // OLDEST_SHARE),),
                    )
            connection.executescript("PRAGMA incremental_vacuum")  # `execute` would give one page back
            # Until then the log beside the file has what was there before.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def size(self) -> tuple[int, int]:
        """Records, and bytes in use."""
        with self._lock:
            (count,) = self._connection.execute("SELECT COUNT(*) FROM records").fetchone()
            return int(count), self._bytes_in_use()

    def _bytes_in_use(self) -> int:
        pages, free, size = (
            int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size


def open_store(path: Path, limits: Limits) -> Store:
    """The store in this file; where it is there and cannot be used, it is put aside as `NAME.unusable` first.

    What it keeps is evidence of the last days and nobody's only copy: a recorder that does not start is worse.
    """
    try:
        return Store(path, limits)
    except sqlite3.DatabaseError:
        with contextlib.suppress(FileNotFoundError):
            path.replace(path.with_name(path.name + ".unusable"))
        return Store(path, limits)


def _read(row: tuple[Any, ...]) -> Record:
    request_id, kind, at, failure, service, base, candidate, pool, shape, found, raw = row
    place = Place(service, base, candidate, pool, shape)
    return read_record((request_id, kind, at, failure), place, json.loads(found), raw)
