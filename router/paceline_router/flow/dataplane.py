"""The data path of one process: what all connections share."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import Callable, Collection, Set
from typing import Final

from paceline_crds.headers import REVISION
from paceline_router.choice.picker import pick
from paceline_router.flow import pages
from paceline_router.flow.admission import admit, identify
from paceline_router.flow.backend import Backend
from paceline_router.flow.connecting import make_connection
from paceline_router.flow.exchange import Exchange
from paceline_router.flow.health import HEALTHY, Event
from paceline_router.flow.holding import Demand
from paceline_router.flow.living import Living, batch_of
from paceline_router.flow.record import Record
from paceline_router.flow.versions import sticky_by
from paceline_router.flow.watching import leave
from paceline_router.report.metrics import Metrics
from paceline_router.report.observer import Observer
from paceline_router.report.tracing import Tracer
from paceline_router.settings import Settings
from paceline_router.shadow.copied import Copied
from paceline_router.shadow.sending import Sender
from paceline_router.shadow.tap import Taps
from paceline_router.table.pools import Spill, pool_for
from paceline_router.table.records import Replica, Table
from paceline_router.table.routes import Lane, Route, Routes, compile_routes
from paceline_router.tenancy.keys import Keys
from paceline_router.tenancy.tenants import identity_headers
from paceline_router.wire import answers, requests
from paceline_router.wire.answers import Answer, Refusal
from paceline_router.wire.client import ClientConnection
from paceline_router.wire.heads import TRACE_PARENT
from paceline_router.wire.parties import Asker
from paceline_router.wire.request_head import read_also
from paceline_router.wire.requests import PROXIED, Request, parse_target

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 0.25

QUIET_SECONDS: Final = 0.5
"""Without a request, after which a router that stops may end."""

LEARN_SECONDS: Final = 0.001
"""Of a service's answers, one in this time is learned from: more would teach nothing new."""


