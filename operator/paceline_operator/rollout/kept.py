"""The evidence of a step, kept across restarts of the operator in a ConfigMap of the service: `NAME-rollout-evidence`.

It is no store of decisions: those are in the record of the traffic. What is kept of another step, of other traffic, too
long ago or in another form is let go, and the step's evidence begins anew.
"""

from __future__ import annotations

import base64
import json
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from paceline_crds.names import FIELD_MANAGER_OPERATOR
from paceline_crds.sketch import SCALE, Sketch
from paceline_kube import CONFIGMAPS, Key, KubeClient, KubeError, NotFound
from paceline_shadow_traffic.evidence import Seen, Signal, Window
from paceline_shadow_traffic.share import Share

from .gathering import Heard, halved
from .replicas import Counted

log = logging.getLogger(__name__)

KEEP_SECONDS = 60.0
"""Between two writes of a step."""

LONGEST_AWAY = 300.0
"""Seconds without anybody looking, after which evidence is let go. Routers keep single slots for ten minutes, so what
they saw meanwhile is not lost."""

MOST_BYTES = 128 * 1024
"""Of what is kept; where there is more, windows are joined."""

_FORM = f"1/{SCALE}"
_FIELD = "evidence"

About = tuple[str, str, int]
"""Uid of the service, candidate, and generation of the traffic: together one step."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What was heard of a step until `at`, seconds since the epoch."""

    about: About
    at: float
    heard: Heard
    counted: Counted


class Evidences(Protocol):
    """Where it is kept."""

    async def read(self, key: Key) -> bytes | None:
        """What is kept of a service; None where nothing is, or it cannot be read."""
        ...

    async def write(self, key: Key, uid: str, raw: bytes) -> None:
        """Keep this instead, or let it go where that fails now."""
        ...

    async def drop(self, key: Key) -> None:
        """The rollout is over."""
        ...


def pack(kept: Kept) -> bytes:
    """At most `MOST_BYTES`: windows are joined two by two until it fits."""
    heard, counted = kept.heard, kept.counted
    while True:
        places = {place: [_window(one) for one in found] for place, found in heard.windows.items()}
        pools = {pool: [_window(one) for one in found] for pool, found in counted.windows.items()}
        value = {
            "form": _FORM,
            "about": kept.about,
            "at": kept.at,
            "since": heard.since,
            "places": places,
            "pools": pools,
        }
        raw = zlib.compress(json.dumps(value, separators=(",", ":")).encode())
        if len(raw) <= MOST_BYTES:
            return raw
        fewer = [{place: halved(found) for place, found in of.windows.items()} for of in (heard, counted)]
        if fewer == [heard.windows, counted.windows]:
            return raw
        heard, counted = replace(heard, windows=fewer[0]), replace(counted, windows=fewer[1])


def unpack(raw: bytes, about: About, now: float) -> Kept | None:
    """What may be gone on with; None where it is of another step or form, or nobody has looked for too long.

    Routers are then asked about what came since. What replicas counted meanwhile is not known.
    """
    try:
        value = json.loads(zlib.decompress(raw))
        if value["form"] != _FORM or tuple(value["about"]) != about:
            return None
        at, since = float(value["at"]), float(value["since"])
        if not 0.0 <= now - at <= LONGEST_AWAY:
            return None
        places = {str(place): tuple(map(_read, found)) for place, found in value["places"].items()}
        pools = {
            str(pool): (*map(_read, found), Window(at, now, Seen(), Seen())) for pool, found in value["pools"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError, zlib.error):
        return None
    return Kept(about, at, Heard(since, at, windows=places), Counted(since, windows=pools))


def _window(one: Window) -> list[Any]:
    return [one.start, one.end, _seen(one.base), _seen(one.candidate)]


def _read(value: Sequence[Any]) -> Window:
    start, end, base, candidate = value
    return Window(float(start), float(end), _seen_of(base), _seen_of(candidate))


def _seen(seen: Seen) -> dict[str, Any]:
    said: dict[str, Any] = {signal.value: [share.hits, share.of] for signal, share in seen.shares.items()}
    times = {name: sketch.encode() for name in ("ttft", "tpot") if (sketch := getattr(seen, name)) is not None}
    speed = {} if seen.throughput is None else {"throughput": seen.throughput}
    return {**({"shares": said} if said else {}), **times, **speed}


def _seen_of(value: Mapping[str, Any]) -> Seen:
    shares = {Signal(name): Share(float(hits), float(of)) for name, (hits, of) in value.get("shares", {}).items()}
    ttft, tpot = (Sketch.decode(value[name]) if name in value else None for name in ("ttft", "tpot"))
    speed = float(value["throughput"]) if "throughput" in value else None
    return Seen(ttft=ttft, tpot=tpot, throughput=speed, shares=shares)


class EvidenceMaps:
    """Keeps it in ConfigMaps, one for a service. The service owns it."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def read(self, key: Key) -> bytes | None:
        """See `Evidences`."""
        try:
            found = await self._client.get(CONFIGMAPS, name_of(key), key[0])
            return base64.b64decode((found.get("binaryData") or {})[_FIELD], validate=True)
        except NotFound:
            return None
        except (KubeError, KeyError, TypeError, ValueError) as error:
            log.info("%s/%s: what was kept of its rollout cannot be read: %s", *key, error)
            return None

    async def write(self, key: Key, uid: str, raw: bytes) -> None:
        """See `Evidences`."""
        owner = {"apiVersion": "paceline.io/v1alpha1", "kind": "InferenceService", "name": key[1], "uid": uid}
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name_of(key), "namespace": key[0], "ownerReferences": [owner]},
            "binaryData": {_FIELD: base64.b64encode(raw).decode()},
        }
        try:
            await self._client.apply(CONFIGMAPS, body, field_manager=FIELD_MANAGER_OPERATOR, force=True)
        except KubeError as error:
            log.info("%s/%s: the evidence of its rollout is not kept: %s", *key, error)

    async def drop(self, key: Key) -> None:
        """See `Evidences`."""
        try:
            await self._client.delete(CONFIGMAPS, name_of(key), key[0])
        except NotFound:
            return
        except KubeError as error:
            log.info("%s/%s: what was kept of its rollout stays: %s", *key, error)


def name_of(key: Key) -> str:
    """Of the ConfigMap of a service."""
    return f"{key[1]}-rollout-evidence"
