"""Probes: when one is due and what its results mean (pure), and the network ones themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import aiohttp

from paceline_local.node.errors import ConfigError

ProbeKind = Literal["startup", "liveness", "readiness"]
KINDS: tuple[ProbeKind, ...] = ("startup", "liveness", "readiness")


@dataclass(frozen=True)
class ProbeSpec:
    """One probe with the API's defaults filled in; durations in seconds. `grace`: its own termination grace."""

    kind: ProbeKind
    handler: Mapping[str, Any]
    initial_delay: float = 0.0
    period: float = 10.0
    timeout: float = 1.0
    success_threshold: int = 1
    failure_threshold: int = 3
    grace: float | None = None


@dataclass(frozen=True)
class ProbeState:
    """How a probe stands.

    Attributes:
        passing: the result that counts. Starts False for readiness and startup, True for liveness.
        streak: equal results in a row, negative for failures.
        due: when the next one is to run, in Unix seconds.
        failed: liveness or startup: the failure threshold was reached, the container has to be restarted.
    """

    passing: bool
    streak: int
    due: float
    failed: bool = False


def probe_spec(kind: ProbeKind, container: Mapping[str, Any]) -> ProbeSpec | None:
    """The container's probe of this kind, or None.

    Raises:
        ConfigError: It is of a type that local mode cannot run.
    """
    body = container.get(f"{kind}Probe")
    if not body:
        return None
    handler = {key: body[key] for key in ("httpGet", "tcpSocket", "exec", "grpc") if key in body}
    if "grpc" in handler:
        raise ConfigError(f"{kind}Probe: gRPC probes are not supported in local mode; use httpGet, tcpSocket or exec")
    grace = body.get("terminationGracePeriodSeconds")
    return ProbeSpec(
        kind=kind,
        handler=handler,
        initial_delay=float(body.get("initialDelaySeconds") or 0),
        period=float(body.get("periodSeconds") or 10),
        timeout=float(body.get("timeoutSeconds") or 1),
        success_threshold=int(body.get("successThreshold") or 1),
        failure_threshold=int(body.get("failureThreshold") or 3),
        grace=None if grace is None else float(grace),
    )


def first_state(spec: ProbeSpec, started_at: float, now: float) -> ProbeState:
    """The state before the first run: due after the initial delay, or now where that has passed."""
    return ProbeState(spec.kind == "liveness", 0, max(now, started_at + spec.initial_delay))


def observe(spec: ProbeSpec, state: ProbeState, success: bool, now: float) -> ProbeState:
    """The state after one run that ended at `now`. A probe that has failed for good stays so."""
    if state.failed:
        return state
    streak = max(state.streak, 0) + 1 if success else min(state.streak, 0) - 1
    passing, failed = state.passing, False
    if streak >= spec.success_threshold:
        passing = True
    elif -streak >= spec.failure_threshold:
        passing = False
        failed = spec.kind != "readiness"
    return replace(state, passing=passing, streak=streak, due=state.due + spec.period, failed=failed)


def catch_up(spec: ProbeSpec, state: ProbeState, now: float) -> ProbeState:
    """Skip runs that were missed (a slow probe, a stopped machine) instead of doing them in a burst."""
    if now - state.due <= spec.period:
        return state
    return replace(state, due=now)


def named_port(port: int | str, containers: Sequence[Mapping[str, Any]]) -> int:
    """The number of a port given by number or by name.

    Raises:
        ConfigError: No container has a port of that name.
    """
    if isinstance(port, int) or str(port).isdigit():
        return int(port)
    for container in containers:
        for entry in container.get("ports") or ():
            if entry.get("name") == port:
                return int(entry["containerPort"])
    raise ConfigError(f"no container port is named {port!r}")


async def http_get(
    session: aiohttp.ClientSession, body: Mapping[str, Any], host: str, container: Mapping[str, Any], timeout: float
) -> tuple[bool, str]:
    """One httpGet: good for a status from 200 to 399. Returns whether, and the words for the event."""
    port = named_port(body["port"], [container])
    scheme = str(body.get("scheme") or "HTTP").lower()
    path = str(body.get("path") or "/")
    url = f"{scheme}://{body.get('host') or host}:{port}{path if path.startswith('/') else '/' + path}"
    headers = {"User-Agent": "kube-probe/paceline", "Accept": "*/*"}
    headers.update({h["name"]: h["value"] for h in body.get("httpHeaders") or ()})
    try:
        async with session.get(
            url, headers=headers, ssl=False, allow_redirects=False, timeout=aiohttp.ClientTimeout(total=timeout)
        ) as response:
            good = 200 <= response.status < 400
            return good, f"HTTP probe failed with statuscode: {response.status}"
    except TimeoutError:
        return False, f"Get {url!r}: no answer within {timeout:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return False, f"Get {url!r}: {error}"


async def tcp_connect(
    body: Mapping[str, Any], host: str, container: Mapping[str, Any], timeout: float
) -> tuple[bool, str]:
    """One tcpSocket probe: good when the connection is accepted."""
    port = named_port(body["port"], [container])
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(body.get("host") or host, port)
    except TimeoutError:
        return False, f"dial tcp {host}:{port}: no answer within {timeout:g} s"
    except OSError as error:
        return False, f"dial tcp {host}:{port}: {error.strerror or error}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True, ""
