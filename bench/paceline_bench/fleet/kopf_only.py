"""What the same job costs when Kopf does it alone: the smallest operator in Kopf's own style, for comparison.

Handlers on create, update and resume make a ConfigMap and a Deployment per service and its status; changes of the
Deployment's status go into the service's. It is written to be as cheap as Kopf allows: asynchronous, over the same
connection layer as ours, server-side filters, no Events, no peering, no daemons, one owner reference per child and no
finalizer. It knows no revisions, pods, drift or rollouts.

    python -m paceline_bench.fleet.kopf_only NAMESPACE PORT
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import sys
from typing import Any

import kopf

from paceline_crds.names import LABEL_POOL_HASH, LABEL_SERVICE
from paceline_kube import CONFIGMAPS, DEPLOYMENTS, INFERENCESERVICES, AioKubeClient, JsonObject, connect

MANAGER = "kopf-only"
IMAGE = "paceline.io/runtime:0.1.0"


class Handlers:
    """State of the operator: a client, and how many services it has handled since its start."""

    def __init__(self, client: AioKubeClient) -> None:
        self._client = client
        self._handled: set[str] = set()
        self._told: dict[str, tuple[str, int, int]] = {}

    def register(self, registry: kopf.OperatorRegistry) -> None:
        """Put the handlers into `registry`."""
        kind = (INFERENCESERVICES.group, INFERENCESERVICES.version, INFERENCESERVICES.plural)

        @kopf.on.login(registry=registry)
        async def login(**__: Any) -> kopf.ConnectionInfo:
            credentials = await self._client.credentials()
            scheme, _, token = (credentials.authorization or "").partition(" ")
            return kopf.ConnectionInfo(
                server=credentials.server, ca_path=credentials.ca_file, scheme=scheme, token=token
            )

        @kopf.on.resume(*kind, registry=registry)
        @kopf.on.create(*kind, registry=registry)
        @kopf.on.update(*kind, registry=registry)
        async def service(body: kopf.Body, namespace: str | None, name: str | None, **_: Any) -> None:
            assert namespace is not None
            assert name is not None
            await self._make(dict(body), namespace, name)
            self._handled.add(name)

        @kopf.on.event("apps", "v1", "deployments", labels={LABEL_SERVICE: kopf.PRESENT}, registry=registry)
        async def deployment(body: kopf.Body, namespace: str | None, type: str | None, **_: Any) -> None:
            if type != "DELETED" and namespace is not None:
                await self._tell(dict(body), namespace)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """How many services were handled, as JSON to whoever connects. Kopf's own probe may be ten seconds old."""
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"handled": len(self._handled)}).encode()
        writer.write(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    async def _make(self, body: JsonObject, namespace: str, name: str) -> None:
        labels = {LABEL_SERVICE: name, LABEL_POOL_HASH: name}
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "ownerReferences": [
                {
                    "apiVersion": INFERENCESERVICES.api_version,
                    "kind": INFERENCESERVICES.kind,
                    "name": name,
                    "uid": body["metadata"]["uid"],
                    "controller": True,
                }
            ],
        }
        spec = body["spec"]
        file = json.dumps({"model": spec["model"], "parameters": spec.get("runtime") or {}})
        await self._client.apply(
            CONFIGMAPS, {"metadata": metadata, "data": {"config.json": file}}, field_manager=MANAGER, force=True
        )
        container = {"name": "runtime", "image": IMAGE, "ports": [{"name": "metrics", "containerPort": 8000}]}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        wanted = {
            "replicas": spec.get("replicas", 1),
            "selector": {"matchLabels": {LABEL_SERVICE: name}},
            "template": template,
        }
        await self._client.apply(DEPLOYMENTS, {"metadata": metadata, "spec": wanted}, field_manager=MANAGER, force=True)

    async def _tell(self, deployment: JsonObject, namespace: str) -> None:
        """The service's status after its Deployment's; written where it changed."""
        status = deployment.get("status") or {}
        wanted, ready = deployment["spec"]["replicas"], status.get("readyReplicas") or 0
        name = deployment["metadata"]["labels"][LABEL_SERVICE]
        state = "True" if ready >= wanted else "False"
        key, now = (name, wanted, ready), datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self._told.get(name) == key:
            return
        self._told[name] = key
        condition = {"type": "Ready", "status": state, "reason": "AsAsked", "lastTransitionTime": now}
        told = {"replicas": wanted, "readyReplicas": ready, "observedGeneration": 1, "conditions": [condition]}
        await self._client.patch(
            INFERENCESERVICES, name, {"status": told}, namespace, subresource="status", field_manager=MANAGER
        )


async def _main(namespace: str, port: int) -> None:
    async with connect() as client:
        registry = kopf.OperatorRegistry()
        handlers = Handlers(client)
        handlers.register(registry)
        server = await asyncio.start_server(handlers.answer, "127.0.0.1", port)
        settings = kopf.OperatorSettings()
        settings.scanning.disabled = True
        settings.peering.standalone = True
        settings.posting.enabled = False
        settings.watching.server_timeout = 300
        async with server:
            await kopf.operator(registry=registry, settings=settings, standalone=True, namespaces=[namespace])


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(_main(sys.argv[1], int(sys.argv[2])))
