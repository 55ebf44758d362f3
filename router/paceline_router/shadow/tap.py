"""The tap of one service, and all taps of a router: what is copied, to whom, and what is dropped instead of waiting."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from paceline_router.flow.backend import Backend
from paceline_router.flow.words import place_of
from paceline_router.shadow.copying import Copy
from paceline_router.shadow.counts import Counts
from paceline_router.shadow.rules import PATHS, sampled, unfit
from paceline_router.shadow.sending import Sender

if TYPE_CHECKING:
    from paceline_router.flow.admission import Admitted
    from paceline_router.flow.record import Record
    from paceline_router.table.records import Shadow
    from paceline_router.table.routes import Route

log = logging.getLogger(__name__)

MAX_WAITING: Final = 32
"""Copies of a service that wait for a place."""

WAIT_SECONDS: Final = 2.0
"""How long one waits, at most: what is sent much later than its request meets another load."""

OPEN_FOR_EACH_PLACE: Final = 4
"""Copies of a service for each place that there is: most of them wait for the rest of the base's answer."""

MAX_HELD: Final = 64 * 1024 * 1024
"""Bytes of requests and answers that all copies of a process may hold."""


@dataclass
class Target:
    """A replica of the candidate, with connections that are not those of the path of requests.

    Attributes:
        served: what the model is called there.
        busy: copies that are there now.
    """

    backend: Backend
    served: str
    busy: int = 0


@dataclass
class Held:
    """What all copies of a process hold, bytes."""

    bytes: int = 0


@dataclass
class Tap:
    """Copies of one service's requests."""

    service: str
    shadow: Shadow
    counts: Counts
    sender: Sender | None
    now: Callable[[], float]
    held: Held
    targets: dict[str, list[Target]] = field(default_factory=dict)
    """By pool."""
    running: int = 0
    closed: bool = False
    _waiting: deque[Copy] = field(default_factory=deque)
    _open: set[Copy] = field(default_factory=set)

    def use(self, shadow: Shadow, route: Route) -> None:
        """Follow a new table. Copies that run go on."""
        self.shadow = shadow
        before = {target.backend.key: target for targets in self.targets.values() for target in targets}
        self.targets = {}
        lane = route.revisions.get(shadow.revision)
        for group in () if lane is None else lane.order:
            for real in group.backends:
                if _serves_another(route, real, shadow.revision):
                    continue
                served = lane.served.get(real.key) or route.served_name if lane is not None else ""
                target = before.pop(real.key, None)
                if target is None or target.backend.replica.address != real.replica.address:
                    target = Target(Backend(real.replica, self.now()), served)
                target.served = served
                self.targets.setdefault(group.pool, []).append(target)
        for gone in before.values():
            gone.backend.remove()

    # Asked by the path of requests

    def wants(self, request_id: bytes, asked: Admitted, path: bytes, by_hand: bool) -> bool:
        """Whether this request is to be copied."""
        shadow = self.shadow
        if not sampled(request_id, shadow.percent) or path not in PATHS or self.closed:
            return False
        reason = unfit(shadow, asked, by_hand=by_hand)
        if reason is None:
            return True
        self.counts.skipped[reason] += 1
        return False

    def offer(self, exchange: Record, model: str | None, now: float) -> Copy | None:
        """A request has been sent to its own replica: its copy, or None where there is to be none. Never waits."""
        reason = self._no_place(exchange, now)
        if reason is not None:
            self.counts.skipped[reason] += 1
            return None
        copy = Copy(self, exchange, model, now)
        self._open.add(copy)
        self.hold(copy.held)
        target = self._free(copy.pool)
        if target is not None:
            self._send(copy, target)
        else:
            self._waiting.append(copy)
        return copy

    def _no_place(self, exchange: Record, now: float) -> str | None:
        if self.closed:
            return "stopped"
        if exchange.revision == self.shadow.revision:
            return "same_revision"
        if not self.targets.get(exchange.pool):
            return "no_replica"
        self._drop_old(now)
        if len(self._waiting) >= MAX_WAITING or len(self._open) >= self._most():
            return "queue_full"
        return "memory" if self.full else None

    def _most(self) -> int:
        return OPEN_FOR_EACH_PLACE * self.shadow.max_concurrent + MAX_WAITING

    # Asked by copies

    @property
    def full(self) -> bool:
        """Whether all copies together hold more than they may."""
        return self.held.bytes > MAX_HELD

    def hold(self, size: int) -> None:
        """Count bytes that a copy holds from now on."""
        self.held.bytes += size

    def leave(self, target: Target) -> None:
        """A copy has left its replica: the next one may go."""
        target.busy -= 1
        self.running -= 1
        self.counts.in_flight -= 1
        self._go_on()

    def paired(self, copy: Copy) -> None:
        """Both versions have answered."""
        if self.sender is None or self.shadow.recorder is None:
            return
        try:
            self.sender.put(self.shadow.recorder, copy.pair(), self.counts)
        except Exception:
            # This runs at the end of somebody's request, whose connections must not pay for it.
            log.exception("the pair of request %s could not be told", copy.request_id.decode())
            self.counts.pairs["dropped"] += 1

    def forget(self, copy: Copy) -> None:
        """A copy is over."""
        self.held.bytes -= copy.held
        self._open.discard(copy)
        if not copy.sent and copy in self._waiting:
            self._waiting.remove(copy)

    def close(self) -> None:
        """No copies are wanted any more."""
        self.closed = True
        for copy in tuple(self._open):
            copy.end("stopped")
        self._waiting.clear()
        for targets in self.targets.values():
            for target in targets:
                target.backend.remove()

    def _go_on(self) -> None:
        self._drop_old(self.now())
        for copy in tuple(self._waiting):
            target = self._free(copy.pool)
            if target is not None:
                self._waiting.remove(copy)
                self._send(copy, target)

    def _drop_old(self, now: float) -> None:
        waiting = self._waiting
        while waiting and now - waiting[0].since > WAIT_SECONDS:
            waiting[0].end("waited")

    def _free(self, pool: str) -> Target | None:
        """The replica with the fewest copies, where another one may run."""
        if self.closed or self.running >= self.shadow.max_concurrent:
            return None
        return min(self.targets.get(pool, ()), key=lambda target: target.busy, default=None)

    def _send(self, copy: Copy, target: Target) -> None:
        target.busy += 1
        self.running += 1
        self.counts.in_flight += 1
        copy.start(target)


