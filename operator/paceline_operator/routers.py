"""Asking the routers which generation of the traffic they follow, and the Secret that lets one ask."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import aiohttp

from paceline_crds.names import LABEL_MANAGED_BY, MANAGED_BY, ROUTER_ADMIN_PORT
from paceline_kube import PODS, SECRETS, AlreadyExists, JsonObject, KubeClient, KubeError, NotFound
from paceline_kube.pods import is_ready

from .observed import RouterView

log = logging.getLogger(__name__)

ADMIN_SECRET = "paceline-router-admin"
ADMIN_SECRET_KEY = "token"
ROUTES_PATH = "/v1/paceline/routes"
ASK_TIMEOUT = 2.0
MAX_ANSWER = 16 * 1024 * 1024
"""Bytes; a page of a thousand services is a tenth of it."""
NO_TOKEN = (
    f"the Secret {ADMIN_SECRET} has no token of printable ASCII under {ADMIN_SECRET_KEY}: delete it, and the operator "
    "makes another"
)
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
"""Of one router: it is not there, or answers something else."""
LABEL_COMPONENT = "app.kubernetes.io/component"
COMPONENT_ROUTER = "router"
RECORDER_SELECTOR = f"{LABEL_COMPONENT}=recorder"
RECORDER_PORT = 8082
ROUTER_SELECTOR = f"{LABEL_COMPONENT}={COMPONENT_ROUTER}"
"""Pods of routers, in the operator's own namespace: anywhere else a pod could carry the label to be sent the token."""


async def ensure_admin_secret(client: KubeClient, namespace: str) -> str:
    """The token of the routers' admin port; made, with 256 random bits, where it is absent.

    Raises:
        KubeError: the Secret can be neither read nor made.
    """
    try:
        return _token(await client.get(SECRETS, ADMIN_SECRET, namespace))
    except NotFound:
        pass
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": ADMIN_SECRET,
            "namespace": namespace,
            "labels": {LABEL_MANAGED_BY: MANAGED_BY},
        },
        "type": "Opaque",
        "data": {ADMIN_SECRET_KEY: base64.b64encode(secrets.token_urlsafe(32).encode()).decode()},
    }
    try:
        made = await client.create(SECRETS, secret, namespace)
    except AlreadyExists:
        made = await client.get(SECRETS, ADMIN_SECRET, namespace)
    return _token(made)


def _token(secret: JsonObject) -> str:
    """As the routers read it from their file; empty where it is none that a header can carry."""
    try:
        token = base64.b64decode((secret.get("data") or {}).get(ADMIN_SECRET_KEY, "")).decode().strip()
    except ValueError:
        token = ""
    return token if token.isascii() and token.isprintable() else ""


def view_of(router: str, answer: Mapping[str, Any], service: str) -> RouterView:
    """What a router's answer says of a service, by `namespace/name`; without a generation where it does not know it.

    Raises:
        ValueError: the answer is not of the agreed form, or the router has not yet read the cluster.
    """
    if not answer.get("synced"):
        raise ValueError("it has not read the cluster yet")
    services = answer.get("services")
    if not isinstance(services, Mapping):
        raise ValueError("its answer has no services")
    if service not in services:
        return RouterView(router, None)
    try:
        generation = services[service]["generation"]
        takes = frozenset(
            (str(replica["name"]), str(replica["revision"]))
            for replica in services[service]["replicas"]
            if replica["ready"] and not replica["draining"]
        )
    except (KeyError, TypeError) as exc:
        raise ValueError(f"its answer is of another form: {exc!r}") from exc
    if generation is not None and not isinstance(generation, int):
        raise ValueError("its answer has no whole generation")
    return RouterView(router, generation, takes=takes)


async def _json_of(response: aiohttp.ClientResponse) -> Any:
    """The body, of a bounded size.

    Raises:
        ValueError: it is longer, or no JSON; NaN is none.
        aiohttp.ClientError: the connection ended.
    """
    if response.content_type != "application/json":
        raise ValueError(f"its answer has the unexpected mimetype {response.content_type}")
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER:
            raise ValueError(f"its answer has more than {MAX_ANSWER} bytes")
    try:
        return json.loads(body, parse_constant=_no_such_value)
    except RecursionError:
        raise ValueError("its answer is nested too deep") from None


