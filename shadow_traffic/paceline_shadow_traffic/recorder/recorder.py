"""From pairs to records: a bounded queue, and one thread that compares."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from paceline_shadow_traffic.answers import Answer
from paceline_shadow_traffic.both import Both
from paceline_shadow_traffic.compare import compare
from paceline_shadow_traffic.pair import Pair
from paceline_shadow_traffic.reading import answer_of, asked_of, body_of, failure_of, times_of

from .plugins import Plugin
from .records import Kind, Place, Record
from .replaying import Replayer
from .store import Store

log = logging.getLogger(__name__)

MAX_WAITING_PAIRS: Final = 2048
MAX_WAITING_BYTES: Final = 128 * 1024 * 1024
TIDY_SECONDS: Final = 30.0

RECEIVED: Final = ("kept", "known", "not_comparable", "base_unreadable", "failed", "dropped")
"""What became of pairs. `known`: told before; `failed`: comparing it raised; `dropped`: the queue was full."""


class Recorder:
    """Takes pairs of any thread, compares them in one of its own, and keeps what comes out."""

    def __init__(self, store: Store, plugins: Sequence[Plugin] = (), replay_percent: float = 0.0) -> None:
        self.store = store
        self.plugins = tuple(plugins)
        self.received = dict.fromkeys(RECEIVED, 0)
        self.replayer = Replayer(replay_percent, self._keep_replays)
        self._waiting: queue.SimpleQueue[Pair | None] = queue.SimpleQueue()
        self._pairs = self._bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="comparisons", daemon=True)
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to compare."""
        self._thread.start()
        self.replayer.start()
        threading.Thread(target=self._tidy, name="tidy", daemon=True).start()

    def stop(self) -> None:
        """Compare what waits, and end."""
        self._ended.set()
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self.replayer.stop()
        for plugin in self.plugins:
            plugin.close()
        self.store.close()

    @property
    def alive(self) -> bool:
        """Whether pairs are being compared."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Pairs that are not compared yet."""
        return self._pairs

    def offer(self, pairs: Sequence[Pair]) -> bool:
        """Take pairs, all or none; False where there is no room for them."""
        size = sum(map(_size, pairs))
        with self._lock:
            if self._pairs + len(pairs) > MAX_WAITING_PAIRS or self._bytes + size > MAX_WAITING_BYTES:
                self.received["dropped"] += len(pairs)
                return False
            self._pairs += len(pairs)
            self._bytes += size
        for pair in pairs:
            self._waiting.put(pair)
        return True

    def _run(self) -> None:
        while (pair := self._waiting.get()) is not None:
            try:
                outcome = self._take(pair)
            except Exception as exc:
                # Its words may have words of a client in them.
                log.error("the pair of request %s could not be compared: %s", pair.id, type(exc).__name__)
                outcome = "failed"
            with self._lock:
                self.received[outcome] += 1
                self._pairs -= 1
                self._bytes -= _size(pair)

    def _take(self, pair: Pair) -> str:
        """Compare a pair and keep what came out; one of `RECEIVED`."""
        place = Place(pair.service, pair.base, pair.candidate, pair.pool, pair.shape)
        old, new = pair.answers
        base = answer_of(old, pair.path)
        if base is None or failure_of(old) is not None:
            return "base_unreadable"
        body = body_of(pair)
        asked = None if body is None else asked_of(body)
        if body is None or asked is None:
            return "not_comparable"
        failure = failure_of(new)
        candidate = None if failure is not None else answer_of(new, pair.path)
        if candidate is None:
            record = Record(pair.id, Kind.FAILED, pair.at, place, failure=failure or "unreadable")
            return "kept" if self.store.add([record], time.time()) else "known"
        record = Record(
            pair.id,
            Kind.PAIR,
            pair.at,
            place,
            comparison=compare(asked, base, candidate),
            times=Both(times_of(old), times_of(new)),
        )
        scores = {plugin.name: plugin.score(body, base, candidate) for plugin in self.plugins}
        record = replace(record, scores={name: score for name, score in scores.items() if score is not None})
        if not self.store.add([self._with_texts(record, pair, Both(base, candidate))], time.time()):
            return "known"
        self.replayer.offer(pair, record)
        return "kept"

    def _keep_replays(self, records: list[Record], pair: Pair, answers: Mapping[Kind, Both[Answer]]) -> None:
        kept = [self._with_texts(record, pair, answers[record.kind]) for record in records]
        self.store.add(kept, time.time())

    def _with_texts(self, record: Record, pair: Pair, both: Both[Answer]) -> Record:
        """The record with hashes of what was said, and with the words themselves where they are kept."""
        said: list[dict[str, Any]] = [asdict(both.base), asdict(both.candidate)]
        hashes = Both(*(self.store.hash(json.dumps(one, sort_keys=True)) for one in said))
        raw = None
        if self.store.limits.raw_age:
            request = pair.request.decode("utf-8", "replace")
            raw = json.dumps({"request": request, "base": said[0], "candidate": said[1]}).encode()
        return replace(record, hashes=hashes, raw=raw)

    def _tidy(self) -> None:
        while not self._ended.wait(TIDY_SECONDS):
            try:
                self.store.tidy(time.time())
            except Exception as exc:
                log.error("old records could not be given up: %s", exc)


def _size(pair: Pair) -> int:
    return len(pair.request) + sum(len(data) for heard in pair.answers for _, data in heard.pieces)
