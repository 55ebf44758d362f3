"""postStart and preStop: exec, httpGet and sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline_local.node.container import Container
from paceline_local.node.errors import ConfigError
from paceline_local.node.plan import mounts_of, rewrite_paths
from paceline_local.node.probes import http_get
from paceline_local.node.runtime import execute

if TYPE_CHECKING:
    from paceline_local.node.pod import PodWorker

HTTP_SECONDS = 60.0


def command_in(worker: PodWorker, container: Container, command: list[str]) -> list[str]:
    """A command as it has to be executed in the container: with host paths where there is no mount namespace."""
    if worker.context.namespace != "none":
        return command
    mounts = mounts_of(container.spec.body, worker.volumes.paths, {})
    return [rewrite_paths(part, mounts) for part in command]


async def run_hook(
    worker: PodWorker, container: Container, hook: Mapping[str, Any], timeout: float | None
) -> str | None:
    """Run one hook; None when it succeeded, else the words for the event."""
    attempt = container.attempt
    assert attempt is not None
    if "exec" in hook:
        container.entered = True
        command = command_in(worker, container, list(hook["exec"].get("command") or ()))
        code, output = await execute(attempt, command, timeout)
        return None if code == 0 else f"{' '.join(command)} ended with status {code}: {output}"
    if "httpGet" in hook:
        try:
            good, words = await http_get(
                worker.context.session, hook["httpGet"], worker.address, container.spec.body, timeout or HTTP_SECONDS
            )
        except ConfigError as error:
            return error.message
        return None if good else words
    if "sleep" in hook:
        await asyncio.sleep(float(hook["sleep"]["seconds"]))
        return None
    return f"a hook of type {', '.join(hook)} is not supported in local mode; use exec, httpGet or sleep"
