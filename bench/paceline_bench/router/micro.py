"""What the router's wire costs, part by part and without a network: `python -m paceline_bench.router.micro`.

Bytes are fed to the connections in this process, with transports that drop what is written. Microseconds of the best
of many short stretches, so that what else runs on the machine shows as little as it can.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline_router.settings import Settings
from paceline_router.wire.chunks import as_chunk
from paceline_router.wire.client import ClientConnection
from paceline_router.wire.requests import parse_body
from paceline_router.wire.upstream import UpstreamConnection
from paceline_router.wire.usage import usage_of

CALLS = 500
STRETCHES = 200


class Nowhere(asyncio.Transport):
    """Takes everything and keeps nothing."""

    def write(self, data: Any) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_reading(self) -> bool:
        return True


class Plane:
    """Answers every request at once, with nothing."""

    now = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.arriving = 0
        self.settings = Settings()
        self.clients: set[ClientConnection] = set()

    def serve(self, client: ClientConnection, _: object) -> None:
        client.done(True)


class Sink:
    """Backend and exchange of an upstream connection: hears everything and does nothing."""

    def keep(self, _: object) -> None: ...

    def on_head(self, *_: object) -> None: ...

    def on_data(self, _: bytes) -> None: ...

    def on_end(self, last: bytes = b"") -> None: ...


def chat(size: int) -> bytes:
    """A request's body with a prompt of so many bytes."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * size}], "max_tokens": 64}).encode()


def request(body: bytes, further: int = 0) -> bytes:
    """A whole request, with so many headers that the router does not read."""
    more = b"".join(b"X-Further-%d: something or other\r\n" % n for n in range(further))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n"
    return b"%b%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (head, more, len(body), body)


def best(call: Callable[[], object]) -> float:
    """Microseconds of one call."""
    seconds = float("inf")
    for _ in range(STRETCHES):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        seconds = min(seconds, time.perf_counter() - began)
    return seconds / CALLS * 1e6


def measured() -> dict[str, float]:
    """Microseconds by what was done."""
    plane, sink = Plane(), Sink()
    client = ClientConnection(plane)
    client.connection_made(Nowhere())
    upstream = UpstreamConnection(sink)  # type: ignore[arg-type]
    upstream.connection_made(Nowhere())
    short, long = chat(64), chat(4096)
    plain, many, large = request(short), request(short, further=14), request(long)
    usage = {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9}
    answer = json.dumps(
        {"choices": [{"message": {"content": "hello"}}], "usage": usage}, separators=(",", ":")
    ).encode()
    load = b"x-paceline-load: v=1, run=1, wait=0, kv=3, ptok=5, dtok=9, seq=77\r\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n" % (load, len(answer))
    whole = head + answer
    chunk = as_chunk(b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": "x" * 100}}]}).encode())

    def ask() -> None:
        upstream.send(sink, b"")  # type: ignore[arg-type]
        upstream.data_received(whole)

    found = {
        "client: request, 64 B": best(lambda: client.data_received(plain)),
        "client: request, 64 B, 18 headers": best(lambda: client.data_received(many)),
        "client: request, 4 KB": best(lambda: client.data_received(large)),
        "body: 64 B": best(lambda: parse_body(short)),
        "body: 4 KB": best(lambda: parse_body(long)),
        "upstream: whole answer": best(ask),
        "usage of a whole answer": best(lambda: usage_of(answer)),
    }
    upstream.send(sink, b"")  # type: ignore[arg-type]
    upstream.data_received(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    return found | {"upstream: streamed event": best(lambda: upstream.data_received(chunk))}


def main() -> None:
    """Measure and print."""
    gc.disable()
    table = Table("part", "µs")
    for name, microseconds in measured().items():
        table.add_row(name, f"{microseconds:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
