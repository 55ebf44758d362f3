"""The node's heart: watches the pods bound to it and gives each a worker; serves the kubelet API; watches memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
from pathlib import Path

from paceline_kube import PODS, Change, Informer, JsonObject, drop_managed_fields
from paceline_local.node.addresses import AddressesExhausted, AddressPool
from paceline_local.node.config import NodeContext
from paceline_local.node.memory import held_bytes, snapshot
from paceline_local.node.pod import PodWorker

log = logging.getLogger(__name__)

MEMORY_SECONDS = 0.5
FORGET_SECONDS = 60.0
ADDRESS_RETRY_SECONDS = 2.0
WORKER_RETRY_SECONDS = 5.0


class NodeAgent:
    """All pods of the node."""

    def __init__(self, context: NodeContext) -> None:
        self.context = context
        self.pods_directory = context.config.directory / "pods"
        self.addresses = AddressPool(context.config.pod_range, reserved=[context.config.address])
        self.workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._finished: set[str] = set()
        self._kept: dict[str, JsonObject] = {}
        self.informer = Informer(
            context.client,
            PODS,
            field_selector=f"spec.nodeName={context.config.name}",
            on_change=self._changed,
            transform=drop_managed_fields,
        )

    def find(self, namespace: str, name: str) -> PodWorker | None:
        """The worker of a pod by name; where a new pod has the name of one that is still ending, the new one."""
        for worker in reversed(self.workers.values()):
            if worker.namespace == namespace and worker.name == name:
                return worker
        return None

    async def run(self) -> None:
        """Run pods until cancelled. Their processes stay."""
        self.pods_directory.mkdir(parents=True, exist_ok=True)
        self._find_kept()
        helpers = [
            asyncio.create_task(self.informer.run()),
            asyncio.create_task(self._watch_memory()),
            asyncio.create_task(self._forget()),
            asyncio.create_task(self._end_orphans()),
        ]
        try:
            await asyncio.gather(*helpers)
        finally:
            for task in [*helpers, *self._tasks.values()]:
                task.cancel()
            await asyncio.gather(*helpers, *self._tasks.values(), return_exceptions=True)

    def _find_kept(self) -> None:
        """Read what an earlier run of the node left, before any new pod can be given one of those addresses."""
        for path in self.pods_directory.glob("*/pod.json"):
            kept = json.loads(path.read_text())
            uid = path.parent.name
            self._kept[uid] = kept["pod"]
            if not self.addresses.claim(uid, kept["address"]):
                log.warning("pod %s had the address %s, which is not free here", uid, kept["address"])

    async def _end_orphans(self) -> None:
        """End pods that were deleted while the node was away."""
        await self.informer.synced.wait()
        for uid, pod in self._kept.items():
            if uid not in self.workers:
                self._take(pod)
                if uid in self.workers:
                    self.workers[uid].vanished()
        self._kept.clear()

    def _changed(self, change: Change) -> None:
        if change.new is None:
            uid = change.object["metadata"]["uid"]
            self._finished.discard(uid)
            if (worker := self.workers.get(uid)) is not None:
                worker.update(change.object)
                worker.vanished()
            return
        if change.old is not None and change.old["metadata"]["uid"] != change.new["metadata"]["uid"]:
            old = self.workers.get(change.old["metadata"]["uid"])
            if old is not None:
                old.vanished()
        uid = change.new["metadata"]["uid"]
        if uid in self.workers:
            self.workers[uid].update(change.new)
        elif uid not in self._finished:
            self._take(change.new)

    def _take(self, pod: JsonObject) -> None:
        uid = pod["metadata"]["uid"]
        try:
            address = self.addresses.acquire(uid)
        except AddressesExhausted as error:
            self.context.events.record(pod, "Warning", "FailedCreatePodSandBox", str(error))
            asyncio.get_running_loop().call_later(ADDRESS_RETRY_SECONDS, self._take_again, pod)
            return
        worker = PodWorker(self.context, pod, self.pods_directory / uid, address)
        self.workers[uid] = worker
        task = asyncio.create_task(worker.run(), name=worker.label)
        self._tasks[uid] = task
        task.add_done_callback(lambda task: self._done(uid, task))

    def _take_again(self, pod: JsonObject) -> None:
        uid = pod["metadata"]["uid"]
        current = self.informer.store.get(pod["metadata"]["namespace"], pod["metadata"]["name"])
        if current is not None and current["metadata"]["uid"] == uid and uid not in self.workers:
            self._take(current)

    def _done(self, uid: str, task: asyncio.Task[None]) -> None:
        worker = self.workers.pop(uid)
        del self._tasks[uid]
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("pod %s: its worker failed", worker.label, exc_info=error)
            worker.event("Warning", "FailedSync", f"error syncing pod: {error!r}")
            asyncio.get_running_loop().call_later(WORKER_RETRY_SECONDS, self._take_again, worker.pod)
            return
        self.addresses.release(uid)
        if not worker.gone:  # until the watch says that it is gone, its last states must not bring it back
            self._finished.add(uid)

    async def _watch_memory(self) -> None:
        """Kill containers that hold more than their limit, as the kernel does for a real one."""
        while True:
            await asyncio.sleep(MEMORY_SECONDS)
            try:
                await self._check_memory()
            except Exception:
                # What cannot be measured now must not end the node.
                log.exception("memory of containers not measured")

    async def _check_memory(self) -> None:
        limited = [
            (worker, container, container.attempt, container.memory_limit)
            for worker in self.workers.values()
            for container in worker.containers.values()
            if container.running and container.memory_limit is not None
        ]
        table = await asyncio.to_thread(snapshot) if limited else {}
        for worker, container, attempt, limit in limited:
            assert attempt is not None
            assert limit is not None
            used = await asyncio.to_thread(held_bytes, table, attempt.shim_pid, limit)
            if used > limit and attempt.running:
                log.info("%s: %s holds %d bytes of %d", worker.label, container.spec.name, used, limit)
                attempt.send(signal.SIGUSR2)

    async def _forget(self) -> None:
        while True:
            await asyncio.sleep(FORGET_SECONDS)
            self.context.objects.forget({worker.namespace for worker in self.workers.values()})


async def settle(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def state_of(directory: Path) -> Path:
    """The file in which a node says which process it is."""
    return directory / "node.json"
