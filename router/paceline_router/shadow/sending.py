"""Pairs on their way to the recorder, in a thread of its own: what does not fit is dropped, and nobody waits."""

from __future__ import annotations

import http.client
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from paceline_shadow_traffic.pair import CONTENT_TYPE, PATH, Pair, batch

if TYPE_CHECKING:
    from paceline_router.shadow.counts import Counts

log = logging.getLogger(__name__)

MAX_PAIRS: Final = 256
MAX_BYTES: Final = 32 * 1024 * 1024
"""What waits to be posted, at most."""

BATCH_PAIRS: Final = 32
BATCH_BYTES: Final = 4 * 1024 * 1024
DELAY_SECONDS: Final = 0.5
TIMEOUT_SECONDS: Final = 5.0
QUIET_SECONDS: Final = 60.0
"""Between two lines in the log about a recorder that cannot be reached."""


class Waiting(NamedTuple):
    """A pair in its form for the wire."""

    recorder: str
    data: bytes
    counts: Counts


class Sender:
    """Takes pairs from the event loop and posts them in batches. `put` belongs to the loop's thread.

    Args:
        token: gives the bearer token as it is now; empty for none.
    """

    def __init__(self, token: Callable[[], str], delay: float = DELAY_SECONDS) -> None:
        self._token = token
        self._delay = delay
        self._waiting: deque[Waiting] = deque()
        self._bytes = 0
        self._taken = 0
        """Bytes that the thread has taken. Each counter has one writer, so that neither needs a lock."""
        self._encode = msgspec.msgpack.Encoder().encode
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._silent_until = 0.0
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def put(self, recorder: str, pair: Pair, counts: Counts) -> None:
        """Post a pair to this recorder (its base URL), or drop it."""
        if len(self._waiting) >= MAX_PAIRS or self._bytes - self._taken > MAX_BYTES:
            counts.pairs["dropped"] += 1
            return
        data = self._encode(pair)
        self._bytes += len(data)
        self._waiting.append(Waiting(recorder, data, counts))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pairs", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Send what is there, once, and end."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * TIMEOUT_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(self._delay):
            self._flush()
        self._flush()
        for recorder in tuple(self._connections):
            self._drop(recorder)

    def _flush(self) -> None:
        while taken := self._take():
            outcome = self._post(taken[0].recorder, batch([one.data for one in taken]))
            for one in taken:
                one.counts.pairs[outcome] += 1
            if outcome == "lost" and self._stop.is_set():
                break

    def _take(self) -> list[Waiting]:
        """The next pairs for one recorder, as many as fit into a request."""
        taken: list[Waiting] = []
        size = 0
        waiting = self._waiting
        while waiting and len(taken) < BATCH_PAIRS and size < BATCH_BYTES:
            if taken and waiting[0].recorder != taken[0].recorder:
                break
            one = waiting.popleft()
            size += len(one.data)
            taken.append(one)
        self._taken += size
        return taken

    def _post(self, recorder: str, body: bytes) -> str:
        """One of `counts.PAIRS`. A pair that is told twice is kept once, so a connection that had ended is no loss."""
        for again in (True, False):
            reused = recorder in self._connections
            try:
                status = self._answer(recorder, body)
            except (OSError, http.client.HTTPException, ValueError) as exc:
                self._drop(recorder)
                if again and reused:
                    continue
                self._tell(recorder, str(exc) or type(exc).__name__)
                return "lost"
            if status < 300:
                return "posted"
            self._tell(recorder, f"it answered {status}")
            return "refused"
        return "lost"

    def _answer(self, recorder: str, body: bytes) -> int:
        """The status that a recorder answers with. Connections are kept: what this thread does in Python is time that
        the event loop does not have.
        """
        address = urlsplit(recorder)
        connection = self._connections.get(recorder)
        if connection is None:
            kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
            connection = self._connections[recorder] = kind(address.netloc, timeout=TIMEOUT_SECONDS)
        headers = {"content-type": CONTENT_TYPE, "authorization": f"Bearer {self._token()}"}
        connection.request("POST", address.path.rstrip("/") + PATH, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def _drop(self, recorder: str) -> None:
        connection = self._connections.pop(recorder, None)
        if connection is not None:
            connection.close()

    def _tell(self, recorder: str, trouble: str) -> None:
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + QUIET_SECONDS
            log.warning("the recorder at %s did not take a batch of pairs: %s", recorder, trouble)
