"""What the endpoint picker asks of the router: a replica for a request, and what it tells it about the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline_router.wire.answers import Answer

Header = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request as the gateway tells of it.

    Attributes:
        headers: those the router reads, by lower-case name.
        subset: addresses (`ip:port`) that the gateway allows; None when it allows all.
        request_id: the gateway's own, if it has a usable one.
    """

    method: bytes
    path: bytes
    headers: Mapping[str, bytes]
    body: bytes
    subset: frozenset[str] | None = None
    request_id: bytes | None = None


class Picked(Protocol):
    """A replica has been chosen, and counts one request more until `over`."""

    @property
    def endpoints(self) -> Sequence[str]:
        """`ip:port`, the chosen one first, then those to try when it cannot be reached."""

    @property
    def headers(self) -> Sequence[Header]:
        """Request headers to set, `:path` among them where it changes."""

    @property
    def body(self) -> bytes:
        """The body as the replica must get it."""

    def answered(self, status: int, headers: Mapping[str, bytes], served: str | None) -> Sequence[Header]:
        """The answer has begun. `served` is the endpoint that gave it, if the gateway says so.

        Returns:
            Answer headers to set.
        """

    def saw(self, part: bytes) -> None:
        """A part of the answer's body. Most gateways show none."""

    def over(self) -> None:
        """The request is over, however it ended. Further calls do nothing."""


class Picks(Protocol):
    """Decides for each request."""

    @property
    def ready(self) -> bool:
        """Whether requests should be asked about here."""

    @property
    def max_body_bytes(self) -> int:
        """Largest request body."""

    async def pick(self, ask: Ask) -> Picked | Answer:
        """A replica, or an answer that needs none. It may take as long as requests are held; cancelled when the
        gateway does not want to know any more.

        Raises:
            Refusal: the answer is an error; 503 when no replica is ready, 429 when all are full.
        """
