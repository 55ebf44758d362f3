"""A small API server in this process, for tests of what a real one cannot be told to do on command.

It keeps objects with uid, generation and resourceVersion, pages lists, watches with bookmarks, answers 409
and 410, and can be ordered to cut connections, fall silent, forget its history or refuse requests. It checks
no schema, and its apply
merges without field ownership: what depends on those is tested against the real server.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from paceline_kube import resources
from paceline_kube.adapter import AioKubeClient
from paceline_kube.client import JsonObject
from paceline_kube.resources import Resource

Key = tuple[str, str, str]
"""(collection path without namespace, namespace, name)"""


@dataclass
class _Event:
    version: int
    type: str
    collection: str
    object: JsonObject
    previous: JsonObject | None


@dataclass
class Refusal:
    """An answer instead of the real one, for as many matching requests as `times` says."""

    status: int
    reason: str = ""
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1


@dataclass
class _Request:
    method: str
    collection: str
    namespace: str
    name: str
    subresource: str
    raw: web.Request


class FakeApiServer:
    """Start with `async with FakeApiServer() as server`, then `server.client()`.

    Attributes:
        requests: `METHOD path?query` of everything asked, in order.
        documents: fixed answers by path; from the start those of discovery.
        bookmark_seconds: pause after which an idle watch gets a bookmark; None sends none.
    """

    def __init__(self, *, bookmark_seconds: float | None = 0.05) -> None:
        self.objects: dict[Key, JsonObject] = {}
        self.requests: list[str] = []
        self.documents: dict[str, JsonObject] = _discovery()
        self.bookmark_seconds = bookmark_seconds
        self.url = ""
        self._version = itertools.count(1000)
        self.version = next(self._version)
        self._log: list[_Event] = []
        self._oldest = self.version
        self._changed = asyncio.Condition()
        self._watches: set[web.StreamResponse] = set()
        self._failed: dict[web.StreamResponse, tuple[int, str]] = {}
        self._silent = False
        self._refusals: list[tuple[Callable[[_Request], bool], Refusal]] = []
        self._clients: list[AioKubeClient] = []
        self._runner: web.AppRunner | None = None
        self._delay: Callable[[str], float] = lambda _: 0.0

    async def __aenter__(self) -> FakeApiServer:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        for client in self._clients:
            await client.close()
        await self.cut()
        assert self._runner is not None
        await self._runner.cleanup()

    def client(self, *, timeout: float = 5.0, page_size: int = 500) -> AioKubeClient:
        """A client of this server, closed with it."""
        configuration = Configuration(host=self.url)
        configuration.client_session_kwargs = {"trust_env": False}
        client = AioKubeClient(ApiClient(configuration), timeout=timeout, page_size=page_size)
        self._clients.append(client)
        return client

    # What a test can order.

    async def cut(self) -> None:
        """Drop the connection of every open watch, in the middle of whatever it was sending."""
        for response in list(self._watches):
            transport = response._req.transport if response._req is not None else None
            if transport is not None:
                transport.abort()

    async def fail_watches(self, code: int, reason: str) -> None:
        """End every open watch with an ERROR event."""
        self._failed = dict.fromkeys(self._watches, (code, reason))
        async with self._changed:
            self._changed.notify_all()

    def silence(self, silent: bool = True) -> None:
        """Keep watches open without sending anything: how a lost route looks."""
        self._silent = silent

    async def resume(self) -> None:
        """Undo `silence`."""
        self._silent = False
        async with self._changed:
            self._changed.notify_all()

    async def forget_history(self) -> None:
        """Make every resourceVersion older than now too old to watch from."""
        self.version = next(self._version)
        self._log.clear()
        self._oldest = self.version

    def refuse(self, refusal: Refusal, *, method: str = "", watch: bool | None = None, path: str = "") -> None:
        """Answer the next matching requests with an error."""

        def matches(request: _Request) -> bool:
            return (
                method in ("", request.method)
                and watch in (None, "watch" in request.raw.query)
                and path in request.raw.path
            )

        self._refusals.append((matches, refusal))

    def delay(self, seconds: Callable[[str], float]) -> None:
        """Wait `seconds(method)` before answering."""
        self._delay = seconds

    # Direct writes, as if another client made them.

    async def put(self, path: str, obj: JsonObject) -> JsonObject:
        """Create or update the object at a collection path such as `/api/v1/pods`."""
        metadata = obj["metadata"]
        key = (path, metadata.get("namespace") or "", metadata["name"])
        return await self._store(key, copy.deepcopy(obj), self.objects.get(key))

    async def remove(self, path: str, namespace: str, name: str) -> None:
        """Delete an object."""
        await self._delete((path, namespace, name))

    # HTTP.

    async def _handle(self, raw: web.Request) -> web.StreamResponse:
        self.requests.append(f"{raw.method} {raw.path_qs}")
        if raw.path in self.documents:
            return web.json_response(self.documents[raw.path])
        request = self._parse(raw)
        if request is None:
            return _status(404, "NotFound", f"no such path {raw.path}")
        for index, (matches, refusal) in enumerate(self._refusals):
            if matches(request):
                refusal.times -= 1
                if refusal.times <= 0:
                    del self._refusals[index]
                return _status(refusal.status, refusal.reason, refusal.message, headers=refusal.headers)
        if seconds := self._delay(request.method):
            await asyncio.sleep(seconds)
        if request.method == "GET":
            if "watch" in raw.query:
                return await self._watch(request)
            return self._get(request) if request.name else self._list(request)
        body = await raw.json() if raw.can_read_body else {}
        if request.method == "POST":
            return await self._create(request, body)
        if request.method == "DELETE":
            return await self._serve_delete(request, body)
        return await self._update(request, body)

    def _parse(self, raw: web.Request) -> _Request | None:
        parts = raw.path.strip("/").split("/")
        prefix, rest = (parts[:2], parts[2:]) if parts[0] == "api" else (parts[:3], parts[3:])
        namespace = ""
        if len(rest) >= 3 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        if not rest:
            return None
        collection = "/" + "/".join([*prefix, rest[0]])
        rest += [""] * 2
        return _Request(raw.method, collection, namespace, rest[1], "/".join(rest[2:]).strip("/"), raw)

    def _get(self, request: _Request) -> web.Response:
        obj = self.objects.get((request.collection, request.namespace, request.name))
        if obj is None:
            return _status(404, "NotFound", f"{request.name} not found")
        return web.json_response(obj)

    def _list(self, request: _Request) -> web.Response:
        query = request.raw.query
        start = 0
        version = self.version
        if token := query.get("continue"):
            version, start = (int(part) for part in token.split("/"))
            if version < self._oldest:
                return _status(410, "Expired", "The provided continue parameter is too old")
        keys = sorted(key for key, obj in self.objects.items() if _selected(request, key, obj))
        limit = int(query.get("limit", 0)) or len(keys)
        page = [_bare(self.objects[key]) for key in keys[start : start + limit]]
        metadata: JsonObject = {"resourceVersion": str(version)}
        if start + limit < len(keys):
            metadata["continue"] = f"{version}/{start + limit}"
        return web.json_response({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": page})

    async def _watch(self, request: _Request) -> web.StreamResponse:
        query = request.raw.query
        since = int(query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request.raw)
        self._watches.add(response)
        deadline = asyncio.get_running_loop().time() + int(query["timeoutSeconds"])
        try:
            while True:
                if since < self._oldest:
                    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                    await _send(response, "ERROR", gone)
                    break
                if failure := self._failed.pop(response, None):
                    status = {"kind": "Status", "code": failure[0], "reason": failure[1]}
                    await _send(response, "ERROR", status)
                    break
                if not self._silent:
                    for event in [event for event in self._log if event.version > since]:
                        since = event.version
                        if line := _as_seen(request, event):
                            await _send(response, *line)
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                changed = await self._await_change(since, min(left, self.bookmark_seconds or left))
                # An event may have come between the end of the waiting and now: no bookmark may overtake it.
                if changed or self._silent or self.bookmark_seconds is None or self._unsent(since):
                    continue
                since = max(since, self.version)
                await _send(response, "BOOKMARK", {"metadata": {"resourceVersion": str(since)}})
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._watches.discard(response)
        return response

    async def _await_change(self, since: int, seconds: float) -> bool:
        async with self._changed:
            if not self._silent and self._unsent(since):
                return True
            try:
                await asyncio.wait_for(self._changed.wait(), seconds)
            except TimeoutError:
                return False
            return True

    def _unsent(self, since: int) -> bool:
        return bool(self._log) and self._log[-1].version > since

    async def _create(self, request: _Request, body: JsonObject) -> web.Response:
        if request.subresource:
            return web.json_response(body, status=201)
        metadata = body.setdefault("metadata", {})
        if request.namespace:
            metadata["namespace"] = request.namespace
        if not metadata.get("name"):
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        key = (request.collection, request.namespace, metadata["name"])
        if key in self.objects:
            return _status(409, "AlreadyExists", f"{metadata['name']} already exists")
        return web.json_response(await self._store(key, body, None), status=201)

    async def _update(self, request: _Request, body: Any) -> web.Response:
        key = (request.collection, request.namespace, request.name)
        old = self.objects.get(key)
        applied = request.raw.content_type == "application/apply-patch+yaml"
        if old is None and not applied:
            return _status(404, "NotFound", f"{request.name} not found")
        asked = body.get("metadata", {}).get("resourceVersion") if isinstance(body, dict) else None
        if old is not None and asked and asked != old["metadata"]["resourceVersion"]:
            return _status(409, "Conflict", "the object has been modified; please apply your changes to it")
        if request.method == "PUT":
            new = body
        elif request.raw.content_type == "application/json-patch+json":
            return _status(415, "UnsupportedMediaType", "this server takes merge patches only")
        else:
            new = _merge(copy.deepcopy(old) if old is not None else {}, body)
        if request.namespace:
            new["metadata"]["namespace"] = request.namespace
        if request.subresource == "status" and old is not None:
            new = {**old, "status": new.get("status")}
        elif old is not None and "status" in old and request.method == "PUT":
            new["status"] = old["status"]
        return web.json_response(await self._store(key, new, old), status=200 if old else 201)

    async def _serve_delete(self, request: _Request, body: JsonObject) -> web.Response:
        key = (request.collection, request.namespace, request.name)
        obj = self.objects.get(key)
        if obj is None:
            return _status(404, "NotFound", f"{request.name} not found")
        for name, value in (body.get("preconditions") or {}).items():
            if obj["metadata"][name] != value:
                return _status(409, "Conflict", f"precondition failed: {name} is {obj['metadata'][name]}")
        await self._delete(key)
        return web.json_response({"kind": "Status", "status": "Success"})

    async def _store(self, key: Key, new: JsonObject, old: JsonObject | None) -> JsonObject:
        metadata = new["metadata"]
        if old is None:
            metadata["uid"] = str(uuid.uuid4())
            metadata["generation"] = 1
        else:
            metadata["uid"] = old["metadata"]["uid"]
            changed = new.get("spec") != old.get("spec")
            metadata["generation"] = old["metadata"]["generation"] + changed
            metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
            if new == old:
                return old  # as the real server, which turns an empty update into no write
        self.version = next(self._version)
        metadata["resourceVersion"] = str(self.version)
        self.objects[key] = new
        await self._emit(_Event(self.version, "MODIFIED" if old else "ADDED", key[0], new, old))
        return new

    async def _delete(self, key: Key) -> None:
        old = self.objects.pop(key)
        self.version = next(self._version)
        last = copy.deepcopy(old)
        last["metadata"]["resourceVersion"] = str(self.version)
        await self._emit(_Event(self.version, "DELETED", key[0], last, old))

    async def _emit(self, event: _Event) -> None:
        self._log.append(event)
        async with self._changed:
            self._changed.notify_all()


def _discovery() -> dict[str, JsonObject]:
    """What clients ask first: the groups, their versions, and the kinds in each."""
    known = [value for value in vars(resources).values() if isinstance(value, Resource)]
    documents: dict[str, JsonObject] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "groups": []},
    }
    for group, version in sorted({(resource.group, resource.version) for resource in known}):
        name = f"{group}/{version}" if group else version
        if group:
            versions = {"groupVersion": name, "version": version}
            entry = {"name": group, "versions": [versions], "preferredVersion": versions}
            documents["/apis"]["groups"].append(entry)
        documents[f"/apis/{name}" if group else f"/api/{name}"] = {
            "kind": "APIResourceList",
            "groupVersion": name,
            "resources": [
                {
                    "name": resource.plural,
                    "singularName": resource.kind.lower(),
                    "namespaced": resource.namespaced,
                    "kind": resource.kind,
                    "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
                }
                for resource in known
                if (resource.group, resource.version) == (group, version)
            ],
        }
    return documents


async def _send(response: web.StreamResponse, type_: str, obj: JsonObject) -> None:
    await response.write(json.dumps({"type": type_, "object": obj}).encode() + b"\n")


def _as_seen(request: _Request, event: _Event) -> tuple[str, JsonObject] | None:
    """The event as a watch with these selectors sees it: objects enter and leave by their labels."""
    if event.collection != request.collection:
        return None
    namespace = event.object["metadata"].get("namespace") or ""
    key = (event.collection, namespace, event.object["metadata"]["name"])
    now = event.type != "DELETED" and _selected(request, key, event.object)
    before = event.previous is not None and _selected(request, key, event.previous)
    if now:
        return ("MODIFIED" if before else "ADDED", event.object)
    return ("DELETED", event.object) if before else None


def _selected(request: _Request, key: Key, obj: JsonObject) -> bool:
    if key[0] != request.collection or (request.namespace and key[1] != request.namespace):
        return False
    labels = obj["metadata"].get("labels") or {}
    for term in filter(None, request.raw.query.get("labelSelector", "").split(",")):
        name, equals, value = term.partition("=")
        if name not in labels or (equals and labels[name] != value):
            return False
    return True


def _bare(obj: JsonObject) -> JsonObject:
    """An item as it stands in a list: without apiVersion and kind."""
    return {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}


def _merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    target = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = _merge(target.get(key), value)
    return target


def _status(code: int, reason: str, message: str, *, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    return web.json_response({**body, "reason": reason, "message": message}, status=code, headers=headers or {})