class Taps:
    """All taps of a process. Without a service that wants copies there is none, and nothing runs."""

    def __init__(self, now: Callable[[], float], sender: Sender | None = None) -> None:
        self._now = now
        self.sender = sender
        self._held = Held()
        self._taps: dict[str, Tap] = {}
        self.counts: dict[str, Counts] = {}
        """By service; they outlive a tap, as counters do."""

    @property
    def held(self) -> int:
        """Bytes that all copies hold now."""
        return self._held.bytes

    def follow(self, route: Route) -> Tap | None:
        """The tap of a service by a new table; None where nothing is to be copied."""
        key = route.service.key
        shadow = route.service.shadow
        tap = self._taps.get(key)
        if tap is not None and (shadow is None or shadow.revision != tap.shadow.revision):
            del self._taps[key]
            tap.close()
            tap = None
        if shadow is None:
            return None
        if tap is None:
            counts = self.counts.setdefault(key, Counts())
            tap = self._taps[key] = Tap(key, shadow, counts, self.sender, self._now, self._held)
        tap.use(shadow, route)
        return tap

    def keep_only(self, services: Mapping[str, object]) -> None:
        """Forget services that are gone."""
        for key in self.counts.keys() - services.keys():
            del self.counts[key]
            tap = self._taps.pop(key, None)
            if tap is not None:
                tap.close()

    def close(self) -> None:
        """End all copies."""
        for tap in self._taps.values():
            tap.close()


def _serves_another(route: Route, backend: Backend, revision: str) -> bool:
    """Whether clients' requests for another revision go to this replica: versions may share the pods of a pool."""
    for lane in route.lanes:
        if backend in lane.backends and place_of(lane.labels.get(backend.key, b""))[1] != revision:
            return True
    return False
