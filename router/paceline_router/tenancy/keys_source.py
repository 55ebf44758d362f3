"""Follows the files with the keys of the services in a routes file, without holding requests up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from paceline_router.table.apart import NotHeard
from paceline_router.table.records import Table
from paceline_router.table.yaml_file import Mark, mark_of
from paceline_router.tenancy.keys import Keys
from paceline_router.tenancy.keys_reading import read_apart

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0

BATCH: Final = 64
"""Files that are read by one process."""

UNREAD: Final = Keys(trouble="the file of keys has not been read yet")


@dataclass
class _File:
    """What is known of a file.

    Attributes:
        seen: how it looked when it was read; None: to be read anew.
    """

    keys: Keys = UNREAD
    seen: Mark | None = None


def followed(before: Keys, read: Keys) -> Keys:
    """The keys to go by after a file was read again: one that turned bad keeps those that it had, and says so. One that
    is gone is another matter: it leaves no key valid, so that deleting it revokes them all.
    """
    if read.trouble and not before.trouble:
        return replace(before, outdated=read.trouble)
    return read


class KeysSource:
    """Tells `use_keys` the keys of each service that names a file, and again when they are others."""

    def __init__(self, use_keys: Callable[[str, Keys], None]) -> None:
        self._use_keys = use_keys
        self._paths: dict[str, Path] = {}
        self._files: dict[Path, _File] = {}
        self._wanted = asyncio.Event()

    def use_table(self, table: Table, changed: Set[str]) -> None:
        """Follow the files that these services name now. What has been read already is told at once; until a new file
        is read the keys of a service stay as they were.
        """
        for key in changed:
            service = table.services.get(key)
            if service is None or not service.keys_file:
                if self._paths.pop(key, None) is not None:
                    self._use_keys(key, UNREAD)
                continue
            path = self._paths[key] = Path(service.keys_file)
            file = self._files.setdefault(path, _File())
            if file.keys is not UNREAD:
                self._use_keys(key, file.keys)
        for path in self._files.keys() - set(self._paths.values()):
            del self._files[path]
        self._wanted.set()

    async def run(self) -> None:
        """Follow the files for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Read the files that have changed."""
        self._wanted.clear()
        changed: list[Path] = []
        for path, file in self._files.items():
            try:
                seen = mark_of(path.stat())
            except (FileNotFoundError, NotADirectoryError) as exc:
                file.seen = None
                self._take(path, Keys(trouble=f"the file {path} cannot be read: {exc.strerror}"))
                continue
            except OSError as exc:
                seen = (exc.errno or 0, 0, 0, 0)  # the reader says it in words
            if seen != file.seen:
                file.seen = seen
                changed.append(path)
        for start in range(0, len(changed), BATCH):
            await self._read(changed[start : start + BATCH])

    async def _read(self, paths: list[Path]) -> None:
        try:
            read = await read_apart(paths)
        except NotHeard as exc:
            read = [Keys(trouble=f"the file {path} is not read: {exc}") for path in paths]
            for path in paths:
                if path in self._files:
                    self._files[path].seen = None
        for path, keys in zip(paths, read, strict=True):
            if path in self._files:
                self._take(path, followed(self._files[path].keys, keys))

    def _take(self, path: Path, keys: Keys) -> None:
        file = self._files[path]
        if keys == file.keys:
            return
        file.keys = keys
        for words in (keys.trouble, keys.outdated and f"the keys read before stay in use: {keys.outdated}"):
            if words:
                log.warning("tenancy: %s", words)
        for problem in keys.problems:
            log.warning("tenancy: the file %s, entry %s", path, problem)
        for service, named in self._paths.items():
            if named == path:
                self._use_keys(service, keys)
