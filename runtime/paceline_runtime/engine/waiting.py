"""The queue: requests by tenant, taken in the order of the rules. Nothing is sorted anew in a step."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from paceline_crds.runtime_config import QueuePolicy

from .limits import SchedulingRules
from .policy import QUOTA, Key, KeyOf, order, order_under_pressure, rule_name
from .rates import Rates
from .request import Request, RequestState
from .tenants import Tenants

Entry = tuple[Key, int, Request]


class Lanes:
    """One heap of requests for each tenant, and a heap of tenants. Stale entries are dropped when they come up.

    A tenant's key only grows, unless a better request arrives: that one is then offered anew. So an entry at the top
    whose key has grown is put back by its present key, and the first one that is up to date is the least.
    """

    def __init__(self, key: KeyOf, tenants: Tenants, fair_share: bool) -> None:
        self._key = key
        self._tenants = tenants
        self._fair_share = fair_share
        self._lanes: dict[str, list[Entry]] = {}
        self._heads: list[tuple[Key, str]] = []
        self._offered: dict[str, Key] = {}
        self._stale = 0

    def push(self, request: Request) -> None:
        """Add a request, by its ticket."""
        lane = self._lanes.setdefault(request.tenant, [])
        heapq.heappush(lane, (self._key(request), request.ticket, request))
        if lane[0][2] is request:
            self.offer(request.tenant)

    def tokens_ahead(self, request: Request) -> int:
        """Tokens of the requests that would be taken before this one, which is not in the queue."""
        key = self._key(request)
        return sum(
            len(other.tokens)
            for lane in self._lanes.values()
            for theirs, ticket, other in lane
            if theirs < key and other.ticket == ticket
        )

    def removed(self, live: int) -> None:
        """A request lost its ticket, and `live` are left: clean up if most entries are stale."""
        self._stale += 1
        if self._stale <= 2 * live + 64:
            return
        self._stale = 0
        for tenant, lane in list(self._lanes.items()):
            lane[:] = [entry for entry in lane if entry[2].ticket == entry[1]]
            heapq.heapify(lane)
            if not lane:
                del self._lanes[tenant]
                self._offered.pop(tenant, None)
        self._heads = [(outer, tenant) for tenant, outer in self._offered.items()]
        heapq.heapify(self._heads)

    def offer(self, tenant: str) -> None:
        """A tenant may be chosen (again)."""
        entry = self._head(tenant)
        if entry is not None:
            outer = self._outer(tenant, entry[0])
            if self._offered.get(tenant) != outer:
                self._offered[tenant] = outer
                heapq.heappush(self._heads, (outer, tenant))

    def first(self, eligible: Callable[[Request], bool]) -> tuple[Request | None, list[Request]]:
        """The next request, and the first ones of tenants that are not eligible: these are set aside until `offer`."""
        aside: list[Request] = []
        while self._heads:
            outer, tenant = self._heads[0]
            if self._offered.get(tenant) != outer:
                heapq.heappop(self._heads)
                continue
            entry = self._head(tenant)
            if entry is None:
                heapq.heappop(self._heads)
                del self._offered[tenant], self._lanes[tenant]
                continue
            current = self._outer(tenant, entry[0])
            if current != outer:
                self._offered[tenant] = current
                heapq.heapreplace(self._heads, (current, tenant))
                continue
            if eligible(entry[2]):
                return entry[2], aside
            heapq.heappop(self._heads)
            del self._offered[tenant]
            aside.append(entry[2])
        return None, aside

    def _head(self, tenant: str) -> Entry | None:
        lane = self._lanes.get(tenant)
        while lane:
            _, ticket, request = lane[0]
            if request.ticket == ticket:
                return lane[0]
            heapq.heappop(lane)
        return None

    def _outer(self, tenant: str, key: Key) -> Key:
        if not self._fair_share:
            return key
        return (key[0], key[1], self._tenants[tenant].virtual, *key[2:])


class WaitingQueue:
    """Requests that wait, those with lost blocks among them.

    Probes are ahead of everything. Where a rule lets requests pass others, one admission in `QUOTA` is the turn of the
    request that has been here for longest; it keeps its turn until it is admitted, so nobody starves.
    """

    def __init__(self, rules: SchedulingRules, rates: Rates, tenants: Tenants) -> None:
        self._rules = rules
        self._tenants = tenants
        self._tickets = 0
        self._all: OrderedDict[str, Request] = OrderedDict()
        self._probes: deque[tuple[int, Request]] = deque()
        self._usual = Lanes(order(rules, rates), tenants, rules.fair_share)
        pressed = order_under_pressure(rules)
        self._pressed = Lanes(pressed, tenants, rules.fair_share) if pressed is not None else None
        self._age: list[tuple[int, int, Request]] = []
        self._passes_others = rules.policy is QueuePolicy.PRIORITY or pressed is not None
        self._since_turn = 0

    def __len__(self) -> int:
        """Requests; the answers that will join them are not counted."""
        return len(self._all)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._all.values())

    def push(self, request: Request) -> None:
        """Add a request."""
        self._tickets += 1
        request.ticket = self._tickets
        request.state = RequestState.WAITING
        self._all[request.request_id] = request
        if request.probe:
            self._probes.append((request.ticket, request))
            return
        self._usual.push(request)
        if self._pressed is not None:
            self._pressed.push(request)
        if self._passes_others:
            heapq.heappush(self._age, (request.sequence, request.ticket, request))

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is."""
        del self._all[request.request_id]
        request.ticket = 0
        if request.probe:
            return
        self._usual.removed(len(self._all))
        if self._pressed is not None:
            self._pressed.removed(len(self._all))
        if len(self._age) > 2 * len(self._all) + 64:
            self._age = [entry for entry in self._age if entry[2].ticket == entry[1]]
            heapq.heapify(self._age)

    def admitted(self, request: Request) -> None:
        """Take a request out because it runs now."""
        oldest = self._oldest()
        self._since_turn = 0 if oldest is request or oldest is None else self._since_turn + 1
        self.remove(request)

    def slot_free(self, tenant: str) -> None:
        """A tenant may have more in the batch than before."""
        self._usual.offer(tenant)
        if self._pressed is not None:
            self._pressed.offer(tenant)

    def tokens_ahead(self, request: Request) -> int:
        """Tokens of the requests that would be taken before this one, which is not in the queue yet."""
        return self._usual.tokens_ahead(request)

    def probe(self) -> Request | None:
        """The first probe."""
        while self._probes:
            ticket, request = self._probes[0]
            if request.ticket == ticket:
                return request
            self._probes.popleft()
        return None

    def turn(self) -> Request | None:
        """The request whose turn it is whatever the rules say, if there is one."""
        if not self._passes_others or self._since_turn < QUOTA - 1:
            return None
        oldest = self._oldest()
        return oldest if oldest is not None and self._eligible(oldest) else None

    def first(self, pressure: bool) -> tuple[Request | None, str, list[Request]]:
        """The next request by the rules, by which of them, and the first ones of tenants whose slots are all taken."""
        pressed = pressure and self._pressed is not None
        lanes = self._pressed if pressed and self._pressed is not None else self._usual
        request, aside = lanes.first(self._eligible)
        return request, rule_name(self._rules, pressed), aside

    def _eligible(self, request: Request) -> bool:
        return self._tenants[request.tenant].has_slots(request.num_slots)

    def _oldest(self) -> Request | None:
        while self._age:
            _, ticket, request = self._age[0]
            if request.ticket == ticket:
                return request
            heapq.heappop(self._age)
        return None
