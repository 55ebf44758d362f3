"""What a router tells the recorder of one request: both versions' answers as they came. The form on the wire."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

PATH: Final = "/v1/paceline/pairs"
"""Where a recorder takes batches of pairs."""

CONTENT_TYPE: Final = "application/msgpack"

MAX_BATCH: Final = 0xFFFF
"""Pairs in one request."""


class Heard(msgspec.Struct, array_like=True, frozen=True):
    """What one version answered.

    Attributes:
        status: of the answer; 0 where none came.
        failure: why the answer is not complete: `connect`, `reset`, `timeout`; empty where it is.
        stream: it is one of server-sent events.
        pieces: seconds since the request was sent, and what came then, without the framing of HTTP.
        seconds: from sending the request until the end.
    """

    status: int
    failure: str
    stream: bool
    pieces: list[tuple[float, bytes]]
    seconds: float


class Pair(msgspec.Struct, frozen=True):
    """One request and what base and candidate answered to it, in this order wherever there are two.

    Attributes:
        id: of the request, as the client has it in `x-request-id`.
        at: Unix seconds when it was copied.
        service: `namespace/name`.
        base, candidate: revisions.
        tenant: as the router knows it; empty where nobody said.
        request: the body as the client sent it.
        replicas: `host:port`, for further requests.
        served: what the model is called there.
    """

    id: str
    at: float
    service: str
    base: str
    candidate: str
    pool: str
    shape: str
    path: str
    tenant: str
    request: bytes
    answers: tuple[Heard, Heard]
    replicas: tuple[str, str]
    served: tuple[str, str]


def batch(pairs: Sequence[bytes]) -> bytes:
    """Pairs that are encoded already as one body: an array of MessagePack (`array 16` of its specification)."""
    return struct.pack(">BH", 0xDC, len(pairs)) + b"".join(pairs)


def read_batch(body: bytes) -> list[Pair]:
    """The pairs of a body.

    Raises:
        msgspec.DecodeError: it is no such body.
    """
    return _decode(body)


_decode: Final = msgspec.msgpack.Decoder(list[Pair]).decode
