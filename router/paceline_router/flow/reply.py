"""The bytes of an answer on its way to the client: its head, and its body in the framing that the client gets."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import msgspec

from paceline_router.wire import heads
from paceline_router.wire.answers import STATUS_LINES
from paceline_router.wire.chunks import as_chunk, dechunk

if TYPE_CHECKING:
    from paceline_router.wire.response_head import ResponseHead

COMMENT: Final = b": keep-alive\n\n"
"""A comment of server-sent events: clients drop it, and whatever closes silent connections does not."""

CHUNKED: Final = b"transfer-encoding: chunked\r\n\r\n"
CLOSE: Final = b"connection: close\r\n"

STARTS: Final = {
    status: b"HTTP/1.1 %b\r\nx-request-id: " % STATUS_LINES.get(status, b"%d Status" % status)
    for status in range(100, 600)
}
"""The beginning of an answer, up to the request id."""

_EARLY: Final = b"HTTP/1.1 200 OK\r\nx-request-id: %b\r\ncontent-type: text/event-stream\r\n" + heads.SSE_LINES

_encode: Final = msgspec.json.Encoder().encode


class Mode(enum.IntEnum):
    """What becomes of the body's bytes."""

    AS_IT_IS = 0
    INTO_CHUNKS = 1
    OUT_OF_CHUNKS = 2


def early_head(request_id: bytes, http10: bool, keep_alive: bool) -> bytes:
    """The head of a stream that is begun before a replica has answered."""
    return _EARLY % request_id + (b"" if keep_alive else CLOSE) + (b"\r\n" if http10 else CHUNKED)


def framing(response: ResponseHead, length: int | None, http10: bool) -> tuple[bytes, Mode]:
    """The last lines of a head, and what becomes of the body.

    Args:
        length: of the body, where it is known.
    """
    if response.chunked:
        return (b"\r\n", Mode.OUT_OF_CHUNKS) if http10 else (CHUNKED, Mode.AS_IT_IS)
    if length is not None:
        if response.status in (204, 304):
            return b"\r\n", Mode.AS_IT_IS
        return b"content-length: %d\r\n\r\n" % length, Mode.AS_IT_IS
    return (b"\r\n", Mode.AS_IT_IS) if http10 else (CHUNKED, Mode.INTO_CHUNKS)


def early_mode(response: ResponseHead, http10: bool) -> Mode:
    """What becomes of the body of an answer whose head was sent before."""
    if response.chunked:
        return Mode.OUT_OF_CHUNKS if http10 else Mode.AS_IT_IS
    return Mode.AS_IT_IS if http10 else Mode.INTO_CHUNKS


def framed(mode: Mode, data: bytes) -> bytes:
    """A part of the body as the client gets it."""
    if mode is Mode.INTO_CHUNKS:
        return as_chunk(data) if data else b""
    return dechunk(data) if mode is Mode.OUT_OF_CHUNKS else data


def event(content: object) -> bytes:
    """A server-sent event with this as JSON."""
    return b"data: %b\n\n" % _encode(content)


def event_of(body: bytes) -> bytes | None:
    """An error answer as a server-sent event; None when it is not JSON in OpenAI's form."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(content, dict) or "error" not in content:
        return None
    return event(content)
