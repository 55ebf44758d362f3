"""`AioKubeClient`: the protocol on the official client's connection layer, with raw JSON instead of typed models.

Typed models cost twenty times the CPU of a list and refuse objects that the API server itself accepts, so only the
official configuration (kubeconfig, service account), TLS and connection pool are used. JSON is encoded and decoded by
msgspec: the official client would take more time to encode a Deployment than to send it.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.rest import RESTClientObject
from yarl import URL

from paceline_kube.client import (
    JsonObject,
    ObjectList,
    PatchKind,
    Propagation,
    WatchEvent,
)
from paceline_kube.errors import ApiError, Gone, Unauthorized, Unreachable, error_from_status
from paceline_kube.resources import Resource

DEFAULT_TIMEOUT = 30.0
CONNECT_TIMEOUT = 10.0
PAGE_SIZE = 500
USER_AGENT = "paceline"

_PATCH_TYPES: dict[PatchKind, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
_APPLY_TYPE = "application/apply-patch+yaml"  # JSON is YAML

_NETWORK_ERRORS = (aiohttp.ClientError, OSError, asyncio.TimeoutError, asyncio.IncompleteReadError)


@dataclass(frozen=True, slots=True)
class Credentials:
    """How one gets to the API server at this moment, for libraries that bring their own HTTP client."""

    server: str
    ca_file: str | None
    ca_data: str | bytes | None
    authorization: str | None = field(repr=False)
    cert_file: str | None
    key_file: str | None
    verify_tls: bool


class _Pool(RESTClientObject):  # type: ignore[misc]  # the package has no types
    """The official connection pool, for bodies that are bytes already."""

    async def send(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        session: aiohttp.ClientSession = self.pool_manager or self._create_pool_manager()  # type: ignore[has-type]
        self.pool_manager = session
        return await session.request(
            method,
            url,
            headers=headers,
            data=body,
            timeout=timeout,
            server_hostname=self.configuration.tls_server_name,
            proxy=self.proxy,
            proxy_headers=self.proxy_headers,
        )


class AioKubeClient:
    """`KubeClient` over one connection pool. Make it with `connect`, or hand in a configured `ApiClient`."""

    def __init__(
        self,
        api: ApiClient,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        reauthenticate: Callable[[], Awaitable[None]] | None = None,
        page_size: int = PAGE_SIZE,
    ) -> None:
        """`timeout` bounds each call in seconds; `reauthenticate` renews the token after a 401."""
        self._api = api
        self._timeout = timeout
        self._reauthenticate = reauthenticate
        self._page_size = page_size
        api.user_agent = USER_AGENT
        api.rest_client = self._pool = _Pool(api.configuration)

    @property
    def timeout(self) -> float:
        return self._timeout

    @property
    def server(self) -> str:
        """The API server's base URL."""
        return str(self._api.configuration.host)

    async def credentials(self) -> Credentials:
        """What this client uses now; a rotated token is read again."""
        configuration = self._api.configuration
        bearer = (await configuration.auth_settings()).get("BearerToken")
        return Credentials(
            server=self.server,
            ca_file=configuration.ssl_ca_cert,
            ca_data=configuration.ca_cert_data,
            authorization=bearer["value"] if bearer else None,
            cert_file=configuration.cert_file,
            key_file=configuration.key_file,
            verify_tls=configuration.verify_ssl,
        )

    async def close(self) -> None:
        """Close the connection pool."""
        await self._api.close()

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, subresource: str | None = None
    ) -> JsonObject:
        return await self.request("GET", resource.path(namespace, name, subresource))

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> ObjectList:
        selectors = _selectors(label_selector, field_selector)
        path = resource.path(namespace)
        try:
            return await self._list_pages(resource, path, selectors, self._page_size)
        except Gone:
            # The continue token outlived the server's history: one unpaged read is consistent by itself.
            return await self._list_pages(resource, path, selectors, 0)

    async def _list_pages(self, resource: Resource, path: str, selectors: dict[str, str], page_size: int) -> ObjectList:
        items: list[JsonObject] = []
        token = ""
        while True:
            query = dict(selectors)
            if page_size:
                query["limit"] = str(page_size)
            if token:
                query["continue"] = token
            page = await self.request("GET", path, query=query)
            for item in page.get("items") or []:
                item.setdefault("apiVersion", resource.api_version)
                item.setdefault("kind", resource.kind)
                items.append(item)
            metadata = page.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token:
                return ObjectList(items, str(metadata.get("resourceVersion", "")))

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        *,
        resource_version: str,
        timeout_seconds: int,
        inactivity_seconds: float | None = None,
    ) -> AsyncIterator[WatchEvent]:
        query = _selectors(label_selector, field_selector)
        query |= {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            # The server parses an integer; anything else is a 400.
            "timeoutSeconds": str(int(timeout_seconds)),
        }
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT, sock_read=inactivity_seconds or timeout_seconds + 30.0
        )
        response = await self._send("GET", resource.path(namespace), None, query, "application/json", timeout)
        try:
            async for line in response.content:
                if line.strip():
                    yield _watch_event(line, resource)
        except _NETWORK_ERRORS as exc:
            raise Unreachable(f"the watch of {resource.plural} was cut: {_describe(exc)}") from exc
        finally:
            response.close()

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
        dry_run: bool = False,
    ) -> JsonObject:
        if namespace is None and resource.namespaced:
            namespace = _metadata(body, resource).get("namespace")
            if not namespace:
                raise ValueError(f"a {resource.kind} is created in a namespace: give it, or set metadata.namespace")
        path = resource.path(namespace, name, subresource)
        # A subresource's body has a kind of its own (TokenRequest, Eviction).
        sent = dict(body) if subresource else _typed(resource, body)
        return await self.request("POST", path, body=sent, query=_write_query(field_manager, dry_run, subresource))

    async def apply(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        field_manager: str,
        force: bool = False,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> JsonObject:
        query = _write_query(field_manager, dry_run, subresource) | {"force": "true" if force else "false"}
        return await self.request(
            "PATCH",
            _own_path(resource, body, subresource),
            body=_typed(resource, body),
            query=query,
            content_type=_APPLY_TYPE,
        )

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any] | Sequence[Any],
        namespace: str | None = None,
        *,
        kind: PatchKind = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,
        dry_run: bool = False,
    ) -> JsonObject:
        if (kind == "json") is isinstance(body, Mapping):
            raise ValueError("a JSON patch is a list of operations; merge and strategic patches are objects")
        return await self.request(
            "PATCH",
            resource.path(namespace, name, subresource),
            body=dict(body) if isinstance(body, Mapping) else [*body],
            query=_write_query(field_manager, dry_run, subresource),
            content_type=_PATCH_TYPES[kind],
        )

    async def replace(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> JsonObject:
        return await self.request(
            "PUT",
            _own_path(resource, body, subresource),
            body=_typed(resource, body),
            query=_write_query(field_manager, False, subresource),
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Propagation = "Background",
        grace_period_seconds: int | None = None,
    ) -> JsonObject:
        options: JsonObject = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
        }
        preconditions = {k: v for k, v in {"uid": uid, "resourceVersion": resource_version}.items() if v is not None}
        if preconditions:
            options["preconditions"] = preconditions
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        return await self.request("DELETE", resource.path(namespace, name), body=options)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> JsonObject:
        sent = dict(query or {})
        if method != "GET":
            # A write that we have given up must not be carried out later: the server ends it at the same time.
            sent["timeout"] = f"{math.ceil(timeout or self._timeout)}s"
        total = aiohttp.ClientTimeout(total=timeout or self._timeout, sock_connect=CONNECT_TIMEOUT)
        response = await self._send(method, path, body, sent, content_type, total)
        try:
            raw = await response.read()
        except _NETWORK_ERRORS as exc:
            raise Unreachable(f"{method} {path}: the answer was cut: {_describe(exc)}") from exc
        decoded = _decode_object(raw)
        if decoded is None:
            raise ApiError(response.status, "NotJSON", f"{method} {path} did not answer with a JSON object", {})
        return decoded

    async def _send(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, str],
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """Send, and return a successful response whose body is not yet read."""
        try:
            return await self._send_once(method, path, body, query, content_type, timeout)
        except Unauthorized:
            if self._reauthenticate is None:
                raise
            await self._reauthenticate()
            return await self._send_once(method, path, body, query, content_type, timeout)

    async def _send_once(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, str],
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        # Path and query are quoted already.
        url = URL(self.server + path + _query(tuple(query.items())), encoded=True)
        headers = {"Accept": "application/json", "Content-Type": content_type, **self._api.default_headers}
        encoded = None if body is None else msgspec.json.encode(body)
        try:
            for auth in (await self._api.configuration.auth_settings()).values():
                headers[auth["key"]] = auth["value"]
            response = await self._pool.send(method, url, headers, encoded, timeout)
            if response.status < 400:
                return response
            raw = await response.read()
        except _NETWORK_ERRORS as exc:
            raise Unreachable(f"{method} {self.server}{path}: {_describe(exc)}") from exc
        raise error_from_status(
            response.status,
            _decode_object(raw),
            text=raw[:500].decode(errors="replace").strip() or str(response.reason),
            retry_after=_retry_after(response.headers.get("Retry-After")),
        )


