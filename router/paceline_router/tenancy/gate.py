"""Slots per tenant, and the queue of requests that may not go yet: a weighted fair one.

Start-time fair queueing (Goyal, Vin, Cheng 1996): each tenant's next request has a start tag in virtual time, the least
one goes first, and going moves the tenant's tag on by tokens ÷ weight. Of two tenants that both have requests waiting
and slots free, over any span, the tokens let through ÷ weight differ by less than one largest request ÷ weight of each.

One thing is not as in a network: what was let through is not gone, it runs, often for minutes. Whoever waits while
others fill the fleet is behind by its share of that. So a tenant that begins to wait may begin before the present, by
at most the tokens that run ÷ the weights of those who wait: it goes first until it has its share of what runs, and
what it left unused beyond that is nobody's debt. The difference above grows by so much, once for each time it begins.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import Any, Final, Generic, Protocol, TypeVar

from paceline_crds.durations import parse_duration
from paceline_crds.tenancy import TenancySpec
from paceline_router.tenancy import refusals
from paceline_router.tenancy.tenant import Tenant
from paceline_router.wire.answers import Refusal

MAX_QUEUED: Final = 10_000
MAX_QUEUED_PER_TENANT: Final = 100
MAX_QUEUED_WITHOUT_TENANCY: Final = 2_000
"""Where all requests count as one tenant's."""
MAX_WAIT: Final = 30.0

PRIORITIES: Final = {b"high": -1, b"normal": 0, b"low": 1}

_SMOOTHING: Final = 0.2
_SPARE: Final = 32


def priority_of(value: bytes | None) -> int:
    """The class of an `x-paceline-priority` header that `heads.check` has let through; lower is sooner."""
    if value is None:
        return 0
    known = PRIORITIES.get(value)
    return int(value) if known is None else known


class Ticket(Protocol):
    """A request at the gate, which is the exchange itself.

    Attributes:
        tokens: estimated cost of the request. Does not change.
        priority: asked for only when the request has to wait.
        place: the gate's own. None to begin with and at the end, `SLOT` with a slot, something else while it waits.
        parked_at: when the request began to wait; 0.0 when it never did.
    """

    tenant: Tenant
    tokens: int
    place: Any
    parked_at: float

    @property
    def priority(self) -> int:
        """Class within the tenant; lower is sooner, 0 is normal."""
        ...


T = TypeVar("T", bound=Ticket)


class _Slot:
    """The `place` of a ticket that has a slot."""


SLOT: Final = _Slot()


class _Place:
    """The `place` of a ticket that waits. Without its ticket it is what is left of one that does no longer."""

    __slots__ = ("number", "priority", "ticket")

    def __init__(self, priority: int, number: int, ticket: Any) -> None:
        self.priority = priority
        self.number = number
        self.ticket = ticket

    def __lt__(self, other: _Place) -> bool:
        if self.priority != other.priority:
            return self.priority < other.priority
        return self.number < other.number


class Drain:
    """How fast a queue empties, measured while something is in it: smoothed seconds from one departure to the next."""

    __slots__ = ("_gap", "_mark")

    def __init__(self, now: float) -> None:
        self._gap: float | None = None
        self._mark = now

    def began(self, now: float) -> None:
        """Something waits again after nothing did."""
        self._mark = now

    def left(self, now: float) -> None:
        """One has gone on."""
        gap = max(0.0, now - self._mark)
        self._gap = gap if self._gap is None else self._gap + _SMOOTHING * (gap - self._gap)
        self._mark = now

    def wait(self, ahead: int, now: float) -> float | None:
        """Seconds until so many are gone; None when none has been seen going. A standstill counts as slow."""
        if self._gap is None:
            return None
        return max(self._gap, (now - self._mark) / 2.0) * ahead


class TenantQueue:
    """One tenant's waiting requests and its place in virtual time."""

    __slots__ = ("drain", "finish", "heap", "owed", "start", "weight")

    def __init__(self, now: float) -> None:
        self.heap: list[_Place] = []
        self.finish = 0.0
        """Virtual time at which what was let through is paid for."""
        self.owed = 0.0
        """What ended requests took beyond their estimates, in virtual time; below zero: they took less."""
        self.start: float | None = None
        """Tag of the tenant in the order of the gate; None while nothing waits or no slot is free."""
        self.weight = 0
        """The tenant's, as it was when its first request began to wait."""
        self.drain = Drain(now)

    def head(self) -> _Place | None:
        """Whoever is next of this tenant. Drops what is left of those who went away."""
        heap = self.heap
        while heap and heap[0].ticket is None:
            heappop(heap)
        return heap[0] if heap else None

    def tidy(self, live: int) -> None:
        """Bound what is left of those who went away."""
        if len(self.heap) > 2 * live + _SPARE:
            self.heap = [place for place in self.heap if place.ticket is not None]
            heapify(self.heap)


