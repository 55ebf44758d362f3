"""A simulated kubelet for thousands of pods: makes each Ready, and answers as its replica where it is asked.

Run as a process of its own, so that its work is not counted: `python -m paceline_bench.fleet.nodes KUBECONFIG NETWORK`.
Each pod gets a loopback address of its own, where `GET /v1/paceline/config` says what its ConfigMap says.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import logging
import socket
import sys
from typing import Any

from paceline_crds.names import CONFIG_FILE_NAME, LABEL_POOL_HASH, LABEL_SERVICE, REPLICA_PORT
from paceline_kube import CONFIGMAPS, PODS, AioKubeClient, Change, Informer, JsonObject, KubeError, connect

WRITERS = 24
ALL_ADDRESSES = ipaddress.IPv4Network("127.96.0.0/13")
AGAIN_SECONDS = 0.5

log = logging.getLogger(__name__)


class Replica(asyncio.Protocol):
    """Answers any request with the configuration, and with 304 to a question that names its ETag."""

    def __init__(self, answer: bytes, etag: bytes) -> None:
        self._answer = answer
        self._etag = etag
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        while (end := self._held.find(b"\r\n\r\n")) >= 0:
            head, self._held = self._held[:end], self._held[end + 4 :]
            known = self._etag in head
            assert isinstance(self._transport, asyncio.Transport)
            self._transport.write(NOT_MODIFIED % self._etag if known else self._answer)


NOT_MODIFIED = b"HTTP/1.1 304 Not Modified\r\netag: %s\r\n\r\n"


class Nodes:
    """All pods of the fleet."""

    def __init__(self, client: AioKubeClient, network: ipaddress.IPv4Network) -> None:
        self._client = client
        self._addresses = network.hosts()
        self._queue: asyncio.Queue[JsonObject] = asyncio.Queue()
        self._configs: dict[str, JsonObject] = {}
        self._servers: dict[str, asyncio.Server] = {}
        self._pods = Informer(client, PODS, label_selector=LABEL_SERVICE, on_change=self._pod)
        self._maps = Informer(client, CONFIGMAPS, label_selector=LABEL_SERVICE, on_change=self._config)

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._maps.run())
            group.create_task(self._pods.run())
            for _ in range(WRITERS):
                group.create_task(self._write())

    def _config(self, change: Change) -> None:
        if change.new is not None:
            labels = change.new["metadata"].get("labels") or {}
            self._configs[str(labels.get(LABEL_POOL_HASH))] = change.new

    def _pod(self, change: Change) -> None:
        if change.new is None:
            server = self._servers.pop(str(change.object["metadata"]["uid"]), None)
            if server is not None:
                server.close()
        elif not (change.new.get("status") or {}).get("podIP"):
            self._queue.put_nowait(change.new)

    async def _write(self) -> None:
        while True:
            pod = await self._queue.get()
            metadata = pod["metadata"]
            uid = str(metadata["uid"])
            if uid in self._servers or self._pods.store.by_uid(uid) is None:
                continue
            try:
                address = await self._serve(pod)
                await self._client.patch(
                    PODS, metadata["name"], {"status": ready(address)}, metadata["namespace"], subresource="status"
                )
            except (KubeError, OSError) as exc:
                log.warning("%s: %s", metadata["name"], exc)
                held = self._servers.pop(uid, None)
                if held is not None:
                    held.close()
                asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._queue.put_nowait, pod)

    async def _serve(self, pod: JsonObject) -> str:
        stored = self._configs.get(str((pod["metadata"].get("labels") or {}).get(LABEL_POOL_HASH)))
        body = json.dumps(_effective(stored)).encode()
        etag = b'"' + hashlib.sha256(body).hexdigest()[:16].encode() + b'"'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\netag: %s\r\ncontent-length: %d\r\n\r\n"
        answer = head % (etag, len(body)) + body
        address = str(next(self._addresses))
        loop = asyncio.get_running_loop()
        self._servers[str(pod["metadata"]["uid"])] = await loop.create_server(
            lambda: Replica(answer, etag), address, REPLICA_PORT, backlog=4
        )
        return address


def _effective(config_map: JsonObject | None) -> dict[str, Any]:
    """What a replica that runs as its ConfigMap says would report; nothing where there is no such file."""
    text = ((config_map or {}).get("data") or {}).get(CONFIG_FILE_NAME)
    if not text:
        return {}
    stored = json.loads(text)
    origins = stored.get("origins") or {}
    parameters = {
        name: {"value": value, "origin": origins.get(name, "default")}
        for name, value in (stored.get("parameters") or {}).items()
    }
    return {"model": stored.get("model"), "model_digest": "sha256:simulated", "parameters": parameters}


def ready(address: str) -> JsonObject:
    """The status of a pod that runs and is ready."""
    conditions = [
        {"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    return {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}


def free_network() -> ipaddress.IPv4Network:
    """Loopback addresses that no other run listens on."""
    for network in ALL_ADDRESSES.subnets(new_prefix=17):
        with socket.socket() as probe:
            try:
                probe.bind((str(next(network.hosts())), REPLICA_PORT))
            except OSError:
                continue
            return network
    raise OSError(f"all of {ALL_ADDRESSES} is in use on port {REPLICA_PORT}")


async def _main(kubeconfig: str) -> None:
    async with connect(kubeconfig) as client:
        await Nodes(client, free_network()).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(_main(sys.argv[1]))