@functools.lru_cache(maxsize=512)
def _query(items: tuple[tuple[str, str], ...]) -> str:
    """The same few options go with every write, and quoting them is slow."""
    return "?" + urlencode(items) if items else ""


def _selectors(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in selectors.items() if value}


def _write_query(field_manager: str | None, dry_run: bool, subresource: str | None) -> dict[str, str]:
    # A field that the server does not know is a mistake in an object. In a status it is an observation that a CRD of an
    # earlier release has no place for, and the rest of the status must be told all the same.
    query = {"fieldValidation": "Ignore" if subresource == "status" else "Strict"}
    if field_manager:
        query["fieldManager"] = field_manager
    if dry_run:
        query["dryRun"] = "All"
    return query


def _metadata(body: Mapping[str, Any], resource: Resource) -> Mapping[str, Any]:
    metadata = body.get("metadata")
    if not isinstance(metadata, Mapping):
        raise ValueError(f"the body of a {resource.kind} has no metadata")
    return metadata


def _own_path(resource: Resource, body: Mapping[str, Any], subresource: str | None) -> str:
    metadata = _metadata(body, resource)
    if not metadata.get("name"):
        raise ValueError(f"the body of a {resource.kind} has no metadata.name")
    return resource.path(metadata.get("namespace"), metadata["name"], subresource)


def _typed(resource: Resource, body: Mapping[str, Any]) -> JsonObject:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _decode_object(raw: bytes) -> JsonObject | None:
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _watch_event(line: bytes, resource: Resource) -> WatchEvent:
    event = _decode_object(line)
    if event is None or "type" not in event or not isinstance(event.get("object"), dict):
        # A line cut in the middle is how a dying connection looks from here.
        raise Unreachable(f"the watch of {resource.plural} sent a broken line: {line[:120]!r}")
    if event["type"] == "ERROR":
        status = event["object"]
        raise error_from_status(int(status.get("code") or 500), status)
    return WatchEvent(event["type"], event["object"])


def _retry_after(header: str | None) -> float | None:
    try:
        return float(header) if header else None
    except ValueError:
        return None  # the date form, which the API server does not use


def _describe(exc: BaseException) -> str:
    return str(exc) or type(exc).__name__
