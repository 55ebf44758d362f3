"""One container of a pod over all its attempts: what is known of it, kept on disk so that a new node finds it again."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from paceline_local.node.errors import ContainerWaiting
from paceline_local.node.plan import ContainerSpec, memory_limit
from paceline_local.node.probes import ProbeKind, ProbeState
from paceline_local.node.restart import Backoff, ContainerView
from paceline_local.node.runtime import Attempt, Termination, attempts_of
from paceline_local.node.shim import write_json
from paceline_local.node.status import ContainerFacts

KEPT_ATTEMPTS = 2
ADOPT_SECONDS = 5.0


class Container:
    """State of one container. Times are Unix seconds.

    Attributes:
        attempt: the current or latest attempt, None before the first.
        exit, previous: how the latest attempt ended (None while it runs) and the one before.
        error, retry_at: why it could not be started, and when that is tried again.
        crash_wait: until when it waits in CrashLoopBackOff.
        kill_at: when it gets SIGKILL, while it is being stopped.
    """

    def __init__(self, spec: ContainerSpec, directory: Path, uid: str) -> None:
        self.spec, self.directory, self.uid = spec, directory, uid
        self.number = -1
        self.attempt: Attempt | None = None
        self.exit: Termination | None = None
        self.previous: Termination | None = None
        self.backoff: Backoff | None = None
        self.image_backoff: Backoff | None = None
        self.error: ContainerWaiting | None = None
        self.retry_at = 0.0
        self.crash_wait: float | None = None
        self.started = False
        self.hooked = False
        self.probes: dict[ProbeKind, ProbeState] = {}
        self.stopping: asyncio.Task[None] | None = None
        self.kill_at: float | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.entered = False

    @property
    def running(self) -> bool:
        return self.attempt is not None and self.attempt.running

    @property
    def memory_limit(self) -> int | None:
        """Bytes, None where there is no limit. One that cannot be read keeps the container from starting."""
        return memory_limit(self.spec.body)

    @property
    def ready(self) -> bool:
        """Whether it counts as ready: init containers when done, others when they run and their probe says so."""
        if self.spec.role == "init":
            return self.exit is not None and self.exit.exit_code == 0
        if not self.running or not self.started:
            return False
        if not self.spec.body.get("readinessProbe"):
            return True
        state = self.probes.get("readiness")
        return state is not None and state.passing

    def container_id(self, number: int) -> str:
        return f"paceline://{self.uid}/{self.spec.name}/{number}"

    def view(self) -> ContainerView:
        """What decisions are made from."""
        state = "running" if self.running else "exited" if self.exit is not None else "none"
        return ContainerView(
            name=self.spec.name,
            role=self.spec.role,
            policy=self.spec.policy,
            state=state,  # type: ignore[arg-type]
            started=self.started,
            exit_code=self.exit.exit_code if self.exit else 0,
            ended=self.exit.finished_at if self.exit else 0.0,
            backoff=self.backoff,
        )

    def facts(self, pod_label: str) -> ContainerFacts:
        """What its status is made from; `pod_label` is `name_namespace(uid)`."""
        waiting: tuple[str, str] | None = None
        if self.error is not None:
            waiting = (self.error.reason, self.error.message)
        elif self.crash_wait is not None and self.backoff is not None:
            words = f"back-off {self.backoff.delay:g}s restarting failed container={self.spec.name} pod={pod_label}"
            waiting = ("CrashLoopBackOff", words)
        attempt = self.attempt
        return ContainerFacts(
            spec=self.spec,
            restarts=max(0, self.number),
            container_id=attempt.container_id if attempt else "",
            running_since=attempt.started_at if attempt and attempt.running else None,
            exit=self.exit,
            previous=self.previous,
            waiting=None if self.running else waiting,
            started=self.running and self.started,
            ready=self.ready,
        )

    def next_attempt(self) -> Attempt:
        """A new attempt with an empty directory; what is known of the last one becomes the previous."""
        if self.exit is not None:
            self.previous = self.exit
        self.number += 1
        self.exit, self.error, self.crash_wait = None, None, None
        self.started = self.hooked = self.entered = False
        self.probes = {}
        self.stopping, self.kill_at = None, None
        path = self.directory / str(self.number)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        self.attempt = Attempt(path, self.container_id(self.number))
        for old in attempts_of(self.directory)[:-KEPT_ATTEMPTS]:
            shutil.rmtree(old)
        self.save()
        return self.attempt

    def ended(self, termination: Termination) -> None:
        """Note how the current attempt ended."""
        self.exit = termination
        self.started = False
        self.probes = {}
        for task in self.tasks:
            task.cancel()

    def save(self) -> None:
        """Keep what the attempts' own files do not say."""
        self.directory.mkdir(parents=True, exist_ok=True)
        value = {
            "backoff": dataclasses.asdict(self.backoff) if self.backoff else None,
            "previous": dataclasses.asdict(self.previous) if self.previous else None,
        }
        write_json(str(self.directory / "container.json"), value)

    async def load(self, on_exit: Callable[[], None]) -> bool:
        """Find the container as an earlier node left it. True if it runs and is watched again."""
        try:
            kept = json.loads((self.directory / "container.json").read_text())
        except FileNotFoundError:
            return False
        self.backoff = Backoff(**kept["backoff"]) if kept["backoff"] else None
        self.previous = Termination(**kept["previous"]) if kept["previous"] else None
        attempts = attempts_of(self.directory)
        if not attempts:
            return False
        self.number = int(attempts[-1].name)
        self.attempt = Attempt(attempts[-1], self.container_id(self.number))
        for _ in range(int(ADOPT_SECONDS / 0.05)):
            if not self.attempt.starting():
                break
            await asyncio.sleep(0.05)
        if self.attempt.adopt(on_exit):
            return True
        begun = any((attempts[-1] / name).exists() for name in ("running.json", "exit.json"))
        if not begun:  # the node ended between the decision and the start: that attempt is still to come
            self.number -= 1
            self.attempt = None
            return False
        if not (attempts[-1] / "exit.json").exists():
            await asyncio.to_thread(self.attempt.kill_leftovers)
        self.exit = self.attempt.termination(self.spec.body)
        return False
