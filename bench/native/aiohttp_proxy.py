"""The peer: what a thin, least-outstanding reverse proxy on aiohttp and uvloop costs. It checks and counts nothing.

usage: python aiohttp_proxy.py PORT BACKEND_PORT...
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web

OUTSTANDING: dict[str, int] = {}
SESSION = web.AppKey("session", aiohttp.ClientSession)


async def session(app: web.Application) -> AsyncIterator[None]:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout, trust_env=False) as made:
        app[SESSION] = made
        yield


async def proxy(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    backend = min(OUTSTANDING, key=OUTSTANDING.__getitem__)
    OUTSTANDING[backend] += 1
    headers = {"content-type": request.headers.get("content-type", "application/json")}
    try:
        async with request.app[SESSION].post(backend + request.path_qs, data=body, headers=headers) as upstream:
            kind = {"content-type": upstream.headers["content-type"]}
            if upstream.content_type != "text/event-stream":
                return web.Response(status=upstream.status, body=await upstream.read(), headers=kind)
            answer = web.StreamResponse(status=upstream.status, headers=kind)
            await answer.prepare(request)
            async for piece in upstream.content.iter_any():
                await answer.write(piece)
            await answer.write_eof()
            return answer
    finally:
        OUTSTANDING[backend] -= 1


def main() -> None:
    # The load generator hangs up on running answers when its time is over; each would be logged with a traceback.
    logging.getLogger("aiohttp.server").disabled = True
    port, *backends = sys.argv[1:]
    OUTSTANDING.update({f"http://127.0.0.1:{backend}": 0 for backend in backends})
    app = web.Application(client_max_size=1 << 26)
    app.cleanup_ctx.append(session)
    app.router.add_post("/{path:.*}", proxy)
    web.run_app(
        app, host="127.0.0.1", port=int(port), access_log=None, backlog=4096, print=None, loop=uvloop.new_event_loop()
    )


if __name__ == "__main__":
    main()
