"""Who stands at the ends of a connection: what bytes in and out need to know of the parts that they serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from paceline_router.settings import Settings
    from paceline_router.wire.answers import Refusal
    from paceline_router.wire.client import ClientConnection
    from paceline_router.wire.requests import Request
    from paceline_router.wire.response_head import ResponseHead
    from paceline_router.wire.upstream import UpstreamConnection


class Serving(Protocol):
    """What answers the requests that a client's connection reads: the data plane."""

    settings: Settings
    clients: set[ClientConnection]
    arriving: int

    @property
    def now(self) -> Callable[[], float]:
        """Monotonic seconds."""

    def serve(self, client: ClientConnection, item: Request | Refusal) -> None:
        """Begin to answer; `client.done` tells the end."""


class Pending(Protocol):
    """A request under way, as the client's connection may touch it."""

    def cancel(self) -> None:
        """The client is gone."""

    def pause(self) -> None:
        """The client does not read."""

    def resume(self) -> None:
        """The client reads again."""


class Asker(Protocol):
    """Who waits for the answer to a request: a client's connection, or a gateway that asks for an endpoint."""

    transport: asyncio.Transport
    active: Pending | None
    unwritable_since: float | None

    def done(self, keep_alive: bool, now: float | None = None) -> None:
        """The answer is complete."""


class Hearing(Protocol):
    """Who hears what a replica answers: an exchange."""

    def on_head(self, upstream: UpstreamConnection, head: ResponseHead) -> None:
        """Status and headers are there."""

    def on_data(self, data: bytes) -> None:
        """A part of the body, in the framing it came in."""

    def on_end(self, last: bytes = b"") -> None:
        """The answer is complete, with the last part of its body."""

    def on_broken(self, upstream: UpstreamConnection, reason: str) -> None:
        """The connection ended before the answer did."""
