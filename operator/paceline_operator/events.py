"""Kubernetes Events about decisions: repeats become a count, floods are cut, and nothing here blocks a reconcile."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from paceline_crds.logs import decision
from paceline_kube import EVENTS, JsonObject, KubeClient, KubeError, NotFound

log = logging.getLogger(__name__)

COMPONENT = "paceline-operator"
MESSAGE_LIMIT = 1024  # the API server's
MOST_TOLD = 65_536
"""Services and reasons that are counted: a thousand services have some ten reasons each."""

REMEMBER = 4096
"""Series kept in memory; the oldest is forgotten, and would start a new Event."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How much is written: `burst` Events per object at once, then one every `refill` seconds."""

    burst: int = 25
    refill: float = 60.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


@dataclass(frozen=True, slots=True)
class _Series:
    """What makes two events the same."""

    namespace: str
    uid: str
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class _Record:
    about: JsonObject
    first: float
    last: float
    count: int = 1
    name: str = ""  # of the Event, once it is written
    written: int = 0


@dataclass(slots=True)
class Counters:
    """Events so far."""

    written: int = 0
    merged: int = 0
    dropped: int = 0
    told: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """By namespace and name of what they are about, and reason; repeats count once."""


@dataclass(slots=True)
class _State:
    records: OrderedDict[_Series, _Record] = field(default_factory=OrderedDict)
    buckets: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict)
    pending: dict[_Series, None] = field(default_factory=dict)


class EventRecorder:
    """`event` notes and returns; `run` writes, at most once per `interval` and series."""

    def __init__(
        self,
        client: KubeClient,
        *,
        instance: str,
        rate: Rate | None = None,
        interval: float = 1.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            instance: who reports, such as the pod's name.
            interval: seconds between two rounds of writing.
            wall: seconds since the epoch.
        """
        self._client = client
        self._instance = instance
        self._rate = rate or Rate()
        self._interval = interval
        self._wall = wall
        self._state = _State()
        self._wake = asyncio.Event()
        self.counters = Counters()

    def event(self, about: JsonObject, *, type: str, reason: str, message: str) -> None:
        """Tell something about an object, as an Event and in the log. Never raises for the API server's sake, and
        never waits.
        """
        metadata = about["metadata"]
        now = self._wall()
        words = message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…"
        series = _Series(metadata.get("namespace") or "default", str(metadata.get("uid") or ""), type, reason, words)
        if not self._admit(series.uid or metadata["name"], now):
            self.counters.dropped += 1
            return
        records = self._state.records
        record = records.get(series)
        if record is None:
            records[series] = _Record(_reference(about), now, now)
            place = (series.namespace, str(metadata["name"]), reason)
            told = self.counters.told
            told[place] = told.pop(place, 0) + 1
            if len(told) > MOST_TOLD:
                del told[next(iter(told))]  # what was told longest ago, of a service that is long gone most likely
            _say(about, type, reason, message)
        else:
            record.count += 1
            record.last = now
            self.counters.merged += 1
        records.move_to_end(series)
        while len(records) > REMEMBER:
            forgotten, _ = records.popitem(last=False)
            self._state.pending.pop(forgotten, None)
        self._state.pending[series] = None
        self._wake.set()

    async def run(self) -> None:
        """Write what was noted, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.flush()
            await asyncio.sleep(self._interval)

    async def flush(self) -> None:
        """Write everything noted so far. What cannot be written is dropped: an event is news, not state."""
        pending = list(self._state.pending)
        self._state.pending.clear()
        for series in pending:
            record = self._state.records.get(series)
            if record is None or record.written == record.count:
                continue
            try:
                await self._write(series, record)
                self.counters.written += 1
            except KubeError as exc:
                self.counters.dropped += 1
                log.info("event %s about %s not written: %s", series.reason, record.about["name"], exc)

    async def _write(self, series: _Series, record: _Record) -> None:
        count = record.count
        if record.name:
            body = {"count": count, "lastTimestamp": _stamp(record.last)}
            try:
                await self._client.patch(EVENTS, record.name, body, series.namespace)
            except NotFound:
                # The API server keeps Events for an hour; a later repeat starts a new series.
                record.name = ""
                record.first, record.count = record.last, count - record.written
                count = record.count
        if not record.name:
            record.name = await self._create(series, record)
        record.written = count

    async def _create(self, series: _Series, record: _Record) -> str:
        # The name of an Event is at most 253 characters; its object's name may already be that long.
        name = f"{record.about['name'][:230]}.{uuid.uuid4().hex[:16]}"
        await self._client.create(
            EVENTS,
            {
                "metadata": {"name": name, "namespace": series.namespace},
                "involvedObject": record.about,
                "type": series.type,
                "reason": series.reason,
                "message": series.message,
                "source": {"component": COMPONENT},
                "reportingComponent": COMPONENT,
                "reportingInstance": self._instance,
                "firstTimestamp": _stamp(record.first),
                "lastTimestamp": _stamp(record.last),
                "count": record.count,
            },
            series.namespace,
        )
        return name

    def _admit(self, key: str, now: float) -> bool:
        buckets = self._state.buckets
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = _Bucket(self._rate.burst, now)
        buckets.move_to_end(key)
        while len(buckets) > REMEMBER:
            buckets.popitem(last=False)
        gained = max(0.0, now - bucket.at) / self._rate.refill
        bucket.tokens = min(self._rate.burst, bucket.tokens + gained)
        bucket.at = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


def _say(about: JsonObject, type: str, reason: str, message: str) -> None:
    """One line in the log, where it can be read after Events have run out."""
    metadata = about["metadata"]
    revision = (about.get("status") or {}).get("currentRevision")
    service = f"{metadata.get('namespace') or 'default'}/{metadata['name']}"
    level = logging.WARNING if type == "Warning" else logging.INFO
    log.log(level, "%s: %s", service, message, extra=decision(revision=revision, service=service, reason=reason))


def _reference(about: JsonObject) -> JsonObject:
    metadata = about["metadata"]
    reference = {
        "apiVersion": about.get("apiVersion"),
        "kind": about.get("kind"),
        "name": metadata["name"],
        "namespace": metadata.get("namespace"),
        "uid": metadata.get("uid"),
        "resourceVersion": metadata.get("resourceVersion"),
    }
    return {key: value for key, value in reference.items() if value}


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
