"""One replica as the data path sees it: its load, its health, its idle connections, and the bytes that name it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from paceline_crds.headers import INTERNAL_REQUEST_ID
from paceline_router.choice.load import ReplicaLoad
from paceline_router.flow.health import HEALTHY, Event, Health, busy, transition
from paceline_router.flow.loads import Report
from paceline_router.table.records import Replica

if TYPE_CHECKING:
    from paceline_router.flow.places import Place
    from paceline_router.wire.upstream import UpstreamConnection

MAX_IDLE_CONNECTIONS: Final = 512

REPORT_SECONDS: Final = 0.01
"""Of the reports that come with answers, one in this time is read: what the router sends in between it knows itself."""

_HEAD: Final = (
    b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\naccept-encoding: identity\r\n"
    + INTERNAL_REQUEST_ID.encode()
    + b": "
)


class Backend(ReplicaLoad):
    """Lives as long as the replica is in the table, and longer while requests run there."""

    __slots__ = ("heads", "health", "idle", "next_report", "place", "removed", "replica", "wave")

    def __init__(self, replica: Replica, now: float) -> None:
        super().__init__(now, replica.uid)
        self.replica = replica
        self.draining = replica.draining
        self.health: Health = HEALTHY
        self.idle: list[UpstreamConnection] = []
        self.removed = False
        self.wave = 0
        """Requests up to which those that wait at the router are let go to it; see `Living`."""
        self.next_report = 0.0
        """From when on a load report in an answer is worth its reading."""
        self.place: Place | None = None
        """Of the last request that went there."""
        self.heads: dict[bytes, bytes] = {}
        """What `head` has made."""

    @property
    def answers(self) -> bool:
        """Whether nothing is known against it."""
        return self.health is HEALTHY or self.health.answers

    def hear(self, report: Report, now: float) -> None:
        """Take what it says of its load."""
        self.next_report = now + REPORT_SECONDS
        self.take(*report, now)

    def head(self, path: bytes) -> bytes:
        """A request's head up to the value of its request id. Paths are few: those of `wire.requests.PROXIED`."""
        head = self.heads[path] = _HEAD % (path, self.replica.address.encode())
        return head

    def keep(self, connection: UpstreamConnection) -> None:
        """Put a connection aside for the next request, or close it."""
        if self.removed or len(self.idle) >= MAX_IDLE_CONNECTIONS:
            connection.close()
        else:
            self.idle.append(connection)

    def remove(self) -> None:
        """The replica is gone from the table: no idle connection is kept. Requests that run there go on."""
        self.removed = True
        idle, self.idle = self.idle, []
        for connection in idle:
            connection.close()

    def judge(self, event: Event, now: float, *, may_eject: bool = True, probe: bool = False) -> None:
        """Take something that was seen of it. Good answers of a `HEALTHY` one need no call."""
        self._set(transition(self.health, event, now, may_eject=may_eject, probe=probe))

    def back_off(self, seconds: float | None, now: float, probe: bool = False) -> None:
        """It says that it is busy, for so long (None: it does not say how long)."""
        self._set(busy(self.health, seconds, now, probe=probe))
        self.busy(self.health.busy_until)

    def pardon(self) -> None:
        """Forget what was held against it."""
        self._set(HEALTHY)

    def _set(self, health: Health) -> None:
        self.health = health
        until = health.until if health.ejected else 0.0
        if until != self.ejected_until:
            self.eject(until)
