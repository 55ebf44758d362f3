"""Runs a container's probes on time and acts on what they say."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from paceline_local.node.container import Container
from paceline_local.node.errors import ConfigError
from paceline_local.node.hooks import command_in
from paceline_local.node.probes import (
    ProbeKind,
    ProbeSpec,
    ProbeState,
    catch_up,
    first_state,
    http_get,
    observe,
    probe_spec,
    tcp_connect,
)
from paceline_local.node.runtime import execute

if TYPE_CHECKING:
    from paceline_local.node.pod import PodWorker


async def run_probe(worker: PodWorker, container: Container, spec: ProbeSpec) -> tuple[bool, str]:
    """One run of a probe: whether it succeeded, and the words if not."""
    handler, attempt = spec.handler, container.attempt
    assert attempt is not None
    try:
        if "httpGet" in handler:
            session = worker.context.session
            return await http_get(session, handler["httpGet"], worker.address, container.spec.body, spec.timeout)
        if "tcpSocket" in handler:
            return await tcp_connect(handler["tcpSocket"], worker.address, container.spec.body, spec.timeout)
    except ConfigError as error:
        return False, error.message
    container.entered = True
    command = command_in(worker, container, list(handler["exec"].get("command") or ()))
    code, output = await execute(attempt, command, spec.timeout)
    if code is None:
        return False, f"command timed out: {' '.join(command)!r} ran for {spec.timeout:g} s"
    return code == 0, output


async def watch_probe(worker: PodWorker, container: Container, kind: ProbeKind) -> None:
    """Run one probe until its container's attempt ends, or (startup) until it has passed or failed for good."""
    spec, attempt = probe_spec(kind, container.spec.body), container.attempt
    assert spec is not None
    assert attempt is not None
    state = first_state(spec, attempt.started_at, time.time())
    kept = container.probes.get(kind)
    if kept is not None:  # found again after a restart of the node: what was ready stays so until a probe says no
        state = ProbeState(kept.passing, 0, state.due)
    container.probes[kind] = state
    while True:
        await asyncio.sleep(max(0.0, state.due - time.time()))
        if kind != "readiness" and (worker.ending or container.kill_at is not None):
            return
        success, words = await run_probe(worker, container, spec)
        if not attempt.running or container.attempt is not attempt:
            return
        now = time.time()
        before, state = state, catch_up(spec, observe(spec, state, success, now), now)
        container.probes[kind] = state
        if not success and container.kill_at is None:
            text = f"{kind.capitalize()} probe failed: {words}"
            worker.event("Warning", "Unhealthy", text, container)
        if kind == "startup" and state.passing:
            container.started = True
            return
        if state.failed:
            worker.stop(container, f"failed {kind} probe", spec.grace)
            return
        if state.passing != before.passing:
            worker.wake()
