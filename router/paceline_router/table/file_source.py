"""Follows a routes file while requests go on: read in another process, taken over a few services at a time."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Final, TypeAlias

from paceline_router.table.file import RoutesFileError
from paceline_router.table.reading import Parts, UnheardError, opened, parts_of, read_apart
from paceline_router.table.records import Replica, Service, Table
from paceline_router.table.yaml_file import FileFault, Mark, check_kind, mark_of

log = logging.getLogger(__name__)

RELOAD_SECONDS: Final = 1.0

SMALL_BYTES: Final = 64 * 1024
"""Up to this size the first reading is not worth a process: it takes a third of a second at most, and nobody waits."""

STEP: Final = 16
"""Services that are taken over at once, so that requests wait for milliseconds in between. A change that is no larger
is taken over as a whole.
"""

MAX_STEPS: Final = 128
"""Each step also costs something for every service that there is, so a very large change has larger steps."""

STEP_PAUSE: Final = 0.005

Use: TypeAlias = Callable[[Table, Set[str]], None]
"""Takes a table, and which services differ from the one before."""


class FileSource:
    """Gives the table of a file to `use`, and again whenever the file changes. A file that turns bad keeps the
    last good table.
    """

    def __init__(self, path: Path, use: Use) -> None:
        self.path = path
        self.error: str | None = None
        """Why the file as it is now is not in use."""
        self._use = use
        self._seen: Mark | None = None
        self._parts: dict[str, bytes] = {}
        self._table = Table()

    async def load(self) -> None:
        """Read the file for the first time.

        Raises:
            RoutesFileError: see `read_table`.
        """
        stat = self._stat()
        self._seen = mark_of(stat)
        await self._take(parts_of(self.path) if stat.st_size <= SMALL_BYTES else await read_apart(self.path))

    def _stat(self) -> os.stat_result:
        try:
            stat = self.path.stat()
            check_kind(stat)
            return stat
        except OSError as exc:
            raise RoutesFileError(f"cannot read {self.path}: {exc.strerror}") from exc
        except FileFault as exc:
            raise RoutesFileError(f"{self.path}: {exc}") from exc

    async def run(self) -> None:
        """Follow the file for ever."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Read the file if it has changed. One that cannot be used leaves the last table in use, and is the reason in
        `error`.
        """
        try:
            seen, self._seen = self._seen, None  # one that is gone and comes back just as it was is read again
            self._seen = mark_of(self._stat())
            if seen != self._seen:
                await self._take(await read_apart(self.path))
                self.error = None
        except RoutesFileError as exc:
            if isinstance(exc, UnheardError):
                self._seen = None
            self._keep(str(exc))
        except Exception as exc:
            # Whatever a file can do, traffic goes on.
            self._keep(f"{self.path} cannot be read: {exc!r}")

    def _keep(self, why: str) -> None:
        if why != self.error:
            log.warning("keeping the last table: %s", why)
        self.error = why

    async def _take(self, parts: Parts) -> None:
        """Go over to a table with these parts. New services come first, so that a model whose service is called
        otherwise now is never without one.
        """
        changed = [key for key, part in parts.items() if self._parts.get(key) != part]
        changed += [key for key in self._parts if key not in parts]
        if len(changed) <= STEP:
            self._take_step(changed, parts)
            return
        size = max(STEP, len(changed) // MAX_STEPS)
        # A pass over all these new objects would be one long wait, and find that they are in use.
        gc.disable()
        try:
            for start in range(0, len(changed), size):
                self._take_step(changed[start : start + size], parts)
                await asyncio.sleep(STEP_PAUSE)
            gc.freeze()
        finally:
            gc.enable()

    def _take_step(self, changed: Sequence[str], parts: Parts) -> None:
        step = dict.fromkeys(changed).keys()
        self._table = _with_parts(self._table, step, parts)
        self._use(self._table, step)
        for key in step:
            if key in parts:
                self._parts[key] = parts[key]
            else:
                del self._parts[key]

    def age(self) -> float | None:
        """Zero: the file is looked at every second, and what is in it is in use unless `error` says otherwise."""
        return 0.0


def _with_parts(table: Table, keys: Set[str], parts: Parts) -> Table:
    """The table in which these services are as the parts say, or gone."""
    services = {key: service for key, service in table.services.items() if key not in keys}
    replicas = {uid: replica for uid, replica in table.replicas.items() if replica.service not in keys}
    for key in keys:
        if key in parts:
            made: tuple[Service, list[Replica]] = opened(parts[key])
            services[key] = made[0]
            replicas.update((replica.uid, replica) for replica in made[1])
    return Table(services=services, replicas=replicas)