class Gate(Generic[T]):
    """The gate of one service in one router process. Times are monotonic seconds, above zero.

    The caller knows whether the fleet has room, and says so. It calls `next` as often as there is room (after `leave`,
    after an `enter` that returned False although there was room, and when replicas come), `expired` now and then, and
    `leave` once for every ticket that it called `enter` with, however the request ends.
    """

    def __init__(self, max_queued: int = MAX_QUEUED) -> None:
        self.queued = 0
        """Tickets that wait."""
        self.max_wait = MAX_WAIT
        self._max_queued = max_queued
        self._most = MAX_QUEUED_PER_TENANT
        self._virtual = 0.0
        self._number = 0
        self._running_tokens = 0
        self._waiting_weight = 0
        self._order: list[tuple[float, int, Tenant]] = []
        self._eligible = 0
        self._waiting: OrderedDict[int, _Place] = OrderedDict()
        """By number, in the order of coming; before them, with numbers below zero, those who were put back."""
        self._drain = Drain(0.0)

    def use(self, spec: TenancySpec | None) -> None:
        """Go by this from now on; call it after `Tenants.use`, which changes slots and weights."""
        per_tenant = None if spec is None else spec.max_queued_per_tenant
        usual = MAX_QUEUED_WITHOUT_TENANCY if spec is None else MAX_QUEUED_PER_TENANT
        self._most = usual if per_tenant is None else per_tenant
        longest = None if spec is None else spec.max_wait
        self.max_wait = MAX_WAIT if longest is None else parse_duration(longest)
        for tenant in {id(place.ticket.tenant): place.ticket.tenant for place in self._waiting.values()}.values():
            self._look_at(tenant)

    def enter(self, ticket: T, room: bool, now: float) -> bool:
        """Whether the request goes now, with a slot; otherwise it waits.

        Args:
            room: a replica could take the request at once.

        Raises:
            Refusal: 429 when as many wait as may.
        """
        tenant = ticket.tenant
        if room and not self._eligible and tenant.running < tenant.slots:
            tenant.running += 1
            tenant.counts.admitted += 1
            self._running_tokens += ticket.tokens
            ticket.place = SLOT
            return True
        self._park(ticket, tenant, now)
        return False

    def _park(self, ticket: T, tenant: Tenant, now: float) -> None:
        if tenant.queued >= self._most:
            tenant.counts.rejected["queue"] += 1
            raise refusals.queue_full(tenant, self._most, self._wait(tenant, now))
        # Half is kept for tenants in the spec: names that clients make up must not shut them out.
        if self.queued >= (self._max_queued if tenant.named else self._max_queued // 2):
            tenant.counts.rejected["queue"] += 1
            raise refusals.all_queues_full(tenant, self.queued, self._wait(tenant, now))
        ticket.parked_at = now
        self._number += 1
        self._put_in(ticket, tenant, self._number, now)

    def put_back(self, ticket: T, now: float) -> None:
        """Give the slot of a ticket back, for which there was no room after all, and let it wait: before others of its
        class, and since when it has waited already.
        """
        if ticket.place is not SLOT:
            return
        tenant = ticket.tenant
        tenant.running -= 1
        tenant.counts.admitted -= 1
        self._running_tokens -= ticket.tokens
        if ticket.parked_at and tenant.queue is not None:
            tenant.queue.owed -= max(1, ticket.tokens) / tenant.weight
        ticket.parked_at = ticket.parked_at or now
        self._number += 1
        number = -self._number
        self._put_in(ticket, tenant, number, now)
        self._waiting.move_to_end(number, last=False)

    def _put_in(self, ticket: T, tenant: Tenant, number: int, now: float) -> None:
        queue = tenant.queue
        if queue is None:
            queue = tenant.queue = TenantQueue(now)
        if tenant.queued == 0:
            queue.drain.began(now)
            queue.weight = tenant.weight
            self._waiting_weight += queue.weight
        if self.queued == 0:
            self._drain.began(now)
        place = ticket.place = _Place(ticket.priority, number, ticket)
        heappush(queue.heap, place)
        self._waiting[number] = place
        self.queued += 1
        tenant.queued += 1
        self._look_at(tenant)

    def next(self, now: float) -> T | None:
        """Whoever goes now that there is room, with a slot; None when nobody waits who may."""
        order = self._order
        while order:
            start, _, tenant = heappop(order)
            queue = tenant.queue
            if queue is None or queue.start != start:
                continue  # what is left of an earlier place in the order
            queue.start = None
            self._eligible -= 1
            place = queue.head()
            assert place is not None
            ticket: T = place.ticket
            self._virtual = max(self._virtual, start)
            queue.finish = start + max(1, ticket.tokens) / tenant.weight + queue.owed
            queue.owed = 0.0
            queue.drain.left(now)
            self._drain.left(now)
            self._take_out(place, tenant)
            tenant.running += 1
            tenant.counts.admitted += 1
            tenant.counts.waited(max(0.0, now - ticket.parked_at))
            self._running_tokens += ticket.tokens
            ticket.place = SLOT
            self._look_at(tenant)
            return ticket
        return None

    def leave(self, ticket: T, used: int | None = None) -> None:
        """The request has ended, wherever it was: its slot is free, or its place in the queue. Twice does no harm.

        Args:
            used: tokens it took in truth, where known. If it had to wait, and others of its tenant do now, its share
                is reckoned by them.
        """
        place = ticket.place
        if place is None:
            return
        ticket.place = None
        tenant = ticket.tenant
        if place is not SLOT:
            self._take_out(place, tenant)
            self._look_at(tenant)
            return
        tenant.running -= 1
        self._running_tokens -= ticket.tokens
        if tenant.queued:
            queue = tenant.queue
            assert queue is not None
            if used is not None and ticket.parked_at:
                queue.owed += (max(1, used) - max(1, ticket.tokens)) / tenant.weight
            self._look_at(tenant)

    def drop(self, ticket: T) -> None:
        """`leave` for a ticket that waits, by the name of what it means."""
        self.leave(ticket)

    def expired(self, now: float, hold: float = 0.0) -> list[T]:
        """Those who have waited for as long as they may, taken out of the queue. `refusal` has the words.

        Args:
            hold: seconds for which requests are held anyway, while no replica is there.
        """
        longest = max(self.max_wait, hold)
        found: list[T] = []
        for place in self._waiting.values():
            if now - place.ticket.parked_at >= longest:
                found.append(place.ticket)
            elif place.number > 0:
                break  # all behind came later; only those who were put back, in front, are in no order
        for ticket in found:
            self.leave(ticket)
        return found

    def refusal(self, ticket: T, now: float) -> Refusal:
        """The 429 of a ticket that `expired` gave. Counts it, so call it once."""
        tenant = ticket.tenant
        tenant.counts.rejected["wait"] += 1
        return refusals.waited_too_long(tenant, now - ticket.parked_at, self._wait(tenant, now))

    def waiting(self) -> list[T]:
        """Those who wait, at this moment; may be asked by another thread."""
        return [place.ticket for place in list(self._waiting.values()) if place.ticket is not None]

    def oldest_wait(self, now: float) -> float:
        """Seconds for which the first of those who wait has waited; 0 when nobody does."""
        oldest = 0.0
        for place in self._waiting.values():
            oldest = max(oldest, now - place.ticket.parked_at)
            if place.number > 0:
                break
        return oldest

    def _take_out(self, place: _Place, tenant: Tenant) -> None:
        place.ticket = None
        del self._waiting[place.number]
        self.queued -= 1
        tenant.queued -= 1
        queue = tenant.queue
        assert queue is not None
        queue.tidy(tenant.queued)
        if tenant.queued == 0:
            self._waiting_weight -= queue.weight

    def _look_at(self, tenant: Tenant) -> None:
        """Put a tenant into the order, or out of it, by what is true of it now."""
        queue = tenant.queue
        if queue is None:
            return
        eligible = tenant.queued > 0 and tenant.running < tenant.slots
        if eligible and queue.start is None:
            ahead = self._running_tokens / self._waiting_weight
            queue.start = max(self._virtual - ahead, queue.finish + queue.owed)
            queue.finish, queue.owed = queue.start, 0.0
            self._eligible += 1
            self._number += 1
            heappush(self._order, (queue.start, self._number, tenant))
        elif not eligible and queue.start is not None:
            queue.start = None
            self._eligible -= 1
            if len(self._order) > 2 * self._eligible + _SPARE:
                self._order = [entry for entry in self._order if entry[2].queue and entry[2].queue.start == entry[0]]
                heapify(self._order)

    def _wait(self, tenant: Tenant, now: float) -> float:
        """What a request of the tenant would have to wait if it came now, by how fast the queue empties. Where that is
        not known, the longest there is.
        """
        wait = None
        if tenant.queue is not None and tenant.queued:
            wait = tenant.queue.drain.wait(tenant.queued, now)
        if wait is None and self.queued:
            wait = self._drain.wait(self.queued, now)
        return self.max_wait if wait is None else min(wait, 10.0 * self.max_wait)
