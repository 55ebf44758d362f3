"""Leader election on a Lease; `guard` keeps a former leader from writing.

Kubernetes has no fencing token, so exclusion rests on time: a holder counts its lease from before it *sent*
the renewal, on its own monotonic clock; a candidate counts from when it *saw* the last renewal, on its own.
Wall clocks play no part, they may differ by any amount. Every write ends by its timeout, here and in the API
server, and none starts with less lease left than that.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from paceline_kube import LEASES, AlreadyExists, Conflict, JsonObject, KubeClient, KubeError, NotFound

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds.

    Attributes:
        duration: how long a lease counts without a renewal; a crashed leader is followed after this plus a `retry`.
        renew_deadline: a leader that could not renew for so long stops its work; what is left until
            `duration` lets writes under way end.
        retry: pause between two tries, to renew or to acquire.
    """

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.renew_deadline < self.duration:
            raise ValueError("a lease needs 0 < retry < renew_deadline < duration")


@dataclass(frozen=True, slots=True)
class Sighting:
    """The Lease as it was last seen to change, and when that was on our monotonic clock."""

    holder: str
    version: str
    duration: float
    at: float


Move = Literal["create", "take", "renew", "wait"]


def next_move(identity: str, exists: bool, seen: Sighting | None, now: float) -> Move:
    """What a candidate does. `exists`: there is a Lease object now; `seen`: the last one seen, if any."""
    if seen is not None and seen.holder not in ("", identity) and now - seen.at < seen.duration:
        return "wait"  # also where somebody has deleted the object: its holder may not know yet
    if not exists or seen is None:
        return "create"
    return "renew" if seen.holder == identity else "take"


class Election:
    """One candidate. `run` until cancelled; `leading`: work may go on; `remaining`: for how long that is certain."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaseTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        """
        Args:
            client: not a guarded one.
            identity: unique among all processes, restarts of the same one included.
            clock: monotonic seconds. wall: seconds since the epoch, for readers of the Lease only.
        """
        self._client = client
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self.timing = timing or LeaseTiming()
        self._clock = clock
        self._wall = wall
        self._rng = rng or random.Random()
        self._seen: Sighting | None = None
        self._renewed: float | None = None
        self._held: JsonObject | None = None  # the Lease as our last write left it, while we lead
        self.leading = asyncio.Event()
        self.stopped_leading = asyncio.Event()
        self.stopped_leading.set()

    @property
    def holder(self) -> str:
        """Who held the lease when it was last read; empty if nobody, or not known."""
        return self._seen.holder if self._seen is not None else ""

    def remaining(self) -> float:
        """Seconds for which no other process can hold the lease; zero or less for everyone but the leader."""
        if self._renewed is None:
            return 0.0
        return self._renewed + self.timing.duration - self._clock()

    async def run(self) -> None:
        """Acquire, renew, step down and try again, until cancelled. Leaves the Lease as it is: see `release`."""
        try:
            while True:
                await self.step()
                await asyncio.sleep(self._pause())
        finally:
            self._step_down("stopping", logging.INFO)

    async def step(self) -> None:
        """One try to acquire or renew. Errors are part of the business: they are logged, and judged by time."""
        started = self._clock()
        most = self.timing.renew_deadline / 2
        if self._renewed is not None:
            # A renewal that hangs must not outlive the deadline unnoticed.
            most = min(most, max(0.0, self._renewed + self.timing.renew_deadline - started))
        try:
            async with asyncio.timeout(most):
                await self._try(started)
        except (Conflict, AlreadyExists):
            log.info("lease %s: another candidate was first", self._name)
        except (KubeError, TimeoutError) as exc:
            log.warning("lease %s: %s", self._name, str(exc) or "no answer in time")
        self._judge()

    async def release(self) -> None:
        """Give the lease up, so that nobody need wait for it to run out. Call once no write is under way."""
        self._step_down("released", logging.INFO)
        if self.holder != self.identity:
            return
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
            if lease.get("spec", {}).get("holderIdentity") == self.identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._stamp()}
                await self._client.replace(LEASES, lease)
        except KubeError as exc:
            log.warning("lease %s: not released, it runs out by itself: %s", self._name, exc)

    async def _try(self, started: float) -> None:
        if self._held is not None:
            try:
                self._stored(await self._renew(self._held), started)
                return
            except (Conflict, NotFound):
                # Somebody else has written, or our own last answer was lost: looking tells.
                self._held = None
        try:
            lease: JsonObject | None = await self._client.get(LEASES, self._name, self._namespace)
        except NotFound:
            lease = None
        if lease is not None:
            self._see(lease)
        move = next_move(self.identity, lease is not None, self._seen, self._clock())
        if move == "wait":
            self._renewed = None
            return
        if lease is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            stored = await self._client.create(LEASES, {"metadata": metadata, "spec": self._spec({}, move)})
        else:
            # The resourceVersion read above goes back with it: of two candidates one gets a conflict.
            stored = await self._client.replace(LEASES, {**lease, "spec": self._spec(lease.get("spec") or {}, move)})
        self._stored(stored, started)

    async def _renew(self, held: JsonObject) -> JsonObject:
        """Over the very version that our last write left, so that nobody can have had the lease in between."""
        return await self._client.replace(LEASES, {**held, "spec": self._spec(held["spec"], "renew")})

    def _stored(self, lease: JsonObject, started: float) -> None:
        self._see(lease)
        self._renewed = started
        self._held = lease

    def _see(self, lease: JsonObject) -> None:
        spec = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        version = str(lease["metadata"]["resourceVersion"])
        if self._seen is None or self._seen.version != version:
            duration = float(spec.get("leaseDurationSeconds") or self.timing.duration)
            # After the answer, so never earlier than the write that we see: waiting too long is the safe side.
            self._seen = Sighting(holder, version, duration, self._clock())

    def _spec(self, old: JsonObject, move: Move) -> JsonObject:
        now = self._stamp()
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self.timing.duration),
            "renewTime": now,
            "acquireTime": old.get("acquireTime", now) if move == "renew" else now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (move == "take"),
        }

    def _judge(self) -> None:
        if self._renewed is None:
            self._step_down("the lease is held by " + (self.holder or "nobody"))
        elif self._clock() - self._renewed >= self.timing.renew_deadline:
            self._step_down(f"not renewed for {self.timing.renew_deadline:g} s")
        elif not self.leading.is_set():
            log.info("lease %s: leading as %s", self._name, self.identity)
            self.stopped_leading.clear()
            self.leading.set()

    def _step_down(self, why: str, level: int = logging.WARNING) -> None:
        self._renewed = None
        self._held = None
        if self.leading.is_set():
            log.log(level, "lease %s: no longer leading: %s", self._name, why)
            self.leading.clear()
            self.stopped_leading.set()

    def _pause(self) -> float:
        # Candidates spread out; a leader keeps its rhythm.
        return self.timing.retry * (1.0 if self.leading.is_set() else self._rng.uniform(0.6, 1.2))

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
