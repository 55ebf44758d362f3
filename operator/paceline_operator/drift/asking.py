"""One small question over HTTP, to thousands of replicas, each over a connection of its own.

Written on streams since a client library takes three times the CPU for it (0.6 ms instead of 0.2), and every replica is
asked again and again. In HTTP/1.0 an answer has no transfer coding to undo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from paceline_kube import JsonObject

T = TypeVar("T")

MAX_HEAD = 16 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. Names of headers are in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def heard(
    pod: JsonObject, question: Callable[[str], Awaitable[T]], gate: asyncio.Semaphore, seconds: float
) -> T | str:
    """What a pod says to a question, or in words why it says nothing.

    Args:
        question: asks at an address; an `OSError` or `ValueError` of it is told.
        gate: how many are asked at a time.
        seconds: in which the answer has to come.
    """
    address = (pod.get("status") or {}).get("podIP")
    if not address:
        return "it has no address"
    try:
        async with gate, asyncio.timeout(seconds):
            return await question(address)
    except TimeoutError:
        return f"it did not answer within {seconds:g} s"
    except (OSError, ValueError) as exc:
        return str(exc) or type(exc).__name__


async def ask(
    host: str,
    port: int,
    path: str,
    headers: Mapping[str, str],
    max_body: int,
    *,
    method: str = "GET",
    body: bytes = b"",
) -> Answer:
    """GET `path`, or another method with a body; the caller bounds the time.

    Raises:
        OSError: no connection, or it was cut.
        ValueError: the answer is not HTTP, or its body is longer than `max_body` bytes.
    """
    reader, writer = await asyncio.open_connection(host, port, limit=MAX_HEAD)
    try:
        asked = {
            "host": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            "accept": "application/json",
            **headers,
        }
        if body:
            asked["content-length"] = str(len(body))
        lines = (f"{method} {path} HTTP/1.0", *(f"{name}: {value}" for name, value in asked.items()))
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        status, told = _head(await reader.readuntil(b"\r\n\r\n"))
        length = int(told["content-length"]) if "content-length" in told else None
        if status in (204, 304):
            return Answer(status, told, b"")
        if length is not None and length > max_body:
            raise ValueError(f"its answer is longer than {max_body} bytes")
        return Answer(status, told, await _body(reader, length, max_body))
    except asyncio.LimitOverrunError:
        raise ValueError(f"the head of its answer is longer than {MAX_HEAD} bytes") from None
    except asyncio.IncompleteReadError:
        raise ConnectionError("its answer was cut") from None
    finally:
        writer.close()


def _head(raw: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = raw.decode("latin-1").rstrip().split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest.partition(" ")[0]
    if not version.startswith("HTTP/1.") or not code.isdigit():
        raise ValueError(f"its answer is no HTTP: {first[:40]!r}")
    pairs = (line.partition(":") for line in lines)
    return int(code), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, length: int | None, most: int) -> bytes:
    if length is not None:
        return await reader.readexactly(length)
    body = b""
    while chunk := await reader.read(most + 1 - len(body)):
        body += chunk
        if len(body) > most:
            raise ValueError(f"its answer is longer than {most} bytes")
    return body