class DataPlane:
    """Holds the routes in use, what lives of services and replicas, and everything that runs."""

    def __init__(
        self,
        settings: Settings,
        now: Callable[[], float] = time.monotonic,
        tracer: Tracer | None = None,
        sender: Sender | None = None,
    ) -> None:
        self.settings = settings
        self.now = now
        self.observer = Observer(tracer or Tracer())
        self.table = Table()
        self.routes = Routes()
        self.backends: dict[str, Backend] = {}
        self.living: dict[str, Living] = {}
        """By `namespace/name`."""
        self.metrics = Metrics()
        self.taps = Taps(now, sender)
        self.metrics.shadows = self.taps.counts
        self.clients: set[ClientConnection] = set()
        self.arriving = 0
        """Bytes of bodies that are not complete yet."""
        self.exchanges: set[Exchange] = set()
        self.synced = False
        self.stopping = False
        """Readiness is red; requests are still served, but their connections close afterwards."""
        self.swept_at = now()
        """The time as of the last sweep; enough where a quarter of a second does not matter."""
        self._keys: dict[str, Keys] = {}
        self._share = 1.0
        # Apart, because together they would advance by two and meet only every other replica first.
        self._turn = 0
        self._requests = 0
        self._id_prefix = b"req-" + os.urandom(5).hex().encode()
        self._tasks: set[asyncio.Task[None]] = set()

    # The table

    def use(self, table: Table, changed: Set[str] | None = None) -> None:
        """Route by this table from now on. The first call makes the router ready.

        Args:
            changed: the services whose records differ from the last table's; None: perhaps all.
        """
        self.table = table
        for uid in self.backends.keys() - table.replicas.keys():
            self.backends.pop(uid).remove()
        for replica in table.replicas.values():
            if changed is None or replica.service in changed:
                self._backend_of(replica)
        self.routes = compile_routes(table, self._backend_of, self.routes, changed)
        now = self.now()
        new = table.services if changed is None else changed & table.services.keys()
        read_also(identity_headers(table.services[key].policy.tenancy for key in new))
        for key, route in self.routes.by_key.items():
            living = self.living.get(key)
            if living is None:
                living = self.living[key] = Living(route, self.metrics.service(key), now, self.settings.choice_policy)
            elif living.route is route:
                continue
            living.use(route, now)
            living.shadow = self.taps.follow(route)
            living.identify_by(self._keys.get(key), self._share)
            self.pump(living)
        for key in self.living.keys() - self.routes.by_key.keys():
            self._forget(self.living.pop(key))
            self._keys.pop(key, None)
        self.metrics.keep_only(table.services)
        self.taps.keep_only(table.services)
        self.synced = True

    def _forget(self, living: Living) -> None:
        """A service is gone: nobody will come for those who wait. What runs goes on."""
        for exchange in tuple(self.exchanges):
            if exchange.living is living and exchange.waits:
                exchange.refuse(answers.model_not_found(living.route.served_name))

    def use_keys(self, service: str, keys: Keys) -> None:
        """Check the API keys of a service (`namespace/name`) by these from now on."""
        self._keys[service] = keys
        living = self.living.get(service)
        if living is not None:
            living.identify_by(keys, self._share)

    def use_peers(self, routers: int) -> None:
        """So many router processes, this one included, share the work: each enforces its part of every limit."""
        self._share = 1.0 / max(1, routers)
        for key, living in self.living.items():
            living.identify_by(self._keys.get(key), self._share)
            self.pump(living)

    def _backend_of(self, replica: Replica) -> Backend:
        backend = self.backends.get(replica.uid)
        if backend is None or backend.replica.address != replica.address:
            if backend is not None:
                backend.remove()
            backend = self.backends[replica.uid] = Backend(replica, self.now())
        backend.replica = replica
        backend.draining = replica.draining
        return backend

    @property
    def ready(self) -> bool:
        """Whether new clients should come here."""
        return self.synced and not self.stopping

    # Requests

    def serve(self, client: ClientConnection, item: Request | Refusal) -> None:
        """Begin to answer one request. `client.done` is called when the answer is complete, perhaps before this
        returns.
        """
        self._requests += 1
        request_id = b"%b-%x" % (self._id_prefix, self._requests)
        request = None
        try:
            if isinstance(item, Refusal):
                raise item
            request = item
            answer = self.dispatch(client, item, request_id)
        except Refusal as refusal:
            answer = refusal.answer
        except Exception:
            log.exception("request %s failed", request_id.decode())
            exchange, client.active = client.active, None
            if exchange is not None:
                exchange.cancel()
            answer = Answer(500, Refusal(500, "The router failed.", type="server_error").answer.body, close=True)
        if answer is not None:
            self._respond(client, request, request_id, answer)

    def dispatch(
        self, client: Asker, request: Request, request_id: bytes, kind: type[Exchange] = Exchange
    ) -> Answer | None:
        """Begin an exchange of this kind, which answers the client; or return an answer that needs none.

        Raises:
            Refusal: the answer is an error.
        """
        target = PROXIED.get(request.target) or parse_target(request.target)
        if request.method != b"POST" or target.path not in PROXIED:
            return pages.answer(self, request, target)
        if request.fault is not None:
            raise request.fault
        body = requests.parse_body(request.body)
        if not self.synced:
            raise pages.starting()
        by_hand = None if request.plain else request.headers.get(REVISION)
        route = self.routes.by_model.get(body.model) if target.service is None and body.model else None
        if route is None:
            refused = functools.partial(self.refused, request)
            route = requests.find_route(self.routes, target.service, body.model, refused, by_hand=by_hand is not None)
        living = self.living[route.service.key]
        tenant = identify(living, request)
        revision = None
        lane = None
        if by_hand is not None:
            revision = by_hand.decode("ascii")
            lane = route.revisions.get(revision)
            if lane is None:
                text = f"The model `{body.model or route.served_name}` has no revision `{revision}`."
                raise Refusal(404, text, type="not_found_error", param=REVISION, code="revision_not_found")
        asked = admit(living, tenant, request, target.path, body, request.received_at)
        tap = living.shadow
        if tap is not None and kind is Exchange and tap.wants(request_id, asked, target.path, by_hand is not None):
            kind = Copied
        living.arrivals += 1
        budget = living.budget
        if budget.tokens < budget.capacity:
            budget.request()
        exchange = kind(
            self,
            client,
            request,
            living,
            target.path,
            body.model,
            body.stream is True,
            asked,
            request_id,
            self._requests,
            revision,
        )
        if self.observer.tracer.on:
            exchange.trace = self.observer.tracer.begin(request.headers.get(TRACE_PARENT))
        if lane is None:
            lanes = route.lanes
            lane = lanes[0] if len(lanes) == 1 else route.lane(self._requests, sticky_by(exchange))
        if lane.fallback is not None:
            living.metrics.fallback += 1
        self.exchanges.add(exchange)
        client.active = exchange
        exchange.begin(lane)
        return None

    def refused(self, request: Request, route: Route) -> Refusal | None:
        """Why whoever sent this request may know no more of a service than its name; None: they may."""
        return self.living[route.service.key].tenants.refusal(request.headers)

    def _respond(self, client: ClientConnection, request: Request | None, request_id: bytes, answer: Answer) -> None:
        if answer.status >= 400:
            self.metrics.reject(answer.status)
        keep_alive = request is not None and request.keep_alive and not answer.close and not self.stopping
        head_only = request is not None and request.method == b"HEAD"
        client.transport.write(answers.render(answer, request_id, keep_alive=keep_alive, head_only=head_only))
        if answer.close:
            client.linger()
        else:
            client.done(keep_alive)

    # For exchanges

    def choose(self, lane: Lane, tried: Collection[Backend], now: float) -> Backend | None:
        """The least loaded replica of a lane, for who has no exchange."""
        self._turn += 1
        return pick(lane.backends, now, self._turn, self.settings.max_in_flight, tried)

    def choose_for(self, exchange: Record, now: float) -> Backend | None:
        """The replica for the next attempt of a request: the pool of its shape, or another by the rule, and there the
        one where it costs least. None where none can take it now.
        """
        living = exchange.living
        lane = exchange.lane
        asked = exchange.asked
        above = living.policy.spill_above
        order = lane.order
        shaped = asked.shaped
        if len(order) == 1 and order[0].pool == asked.wanted:
            group = order[0]
            exchange.spill = Spill.NONE
        else:
            found, exchange.spill = pool_for(lane, asked.wanted, shaped.prompt_low, above)
            if found is None:
                return None
            group = found
        most = self.settings.max_in_flight
        limit = above or group.bound or most
        if limit > most:
            limit = most
        self._turn += 1
        # Where tenants share a cache they share what is known of it.
        salt = 0 if group.shared_prefixes else asked.tenant.salt
        # While others wait for room, a replica that has its whole batch takes nothing that another one can.
        bound = min(batch_of(group), limit) if living.gate.queued else limit
        while True:
            backend = living.chooser.choose(
                group.backends,
                asked.text,
                exchange.session,
                shaped.prompt_tokens,
                shaped.output_tokens,
                now,
                self._turn,
                bound,
                exchange.tried,
                salt,
            )
            if backend is not None or bound == limit:
                break
            bound = limit
        if exchange.spill and backend is not None:
            living.metrics.spilled(group.pool, exchange.spill.label)
        return backend

    def pump(self, living: Living) -> None:
        """Let requests that wait go on, in their turn, while there is room for them."""
        gate = living.gate
        if not gate.queued or living.pumping:
            return
        living.pumping = True
        try:
            now = self.now()
            while living.room():
                exchange = gate.next(now)
                if exchange is None or not exchange.release(now):
                    break
        finally:
            living.pumping = False

    def demand(self) -> list[Demand]:
        """What waits at this router, by service, for whoever starts replicas."""
        now = self.now()
        return [
            Demand(key, living.gate.queued, int(living.gate.oldest_wait(now) * 1000.0), living.arrivals)
            for key, living in list(self.living.items())
        ]

    def connect(self, backend: Backend, exchange: Exchange) -> None:
        """Make a connection for an exchange; it hears `connected` or `connect_failed`."""
        task = asyncio.get_running_loop().create_task(make_connection(self, backend, exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call after a pause."""
        asyncio.get_running_loop().call_later(seconds, call)

    def polled(self, backend: Backend, event: Event) -> None:
        """A poll has seen something of a replica: `ALIVE` or `CONNECT_FAILED`."""
        if not backend.replica.ready or (event is Event.ALIVE and backend.health is HEALTHY):
            return  # that nobody answers at a replica that starts is no fault of its own
        living = self.living.get(backend.replica.service)
        if living is not None and not backend.removed:
            living.judge(backend, event, self.now())

    def ended(self, exchange: Exchange) -> None:
        """Settle and count a request that has ended."""
        self.exchanges.discard(exchange)
        exchange.ended_at = now = self.now()
        living = exchange.living
        tenant = exchange.tenant
        prompt = exchange.prompt_tokens
        output = exchange.output_tokens
        if exchange.first_byte_at:
            if output is None and exchange.events and exchange.choices == 1:
                # A token each, but for the first and the last: near enough to learn from, not to report.
                output = max(1, exchange.events - 2)
            living.tenants.settle(tenant, exchange.tokens, prompt, output, now)
            if now >= living.learn_from and exchange.outcome == "2xx":
                living.learn_from = now + LEARN_SECONDS
                living.shaper.learn(exchange.asked.shaped, prompt, output)
        else:
            living.tenants.give_back(tenant, exchange.tokens, now)
        if exchange.watched is not None:
            leave(exchange.watched, exchange, output, now)
        gate = living.gate
        gate.leave(exchange, None if prompt is None or output is None else prompt + output)
        self.observer.finished(exchange)
        if gate.queued:
            self.pump(living)

    # Time

    async def sweep(self) -> None:
        """End what has waited too long, for ever. One coarse pass is cheaper than a timer for each request."""
        passes = 0
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = self.swept_at = self.now()
            for exchange in tuple(self.exchanges):
                exchange.check_time(now)
            for living in self.living.values():
                self.pump(living)
            self.metrics.tick(now, time.time(), SWEEP_SECONDS, self.table, self.backends.values())
            passes += 1
            if passes % 4 == 0:
                for living in self.living.values():
                    living.tenants.tidy(now)
                for client in tuple(self.clients):
                    self._check_client(client, now)

    def _check_client(self, client: ClientConnection, now: float) -> None:
        if client.active is not None:
            return
        waited = now - client.since
        if client.reading:
            if waited > self.settings.client_read_timeout:
                client.refuse_slow()
        elif waited > self.settings.keep_alive_timeout:
            client.close_if_idle()
        if client.unwritable_since is not None and now - client.unwritable_since > self.settings.client_write_timeout:
            client.transport.abort()

    async def drain(self, timeout: float) -> int:
        """Close idle connections, let running requests finish; after `timeout` seconds end them. Returns how many
        were ended.

        A client whose answer began before the stop was not told that the connection ends with it, and may send its
        next request there: so the end waits for a while without requests.
        """
        self.stopping = True
        for client in tuple(self.clients):
            client.close_if_idle()
        now = self.now()
        until, quiet_until = now + timeout, now + QUIET_SECONDS
        while (now := self.now()) < until:
            if self.exchanges or any(client.reading for client in self.clients):
                quiet_until = now + QUIET_SECONDS
            elif not self.clients or now >= quiet_until:
                break
            await asyncio.sleep(0.02)
        left = tuple(self.exchanges)
        for exchange in left:
            exchange.abort("The router is stopping.")
        self.taps.close()
        for backend in self.backends.values():
            backend.remove()
        return len(left)
