"""A worker's signs of life, through a pipe to its supervisor. They come from the loop that has the requests, so a
process that is stopped, or stuck in its data path, gives none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

BEAT_SECONDS = 0.25
PIPE_BYTES = 64 * 1024

_READY, _NOT_READY = b"r", b"n"


async def beat(ready: Callable[[], bool], pipe: int) -> None:
    """Give signs of life for ever, each with whether the worker is ready."""
    os.set_blocking(pipe, False)
    while True:
        # A supervisor that does not read is stopped itself, and finds a full pipe later; one that is gone ends us.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(pipe, _READY if ready() else _NOT_READY)
        await asyncio.sleep(BEAT_SECONDS)


class Pulse:
    """The supervisor's end. Call `look` every `BEAT_SECONDS`.

    Silence is counted in looks and not by a clock: a supervisor that did not run itself (a laptop asleep, a machine
    with too much to do) has heard nothing either, and must not take its workers for dead.

    Attributes:
        heard: there has been a sign.
        ready: what the last sign said.
        silence: seconds of looking without a sign; 0 before the first one, when the worker starts.
        worker_end: for the worker; to be closed here once it runs.
    """

    def __init__(self) -> None:
        self._pipe, self.worker_end = os.pipe()
        os.set_blocking(self._pipe, False)
        self.heard = False
        self.ready = False
        self.silence = 0.0

    def look(self) -> None:
        """Take what has come."""
        try:
            said = os.read(self._pipe, PIPE_BYTES)
        except BlockingIOError:
            said = b""
        if said:
            self.heard = True
            self.ready = said.endswith(_READY)
            self.silence = 0.0
        elif self.heard:
            self.silence += BEAT_SECONDS

    def close(self) -> None:
        """The worker is gone."""
        os.close(self._pipe)
