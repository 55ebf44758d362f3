"""One pod on the node, from the moment it is bound until it is deleted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import shutil
import signal
import time
from collections.abc import Coroutine
from datetime import datetime
from pathlib import Path
from typing import Any

from paceline_kube import PODS, Conflict, JsonObject, KubeError, NotFound
from paceline_local.node.config import NodeContext
from paceline_local.node.container import Container
from paceline_local.node.env import Ref, env_references
from paceline_local.node.errors import ConfigError, VolumeError
from paceline_local.node.hooks import run_hook
from paceline_local.node.plan import containers_of, refusals
from paceline_local.node.podvolumes import PodVolumes
from paceline_local.node.probes import ProbeState
from paceline_local.node.probing import watch_probe
from paceline_local.node.restart import Decision, decide, next_backoff
from paceline_local.node.runtime import LOST, START_ERROR, attempts_of
from paceline_local.node.shim import write_json
from paceline_local.node.start import remove_short_tmp, start_container
from paceline_local.node.status import overwritten, pod_status

log = logging.getLogger(__name__)

GONE_GRACE = 2.0
"""Seconds that containers get whose pod was removed from the API server without waiting for the node."""

RETRY_SECONDS = 1.0
TERMINAL = ("Succeeded", "Failed")


class PodWorker:
    """Brings one pod to what the API server says of it, step by step, until it is gone.

    `update` and `vanished` are told by the node's watch; `run` does everything else and returns when nothing is left.
    """

    def __init__(self, context: NodeContext, pod: JsonObject, directory: Path, address: str) -> None:
        self.context, self.pod, self.directory, self.address = context, pod, directory, address
        self.uid = str(pod["metadata"]["uid"])
        self.facts = context.facts(address)
        self.volumes = PodVolumes(context, directory / "volumes", self.facts)
        self.containers = {
            spec.name: Container(spec, directory / "containers" / spec.name, self.uid) for spec in containers_of(pod)
        }
        self.gone = False
        self.ending_since: float | None = None
        self.outcome: str | None = None
        self.failure = ("", "")
        self.started_at = time.time()
        self._wake = asyncio.Event()
        self._sent: JsonObject | None = None
        self._sent_version = 0

    # What the node tells.

    def update(self, pod: JsonObject) -> None:
        """The pod as the API server has it now."""
        self.pod = pod
        self._wake.set()

    def vanished(self) -> None:
        """The API server has no such pod any more."""
        self.gone = True
        self._wake.set()

    def wake(self) -> None:
        """Something of the pod has changed."""
        self._wake.set()

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.pod["metadata"]["namespace"])

    @property
    def label(self) -> str:
        return f"{self.name}_{self.namespace}({self.uid})"

    @property
    def deleting(self) -> bool:
        return self.gone or bool(self.pod["metadata"].get("deletionTimestamp"))

    @property
    def ending(self) -> bool:
        return self.deleting or bool(self.failure[0])

    # The loop.

    async def run(self) -> None:
        """Work until the pod is gone from the API server and from this machine, or until cancelled."""
        await self._load()
        try:
            while True:
                self._wake.clear()
                try:
                    wake_at = await self._step(time.time())
                except KubeError as error:
                    log.info("%s: %s", self.label, error)
                    wake_at = time.time() + RETRY_SECONDS
                except Exception as error:
                    # One broken pod must not stop the others, nor go unnoticed.
                    log.exception("%s", self.label)
                    self.event("Warning", "FailedSync", f"error syncing pod: {error!r}")
                    wake_at = time.time() + 5 * RETRY_SECONDS
                if wake_at is not None and wake_at == -math.inf:
                    return
                with contextlib.suppress(TimeoutError):
                    wait = None if wake_at is None else max(0.0, wake_at - time.time())
                    await asyncio.wait_for(self._wake.wait(), wait)
        finally:
            await self._release()

    async def _step(self, now: float) -> float | None:
        """One step. Returns when the next is due (None: when something happens; -inf: never, the pod is gone)."""
        self._note_exits()
        wakes = [self._check_deadline(now)]
        if self.outcome is None and self.pod.get("status", {}).get("phase") in TERMINAL:
            self.outcome = self.pod["status"]["phase"]
        if self.ending and self.ending_since is None:
            self.ending_since = now
        if self.outcome is None or any(c.running for c in self.containers.values()):
            wakes.append(await self._advance(now))
        if self.outcome is None or not self.gone:
            await self._write_status(now)
        if self.deleting and self.outcome is not None and not any(c.running for c in self.containers.values()):
            await self._delete()
            await asyncio.to_thread(self._clean)
            return -math.inf
        return min((w for w in wakes if w is not None), default=None)

    async def _advance(self, now: float) -> float | None:
        ending = self.ending or self.outcome is not None
        wakes: list[float | None] = []
        if not ending:
            if words := refusals(self.pod):
                self._refuse("local mode cannot run this pod: " + "; ".join(words))
                return None
            try:
                wakes.append(await self.volumes.sync(self.pod, now))
            except KubeError as error:
                if not self.volumes.made:
                    raise
                # What runs goes on, and what crashes is restarted, while the API server is away.
                log.info("%s: volumes not refreshed: %s", self.label, error)
            except (VolumeError, ConfigError) as error:
                if any(c.running for c in self.containers.values()):
                    log.info("%s: volumes not refreshed: %s", self.label, error)
                else:
                    self.event("Warning", "FailedMount", f"MountVolume.SetUp failed: {error}")
                    for container in self.containers.values():
                        container.error = VolumeWaiting(str(error))
                    return now + 2 * RETRY_SECONDS
            for container in self.containers.values():
                if isinstance(container.error, VolumeWaiting):
                    container.error = None
        decision = decide(
            [c.view() for c in self.containers.values()], now, ending=ending, most=self.context.config.max_backoff
        )
        for name in decision.stop:
            self.stop(self.containers[name])
        self._note_waiting(decision)
        wakes.append(decision.wake_at)
        for name in decision.start:
            wakes.append(await self._start(self.containers[name], now))
        if decision.outcome is not None and self.outcome is None:
            self.outcome = "Failed" if self.failure[0] else decision.outcome
        return min((w for w in wakes if w is not None), default=None)

    def _note_exits(self) -> None:
        for container in self.containers.values():
            attempt = container.attempt
            if attempt is None or attempt.running or container.exit is not None:
                continue
            termination = attempt.termination(container.spec.body)
            container.ended(termination)
            self.context.gpus.release(self._gpu_owner(container))
            if container.entered or termination.reason == LOST:
                attempt.kill_leftovers()

    def _note_waiting(self, decision: Decision) -> None:
        for name, container in self.containers.items():
            until = decision.waiting.get(name)
            if until is not None and container.crash_wait is None:
                words = f"Back-off restarting failed container {name} in pod {self.label}"
                self.event("Warning", "BackOff", words, container)
            container.crash_wait = until

    def _check_deadline(self, now: float) -> float | None:
        limit = self.pod["spec"].get("activeDeadlineSeconds")
        if limit is None or self.outcome is not None or self.ending:
            return None
        if now < self.started_at + limit:
            return float(self.started_at + limit)
        self.failure = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        self.event("Normal", "DeadlineExceeded", self.failure[1])
        return None

    def _refuse(self, words: str) -> None:
        for container in self.containers.values():
            if container.error is None:
                self.event("Warning", "Failed", words, container)
            container.error = ConfigError(words)

    # Starting.

    async def _start(self, container: Container, now: float) -> float | None:
        if container.error is not None and now < container.retry_at:
            return container.retry_at
        again = container.exit is not None
        retry_at = await start_container(self, container, now)
        if retry_at is not None:
            container.retry_at = retry_at
            return retry_at
        if again:
            container.backoff = next_backoff(container.backoff, now, self.context.config.max_backoff)
            container.save()
        attempt = container.attempt
        assert attempt is not None
        if not attempt.running:
            self._note_exits()
            self.wake()
        if container.exit is not None and container.exit.reason == START_ERROR:
            self.event("Warning", "Failed", f"Error: {container.exit.message}", container)
            return None
        self.event("Normal", "Started", f"Container started: {container.spec.name}", container)
        if attempt.running:
            self._after_start(container, run_post_start=True)
        return None

    def _after_start(self, container: Container, *, run_post_start: bool) -> None:
        self.keep(container, self._supervise(container, run_post_start))

    async def _supervise(self, container: Container, run_post_start: bool) -> None:
        """postStart, then probes, of one attempt."""
        hook = (container.spec.body.get("lifecycle") or {}).get("postStart")
        if hook and run_post_start:
            failure = await run_hook(self, container, hook, None)
            if failure is not None:
                self.event("Warning", "FailedPostStartHook", f"PostStartHook failed: {failure}", container)
                self.stop(container, "failed postStart hook")
                return
        if container.spec.body.get("startupProbe") and not container.started:
            await watch_probe(self, container, "startup")
            if not container.started:
                return
        container.started = True
        self.wake()
        for kind in ("liveness", "readiness"):
            if container.spec.body.get(f"{kind}Probe"):
                self.keep(container, watch_probe(self, container, kind))

    def keep(self, container: Container, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside the container; it ends with the container's attempt."""
        task = asyncio.create_task(work)
        container.tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            container.tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("%s: %s", self.label, container.spec.name, exc_info=error)
                self.event("Warning", "FailedSync", f"error syncing pod: {error!r}", container)

        task.add_done_callback(done)

    def gpus_for(self, container: Container, count: int) -> str:
        """`CUDA_VISIBLE_DEVICES` of the container's next attempt."""
        return self.context.gpus.visible(self._gpu_owner(container), count)

    def _gpu_owner(self, container: Container) -> str:
        return f"{self.uid}/{container.spec.name}"

    async def objects_of(self, container: Container) -> dict[Ref, JsonObject | None]:
        """ConfigMaps and Secrets that the container's environment names, as they are now."""
        refs = env_references(container.spec.body)
        return await self.context.objects.get(self.namespace, refs, 1.0)  # type: ignore[return-value]

    # Stopping.

    def stop(self, container: Container, why: str = "", grace: float | None = None) -> None:
        """Stop a running container: preStop, SIGTERM, and after its grace SIGKILL. Again: only sooner, never later."""
        if not container.running:
            return
        until = self._kill_time(grace)
        container.kill_at = until if container.kill_at is None else min(until, container.kill_at)
        if container.stopping is not None and not container.stopping.done():
            return
        words = f"Container {container.spec.name} {why}, will be restarted" if why else ""
        self.event("Normal", "Killing", words or f"Stopping container {container.spec.name}", container)
        container.stopping = asyncio.create_task(self._stop(container))

    def _kill_time(self, grace: float | None) -> float:
        metadata, now = self.pod["metadata"], time.time()
        if self.gone or metadata.get("deletionTimestamp"):
            begun = self.ending_since or now
            if self.gone:
                asked = metadata.get("deletionGracePeriodSeconds")
                return begun + (GONE_GRACE if not asked else float(asked))
            # The API server writes whole seconds: it may be up to one second later than it says.
            deadline = datetime.fromisoformat(metadata["deletionTimestamp"]).timestamp() + 1
            return min(deadline, begun + float(metadata.get("deletionGracePeriodSeconds") or 0))
        spec_grace = self.pod["spec"].get("terminationGracePeriodSeconds")
        return now + (grace if grace is not None else float(30 if spec_grace is None else spec_grace))

    async def _stop(self, container: Container) -> None:
        attempt = container.attempt
        assert attempt is not None
        hook = (container.spec.body.get("lifecycle") or {}).get("preStop")
        if hook:
            try:
                failure = await self._before(container, run_hook(self, container, hook, None))
            except Exception as error:
                # Whatever becomes of the hook, the container has to end.
                log.exception("%s: preStop of %s", self.label, container.spec.name)
                failure = repr(error)
            if failure:
                self.event("Warning", "FailedPreStopHook", f"PreStopHook failed: {failure}", container)
        attempt.send(signal.SIGTERM)
        while attempt.running:
            assert container.kill_at is not None
            left = container.kill_at - time.time()
            if left <= 0:
                attempt.send(signal.SIGUSR1)
                await attempt.exited.wait()
                return
            with contextlib.suppress(TimeoutError):
                # In pieces, since a later deletion may bring the end nearer.
                await asyncio.wait_for(attempt.exited.wait(), min(left, 0.5))

    async def _before(self, container: Container, hook: Coroutine[Any, Any, str | None]) -> str | None:
        """Wait for a hook, but not past the container's end or the time when it is to be killed."""
        task = asyncio.create_task(hook)
        attempt = container.attempt
        assert attempt is not None
        while not task.done() and attempt.running:
            assert container.kill_at is not None
            left = container.kill_at - time.time()
            if left <= 0:
                break
            await asyncio.wait([task], timeout=min(left, 0.1))
        if task.done():
            return task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return "it did not end within the grace period" if attempt.running else None

    # Status, deletion, state on disk.

    def event(self, kind: str, reason: str, message: str, container: Container | None = None) -> None:
        """Record an event about the pod or one of its containers."""
        name = container.spec.name if container else None
        init = container is not None and container.spec.role != "main"
        self.context.events.record(self.pod, kind, reason, message, name, init)  # type: ignore[arg-type]

    async def _write_status(self, now: float) -> None:
        if self.gone:
            return
        if self._sent and overwritten(self.pod, self._sent, self._sent_version):
            self._sent = None
        status = pod_status(
            self.pod,
            [c.facts(self.label) for c in self.containers.values()],
            self.facts,
            outcome=self.outcome,
            started_at=self.started_at,
            now=now,
            told=self._sent["conditions"] if self._sent else None,
            reason=self.failure[0],
            message=self.failure[1],
        )
        if status == self._sent:
            return
        body = {"metadata": {"uid": self.uid}, "status": status}
        try:
            written = await self.context.client.patch(PODS, self.name, body, self.namespace, subresource="status")
        except (NotFound, Conflict):
            self.gone = True
            self._wake.set()
            return
        self._sent, self._sent_version = status, int(written["metadata"]["resourceVersion"])

    async def _delete(self) -> None:
        if self.gone:
            return
        with contextlib.suppress(NotFound, Conflict):
            await self.context.client.delete(PODS, self.name, self.namespace, uid=self.uid, grace_period_seconds=0)

    async def _load(self) -> None:
        """Find what an earlier node has started; watch again what runs of it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / "pod.json"
        if path.exists():
            self.started_at = json.loads(path.read_text())["startedAt"]
        self._save()
        told = {c["name"]: c for c in self.pod.get("status", {}).get("containerStatuses") or ()}
        for container in self.containers.values():
            if not await container.load(self.wake):
                continue
            assert container.attempt is not None
            visible = container.attempt.environment().get("CUDA_VISIBLE_DEVICES", "")
            self.context.gpus.hold(self._gpu_owner(container), visible)
            before = told.get(container.spec.name, {})
            container.started = bool(before.get("started"))
            self._adopt_readiness(container, bool(before.get("ready")))
            self._after_start(container, run_post_start=False)

    def _adopt_readiness(self, container: Container, ready: bool) -> None:
        if container.spec.body.get("readinessProbe"):
            container.probes["readiness"] = ProbeState(ready, 0, time.time())

    def _save(self) -> None:
        write_json(
            str(self.directory / "pod.json"),
            {"pod": self.pod, "address": self.address, "startedAt": self.started_at},
        )

    async def _release(self) -> None:
        for container in self.containers.values():
            for task in [*container.tasks, *([container.stopping] if container.stopping else [])]:
                task.cancel()
            if container.attempt is not None:
                container.attempt.release()
        self.context.tokens.forget(self.uid)

    def _clean(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        remove_short_tmp(self.uid)

    def log_path(self, name: str, previous: bool) -> Path | None:
        """The log file of a container's current or previous attempt; None where there is none.

        While it waits for its restart, the attempt that ended last is both, as its `lastState` says.
        """
        container = self.containers[name]
        attempts = attempts_of(container.directory)
        waits = not container.running and (container.crash_wait is not None or container.error is not None)
        index = 2 if previous and not waits else 1
        return attempts[-index] / "log" if len(attempts) >= index else None


class VolumeWaiting(ConfigError):
    """A container waits for the pod's volumes."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.reason = "ContainerCreating"
