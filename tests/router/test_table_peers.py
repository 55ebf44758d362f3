"""How many routers there are."""

from __future__ import annotations

import asyncio
from typing import Any

from paceline_kube.testing import FakeApiServer
from paceline_router.table.peers import Peers


def router_pod(name: str, ready: bool = True, component: str = "router") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "paceline", "labels": {"app.kubernetes.io/component": component}},
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


async def test_ready_routers_are_counted_and_this_one_is_never_none() -> None:
    told: asyncio.Queue[int] = asyncio.Queue()

    async with FakeApiServer() as server:
        peers = Peers(server.client(), "paceline", told.put_nowait)
        following = asyncio.create_task(peers.run())
        try:
            for name, ready, component in (("a", True, "router"), ("x", True, "operator"), ("b", False, "router")):
                await server.put("/api/v1/pods", router_pod(name, ready, component))
            await server.put("/api/v1/pods", router_pod("b"))
            assert await asyncio.wait_for(told.get(), 10) == 2
            await server.remove("/api/v1/pods", "paceline", "a")
            assert await asyncio.wait_for(told.get(), 10) == 1
            await server.remove("/api/v1/pods", "paceline", "b")
            await server.put("/api/v1/pods", router_pod("c"))
            await server.put("/api/v1/pods", router_pod("d"))
            assert await asyncio.wait_for(told.get(), 10) == 2
        finally:
            following.cancel()
