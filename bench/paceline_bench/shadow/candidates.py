"""Candidates that fail: `python -m paceline_bench.shadow.candidates KIND`. Prints its port."""

from __future__ import annotations

import asyncio
import socket
import sys

KINDS = ("stalled", "crashing", "unread")
"""`stalled` reads requests and never answers; `crashing` resets the connection in the middle of its answer; `unread`
takes connections and reads nothing.
"""

_BEGINNING = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b'2a\r\ndata: {"choices": [{"delta": {"con": 1}}]}\n\n\r\n'
)


async def serve(kind: str) -> None:
    """Fail in this way until the process is ended."""
    kept: list[asyncio.StreamWriter] = []

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if kind == "unread":
            # Nothing arrives in this process: the kernel's buffer fills up.
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            kept.append(writer)
            return
        try:
            while await reader.read(65536):
                if kind == "crashing":
                    writer.write(_BEGINNING)
                    await writer.drain()
                    writer.transport.abort()
                    return
        except ConnectionError:
            pass
        finally:
            if kind != "unread":
                writer.close()

    listening = socket.create_server(("127.0.0.1", 0))
    server = await asyncio.start_server(fail, sock=listening)
    print(listening.getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
