"""The endpoint picker's decisions, made by the data path of the proxy."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from paceline_router.epp.carried import Carried, GatewayClient
from paceline_router.epp.picks import Ask, Picked
from paceline_router.wire import heads
from paceline_router.wire.answers import Answer, Refusal
from paceline_router.wire.requests import Request

if TYPE_CHECKING:
    from paceline_router.flow.dataplane import DataPlane
    from paceline_router.wire.parties import Asker

log = logging.getLogger(__name__)

MAX_WARNED = 4096
"""Replicas that a warning has been written about; beyond that some are warned about again."""


class PlanePicks:
    """Picks from the replicas of a data plane, beside its own traffic: both see each other's requests."""

    def __init__(self, plane: DataPlane, fallbacks: int = 0) -> None:
        """`fallbacks` more endpoints are named after the chosen one. Only some gateways understand a list."""
        self._plane = plane
        self._fallbacks = fallbacks
        self._asked = 0
        self._warned: set[str] = set()

    @property
    def ready(self) -> bool:
        """See `Picks`."""
        return self._plane.ready

    @property
    def max_body_bytes(self) -> int:
        """See `Picks`."""
        return self._plane.settings.max_body_bytes

    async def pick(self, ask: Ask) -> Picked | Answer:
        """See `Picks`."""
        plane = self._plane
        self._asked += 1
        client = GatewayClient(ask.subset, self._fallbacks)
        try:
            answer = plane.dispatch(
                cast("Asker", client),
                request_of(ask, plane.now()),
                ask.request_id or b"epp-%x" % self._asked,
                Carried,
            )
        except Refusal as refusal:
            plane.metrics.reject(refusal.status)
            raise
        except BaseException:
            if client.active is not None:
                client.active.cancel()
            raise
        if answer is not None:
            return answer
        exchange = client.active
        try:
            carried = await client.decision()
        except Refusal:
            raise
        except BaseException:
            # The gateway does not wait any longer, perhaps just when there was a replica.
            if exchange is not None:
                exchange.cancel()
            raise
        if ask.subset is not None:
            self._look_for_ports(carried, ask.subset)
        return carried

    def _look_for_ports(self, carried: Carried, subset: frozenset[str]) -> None:
        """Say it once when a replica gets nothing because the gateway has its address with another port."""
        route = carried.living.route
        closed = [
            backend.replica
            for lane in route.lanes
            for backend in lane.backends
            if backend.replica.address not in subset and backend.replica.uid not in self._warned
        ]
        if not closed:
            return
        hosts = {address.rpartition(":")[0] for address in subset}
        for replica in closed:
            if replica.address.rpartition(":")[0] in hosts:
                if len(self._warned) >= MAX_WARNED:
                    self._warned.clear()
                self._warned.add(replica.uid)
                log.warning(
                    "replica %s of %s gets nothing through the gateway, which allows other ports of it but not %d: "
                    "check targetPorts of the InferencePool",
                    replica.name,
                    replica.service,
                    replica.port,
                )


def request_of(ask: Ask, now: float) -> Request:
    """The request as the data path reads it."""
    headers = dict(ask.headers)
    request = Request(ask.method, ask.path, headers, ask.body, received_at=now)
    heads.drop_bad_trace(headers)
    request.fault = heads.fault_of(headers)
    headers.pop("content-type", None)
    headers.pop("content-encoding", None)
    request.plain = not (headers.keys() - {"authorization"})
    return request