def _no_such_value(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class Routers:
    """Asks router pods over HTTP. One instance for the operator's life; `close` it."""

    def __init__(self, client: KubeClient, namespace: str, port: int = ROUTER_ADMIN_PORT) -> None:
        self._client = client
        self._namespace = namespace
        self._port = port
        self._token: str | None = None
        self._session: aiohttp.ClientSession | None = None

    async def prepare(self) -> None:
        """Make sure that the Secret exists, and read the token.

        Raises:
            KubeError: the Secret can be neither read nor made.
        """
        self._token = await ensure_admin_secret(self._client, self._namespace)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def ask(self, pods: Iterable[JsonObject], namespace: str, service: str) -> tuple[RouterView, ...]:
        """What each ready router follows, in order of pod names. A router that cannot be asked says why."""
        ready = sorted((pod for pod in pods if is_ready(pod)), key=lambda pod: str(pod["metadata"]["name"]))
        return tuple(await asyncio.gather(*(self._ask(pod, namespace, service) for pod in ready)))

    async def pages(self, pods: Iterable[JsonObject], path: str) -> list[Mapping[str, Any]]:
        """What each ready router answers at a path of its admin port; one that cannot be asked is left out."""
        answers = await self.answers(pods, path)
        return [answer for answer in answers.values() if answer is not None]

    async def answers(self, pods: Iterable[JsonObject], path: str) -> dict[str, Mapping[str, Any] | None]:
        """The same by name of the pod; None for one that cannot be asked."""

        async def one(pod: JsonObject) -> Mapping[str, Any] | None:
            try:
                return await self._get(self._url(pod, path))
            except _FAILURES as exc:
                log.info("router %s cannot be asked for %s: %s", pod["metadata"]["name"], path, exc)
                return None

        ready = [pod for pod in pods if is_ready(pod)]
        found = await asyncio.gather(*map(one, ready))
        return {str(pod["metadata"]["name"]): answer for pod, answer in zip(ready, found, strict=True)}

    async def recorders(self) -> list[str]:
        """Base URLs of the ready recorders of copied requests; none where they cannot be listed."""
        try:
            pods = (await self._client.list(PODS, self._namespace, label_selector=RECORDER_SELECTOR)).items
        except KubeError as exc:
            log.info("the recorder cannot be found: %s", exc)
            return []
        addresses = [(pod.get("status") or {}).get("podIP") for pod in pods if is_ready(pod)]
        return [f"http://{f'[{one}]' if ':' in one else one}:{RECORDER_PORT}" for one in addresses if one]

    async def recorded(self, url: str) -> Mapping[str, Any] | None:
        """What a recorder answers; None where it cannot be asked. Its token is that of the routers' admin port."""
        try:
            return await self._get(url)
        except _FAILURES as exc:
            log.info("the recorder cannot be asked: %s", exc)
            return None

    def _url(self, pod: JsonObject, path: str) -> str:
        address = (pod.get("status") or {}).get("podIP")
        if not address:
            raise ValueError("it has no address")
        host = f"[{address}]" if ":" in address else address
        return f"http://{host}:{self._port}{path}"

    async def _ask(self, pod: JsonObject, namespace: str, service: str) -> RouterView:
        name = pod["metadata"]["name"]
        try:
            answer = await self._get(self._url(pod, ROUTES_PATH))
            return view_of(name, answer, f"{namespace}/{service}")
        except _FAILURES as exc:
            return RouterView(name, None, str(exc) or type(exc).__name__)

    async def _get(self, url: str) -> Mapping[str, Any]:
        if not self._token:
            await self.prepare()
        if not self._token:
            raise ValueError(NO_TOKEN)
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_TIMEOUT))
        for attempt in (1, 2):
            headers = {"Authorization": f"Bearer {self._token}"}
            async with self._session.get(url, headers=headers) as response:
                if response.status == 401 and attempt == 1:
                    # The Secret was made anew since it was read.
                    await self.prepare()
                    continue
                if response.status != 200:
                    raise ValueError(f"it answered {response.status}")
                answer = await _json_of(response)
                if not isinstance(answer, dict):
                    raise ValueError("its answer is no object")
                return answer
        raise AssertionError("unreachable: the second attempt returns or raises")
