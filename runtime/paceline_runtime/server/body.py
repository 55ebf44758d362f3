"""Reads request bodies: bounded, and JSON by their own word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from starlette.requests import ClientDisconnect, Request

from .errors import ApiError

DISCARD_FACTOR: Final = 4
DISCARD_SECONDS: Final = 2.0
LARGE_BODY_BYTES: Final = 256 * 1024
"""Larger bodies are taken apart in a thread."""
T = TypeVar("T")
_CLOSE: Final = {"connection": "close"}
"""The rest of the body is not read, so the connection cannot be used again."""


async def read_json_body(request: Request, limit: int) -> bytes:
    """The body's bytes.

    Raises:
        ApiError: 413 for more than `limit` bytes, 415 for another content type or encoding, 400 when it was cut short.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(
            415, f"The content type {kind!r} is not supported; send JSON with 'content-type: application/json'."
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(415, f"The content encoding {encoding!r} is not supported; send the body as it is.")
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(None) as patience:
            async for piece in request.stream():
                size += len(piece)
                if size > limit:
                    # Most clients read no answer before they have sent everything: an early close would look like a
                    # broken connection to them. So the rest is read and dropped, within bounds.
                    pieces.clear()
                    if patience.when() is None:
                        patience.reschedule(asyncio.get_running_loop().time() + DISCARD_SECONDS)
                    if size > DISCARD_FACTOR * limit:
                        break
                else:
                    pieces.append(piece)
    except ClientDisconnect:
        raise ApiError(400, "The body ended before it was complete.") from None
    except TimeoutError:
        pass  # only ever while the rest is dropped
    if size > limit:
        raise ApiError(413, f"The body is larger than {limit} bytes.", code="request_too_large", headers=_CLOSE)
    return b"".join(pieces)


async def take_apart(body: bytes, parse: Callable[[bytes], T]) -> T:
    """`parse(body)`, of large bodies off the event loop. Raises what that raises."""
    if len(body) <= LARGE_BODY_BYTES:
        return parse(body)
    return await asyncio.to_thread(parse, body)
