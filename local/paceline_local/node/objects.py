"""ConfigMaps, Secrets and service account tokens that pods use, asked for one by one as a node may, and remembered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from paceline_kube import CONFIGMAPS, SECRETS, SERVICE_ACCOUNTS, Forbidden, JsonObject, KubeClient, KubeError, NotFound
from paceline_local.node.env import Ref
from paceline_local.node.volumes import TokenRef

IMMUTABLE_SECONDS = 600.0
FORBIDDEN_RETRIES = 10
FORBIDDEN_WAIT = 0.1
_RESOURCES = {"ConfigMap": CONFIGMAPS, "Secret": SECRETS}


@dataclass(frozen=True)
class _Known:
    object: JsonObject | None
    asked: float


class ObjectSource:
    """Reads ConfigMaps and Secrets; many pods that use the same one share an answer."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._known: dict[tuple[str, Ref], _Known] = {}
        self._locks: dict[tuple[str, Ref], asyncio.Lock] = {}

    async def get(self, namespace: str, refs: Iterable[Ref], max_age: float) -> dict[Ref, Mapping[str, Any] | None]:
        """The objects, none older than `max_age` seconds (immutable ones: ten minutes); None where there is none.

        Raises:
            KubeError: The API server does not answer, or refuses, and the object has not been seen before.
        """
        wanted = sorted(refs, key=lambda ref: (ref.kind, ref.name))
        found = await asyncio.gather(*(self._one(namespace, ref, max_age) for ref in wanted))
        return dict(zip(wanted, found, strict=True))

    def forget(self, namespaces_in_use: set[str]) -> None:
        """Drop what belongs to namespaces without pods."""
        for key in [key for key in self._known if key[0] not in namespaces_in_use]:
            self._known.pop(key)
            self._locks.pop(key, None)

    async def _one(self, namespace: str, ref: Ref, max_age: float) -> JsonObject | None:
        key = (namespace, ref)
        async with self._locks.setdefault(key, asyncio.Lock()):
            known = self._known.get(key)
            if known is not None:
                frozen = bool(known.object and known.object.get("immutable"))
                if self._clock() - known.asked <= (max(max_age, IMMUTABLE_SECONDS) if frozen else max_age):
                    return known.object
            asked = self._clock()
            try:
                obj = await self._ask(namespace, ref)
            except KubeError:
                if known is None:
                    raise
                return known.object  # as last seen, while the API server is away
            self._known[key] = _Known(obj, asked)
            return obj

    async def _ask(self, namespace: str, ref: Ref) -> JsonObject | None:
        try:
            return await _patiently(lambda: self._client.get(_RESOURCES[ref.kind], ref.name, namespace))
        except NotFound:
            return None


async def _patiently(call: Callable[[], Awaitable[JsonObject]]) -> JsonObject:
    """Try again for a second what is forbidden: the API server's own watches learn of a binding after the node does."""
    for _ in range(FORBIDDEN_RETRIES):
        try:
            return await call()
        except Forbidden:
            await asyncio.sleep(FORBIDDEN_WAIT)
    return await call()


@dataclass(frozen=True)
class _Token:
    text: str
    renew_at: float
    expires_at: float


class TokenSource:
    """Service account tokens bound to a pod, renewed after four fifths of their life as the kubelet does."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.time) -> None:
        self._client, self._clock = client, clock
        self._known: dict[tuple[str, TokenRef], _Token] = {}

    async def get(self, pod: Mapping[str, Any], refs: Iterable[TokenRef]) -> dict[TokenRef, str]:
        """The tokens.

        Raises:
            KubeError: The API server does not give one, and the one before has expired.
        """
        return {ref: await self._one(pod, ref) for ref in refs}

    def forget(self, uid: str) -> None:
        """Drop the tokens of a pod."""
        for key in [key for key in self._known if key[0] == uid]:
            del self._known[key]

    async def _one(self, pod: Mapping[str, Any], ref: TokenRef) -> str:
        metadata, now = pod["metadata"], self._clock()
        known = self._known.get((metadata["uid"], ref))
        if known is not None and now < known.renew_at:
            return known.text
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [ref.audience] if ref.audience else [],
                "expirationSeconds": ref.expiration_seconds,
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            },
        }
        account = pod["spec"].get("serviceAccountName") or "default"
        try:
            answer = await _patiently(
                lambda: self._client.create(
                    SERVICE_ACCOUNTS, body, metadata["namespace"], name=account, subresource="token"
                )
            )
        except KubeError:
            if known is not None and now < known.expires_at:
                return known.text
            raise
        status = answer["status"]
        expires = datetime.fromisoformat(status["expirationTimestamp"]).timestamp()
        # The server may promise more than was asked for, to forgive clients that read the file once only.
        life = min(expires - now, float(ref.expiration_seconds))
        token = _Token(status["token"], now + 0.8 * life, expires)
        self._known[metadata["uid"], ref] = token
        return token.text
