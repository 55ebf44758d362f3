"""Requests asked again, greedy: of both versions, and of the base twice, so that its own noise is known."""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from paceline_crds import headers
from paceline_shadow_traffic.answers import Answer, Asked, Mode
from paceline_shadow_traffic.both import Both
from paceline_shadow_traffic.compare import compare
from paceline_shadow_traffic.pair import Heard, Pair
from paceline_shadow_traffic.reading import answer_of, asked_of, body_of, greedy

from .records import Kind, Record

log = logging.getLogger(__name__)

MAX_WAITING: Final = 16
"""Requests that wait to be replayed; more are dropped."""

TIMEOUT_SECONDS: Final = 120.0
MAX_ANSWER: Final = 4 * 1024 * 1024
LOW_PRIORITY: Final = "low"
"""As our engine calls it: whoever waits for an answer goes first."""

_NOT_REPLAYED: Final = ("stream", "stream_options", "seed", "top_p", "n")

FIRST: Final = 400
"""Requests of a rollout that are replayed whatever the share: without noise, a gate on differences within 5 points
needs 250 to 300 of them, which at a twentieth of the pairs would take hours."""

MOST_ROLLOUTS: Final = 256
"""Of which it is remembered how many were."""

OUTCOMES: Final = ("replayed", "dropped", "base_failed", "candidate_failed")


def in_share(request_id: str, percent: float) -> bool:
    """Whether a request is of the share that is replayed. Another hash than the one it was sampled by."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=4, person=b"replay").digest()
    return int.from_bytes(digest, "big") * 100.0 < percent * 2**32


def replayed(body: Mapping[str, Any], served: str) -> dict[str, Any]:
    """The request as it is asked again: the same words, one choice, greedy, whole."""
    kept = {name: value for name, value in body.items() if name not in _NOT_REPLAYED}
    return {**kept, "model": served, "temperature": 0}


class Replayer:
    """Asks in a thread of its own, one request at a time: it is load that nobody ordered, on replicas that serve.

    Of each base and candidate the first `FIRST` requests are replayed, as far as one at a time gets, and then `percent`
    of them; none where that is 0.
    """

    def __init__(self, percent: float, keep: Callable[[list[Record], Pair, Mapping[Kind, Both[Answer]]], None]) -> None:
        self.percent = percent
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self._keep = keep
        self._replayed: dict[tuple[str, str, str], int] = {}
        self._waiting: queue.Queue[tuple[Pair, Record] | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="replays", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the request that is being asked; those that wait are dropped."""
        while True:
            try:
                self._waiting.put_nowait(None)
                return
            except queue.Full:
                try:
                    self._waiting.get_nowait()
                except queue.Empty:
                    continue

    def offer(self, pair: Pair, record: Record) -> None:
        """Replay a pair of which this is the record, if it is due; or drop it."""
        first = self.percent > 0.0 and self._replayed.get(_rollout(pair), 0) < FIRST
        if not first and not in_share(pair.id, self.percent):
            return
        try:
            self._waiting.put_nowait((pair, record))
        except queue.Full:
            self.outcomes["dropped"] += 1

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            pair, record = item
            try:
                outcome = self._replay(pair, record)
            except Exception as exc:
                # Its words may have words of a client in them.
                log.error("request %s could not be replayed: %s", pair.id, type(exc).__name__)
                outcome = "base_failed"
            self.outcomes[outcome] += 1
            if outcome == "replayed":
                self._count(_rollout(pair))

    def _count(self, rollout: tuple[str, str, str]) -> None:
        if rollout not in self._replayed and len(self._replayed) >= MOST_ROLLOUTS:
            self._replayed.pop(next(iter(self._replayed)), None)  # the oldest
        self._replayed[rollout] = self._replayed.get(rollout, 0) + 1

    def _replay(self, pair: Pair, record: Record) -> str:
        body = body_of(pair)
        asked = None if body is None else asked_of(body)
        if body is None or asked is None:
            return "base_failed"
        was_greedy = asked.mode is Mode.REPLAYED
        asked = greedy(asked)
        first = answer_of(pair.answers[0], pair.path) if was_greedy else ask(pair, body, 0, "base")
        if first is None:
            return "base_failed"
        answers: dict[Kind, Both[Answer]] = {}
        if not was_greedy:
            other = ask(pair, body, 1, "candidate")
            if other is None:
                return "candidate_failed"
            answers[Kind.REPLAY] = Both(first, other)
        again = ask(pair, body, 0, "again")
        if again is not None:
            answers[Kind.ITSELF] = Both(first, again)
        records = [_record(kind, record, asked, both) for kind, both in answers.items()]
        self._keep(records, pair, answers)
        return "replayed" if again is not None else "base_failed"


def _rollout(pair: Pair) -> tuple[str, str, str]:
    return pair.service, pair.base, pair.candidate


def _record(kind: Kind, record: Record, asked: Asked, both: Both[Answer]) -> Record:
    return Record(record.id, kind, record.at, record.place, comparison=compare(asked, both.base, both.candidate))


def ask(pair: Pair, body: Mapping[str, Any], side: int, mark: str) -> Answer | None:
    """One version's answer to the request, greedy; None where there is none.

    Args:
        side: 0 the base, 1 the candidate.
        mark: tells this request from the others of the same id, in the replica's records.
    """
    raw = json.dumps(replayed(body, pair.served[side])).encode()
    sent = {
        "content-type": "application/json",
        "accept-encoding": "identity",
        headers.INTERNAL_REQUEST_ID: f"{pair.id}-{mark}",
        headers.SHADOW: "1",
        headers.SHAPE: pair.shape,
        headers.PRIORITY: LOW_PRIORITY,
        **({headers.TENANT: pair.tenant} if pair.tenant else {}),
    }
    connection = http.client.HTTPConnection(pair.replicas[side], timeout=TIMEOUT_SECONDS)
    try:
        connection.request("POST", pair.path, raw, sent)
        answer = connection.getresponse()
        said = answer.read(MAX_ANSWER)
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    if answer.status != 200:
        return None
    return answer_of(Heard(answer.status, "", False, [(0.0, said)], 0.0), pair.path)
