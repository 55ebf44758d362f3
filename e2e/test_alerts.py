"""Faults that are really made: alerts fire and clear, Alertmanager tells of each once, and every panel has an answer.

The rules are the shipped ones with every length of time divided by `SHORTEN`; the Prometheus here scrapes every two
seconds, which is to them what thirty are to the shipped ones.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest
from alerting import Watch, watching
from e2e_support import SYSTEM, Fleet, eventually, processes_of, under_load
from runbooks import runbook_commands, runbook_queries, runbook_steps

from paceline_observability.alerts import Windows
from paceline_observability.dashboards import BOARDS, concrete

pytestmark = [pytest.mark.cluster, pytest.mark.model, pytest.mark.long, pytest.mark.timeout(600)]

SHORTEN = 15
# Seconds; the longest window with its `for` is 80 of them, and nobody promises how fast this machine is.
FIRES = CLEARS = 180.0
NAMESPACE = "alerts"
# One request at a time, and a first token promised sooner than a second one in the queue can have it.
SMALL: dict[str, Any] = {"runtime": {"maxNumSeqs": 1}, "slo": {"ttft": {"p90": "100ms"}}}


@pytest.fixture(scope="module")
def watch(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    with watching(fleet.cluster, tmp_path_factory.mktemp("watch"), Windows(shorten=SHORTEN)) as running:
        yield running


@pytest.fixture(scope="module")
def services(fleet: Fleet, watch: Watch) -> Iterator[str]:
    """`chat`, which keeps a generous promise, and `small`, which cannot; both watched from their start."""
    with fleet.namespace(NAMESPACE) as namespace:
        promise = {"ttft": {"p90": "60s"}, "tpot": {"p90": "60s"}}
        fleet.apply(namespace, "chat", slo=promise, scaling={"minReplicas": 1, "maxReplicas": 2})
        fleet.apply(namespace, "small", **SMALL)
        for name in ("chat", "small"):
            fleet.wait_ready(namespace, name)
            ready = f'up{{namespace="{namespace}", service="{name}"}} == 1'
            eventually(lambda ready=ready: watch.query(ready), f"{name} is scraped")  # type: ignore[misc]
        yield namespace


def test_every_panel_of_the_boards_is_answered_by_the_prometheus_of_the_fleet(
    fleet: Fleet, watch: Watch, services: str
) -> None:
    asked = [
        (f"{board.name} / {panel.title}: {query.legend or 'value'}", query.expr)
        for board in BOARDS
        for panel in board.panels
        for query in panel.queries
        if panel.only is None
    ]

    where = {"namespace": services, "service": "chat", "interval": "20s"}
    left: list[str] = []

    def complete() -> bool:
        # A client that does not ask for the number of tokens, as most do not: the time for each is known all the same.
        stream = fleet.client().chat.completions.create(
            model=f"{services}/chat",
            stream=True,
            max_tokens=8,
            messages=[{"role": "user", "content": "Say hello."}],
        )
        assert list(stream)
        left[:] = [name for name, expr in asked if not _numbers(watch.query(concrete(expr, **where)))]
        return not left

    try:
        eventually(complete, "an answer for every panel", 120, every=1)
    except AssertionError:
        pytest.fail("\n".join(["panels without an answer:", *left]))
    panels = [panel for board in BOARDS for panel in board.panels]
    print(f"{len(asked)} queries of {sum(panel.only is None for panel in panels)} panels answered; not asked:")
    print("\n".join(f"{panel.title}: only {panel.only}" for panel in panels if panel.only))


def _numbers(found: list[dict[str, Any]]) -> list[float]:
    values = [float(one["value"][1]) for one in found]
    return [value for value in values if value == value]


class Story:
    """When faults were made and ended, for the table in docs/reference/alert-cases.md."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._made: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    def made(self, fault: str) -> None:
        """It begins now."""
        self._made[fault] = time.time()

    def ended(self, fault: str) -> None:
        """It is over now."""
        self._ended[fault] = time.time()

    def tell(self, fault: str, alert: str, **labels: str) -> None:
        """Print after how long the alert fired, and cleared, by Prometheus' own record."""
        chosen = ", ".join(f'{key}="{value}"' for key, value in {"alertname": alert, **labels}.items())
        (found,) = self._watch.query(f'ALERTS{{alertstate="firing", {chosen}}}[{time.time() - self._made[fault]:.0f}s]')
        first, last = (float(found["values"][n][0]) for n in (0, -1))
        fired, cleared = first - self._made[fault], last - self._ended[fault]
        print(f"{fault}: {alert} fired after {fired:.0f} s, cleared after {cleared:.0f} s")


def test_faults_that_are_made_fire_are_told_by_service_and_clear(fleet: Fleet, watch: Watch, services: str) -> None:
    # On a slow machine a start is longer than the shortened time that a replica has for it.
    eventually(lambda: not watch.alerts("PacelineReplicaFailing"), "the starts are over", CLEARS)
    story = Story(watch)
    with under_load(fleet, f"{services}/small", clients=8, max_tokens=16):
        story.made("queue")
        with _stopped(fleet, services, "chat"):
            story.made("stopped replica")
            with _other_config_map(fleet, services, "small"):
                story.made("drift")
                for name, labels in (
                    ("PacelineQueueLong", {"service": "small"}),
                    ("PacelineReplicaFailing", {"service": "chat", "how": "down"}),
                    ("PacelineDrift", {"service": "small"}),
                    # Requests missed the promise meanwhile, which wakes somebody.
                    ("PacelineBudgetBurning", {"service": "small"}),
                ):
                    eventually(lambda name=name, labels=labels: watch.alerts(name, **labels), f"{name} fires", FIRES)  # type: ignore[misc]
                eventually(lambda: watch.states("PacelineQueueLong") == {"suppressed"}, "the queue is in the page")
                eventually(lambda: _messages(watch, "page", services, "small"), "the page comes")
                eventually(lambda: _messages(watch, "tickets", services, "chat"), "the ticket comes")
        story.ended("stopped replica")
    story.ended("queue")
    fleet.apply(services, "small", **SMALL, driftPolicy="Repair")
    story.ended("drift")
    for name in ("PacelineQueueLong", "PacelineDrift"):
        eventually(lambda name=name: not watch.alerts(name), f"{name} clears", CLEARS)  # type: ignore[misc]

    fleet.cluster.kubectl("scale", "deployment/paceline-operator", "-n", SYSTEM, "--replicas=0")
    story.made("no operator")
    try:
        eventually(lambda: watch.alerts("PacelineMetricsMissing", component="operator"), "its absence is told", FIRES)
        eventually(lambda: _messages(watch, "tickets"), "a ticket about the operator comes")
    finally:
        fleet.cluster.kubectl("scale", "deployment/paceline-operator", "-n", SYSTEM, "--replicas=1")
        story.ended("no operator")
    eventually(lambda: not watch.alerts("PacelineMetricsMissing"), "its return is told", CLEARS)
    eventually(lambda: not watch.alerts("PacelineReplicaFailing", service="chat"), "the replica is well again", CLEARS)
    eventually(
        lambda: [m for m in _messages(watch, "tickets", services, "chat") if m["status"] == "resolved"],
        "and that is told",
    )

    story.tell("queue", "PacelineQueueLong", service="small")
    story.tell("stopped replica", "PacelineReplicaFailing", service="chat", how="down")
    story.tell("drift", "PacelineDrift", service="small")
    story.tell("no operator", "PacelineMetricsMissing", component="operator")
    # Once for whatever it is that wakes somebody, however long it goes on and whatever else fires for the service.
    pages = [message for message in _messages(watch, "page", services, "small") if message["status"] == "firing"]
    assert len(pages) <= len({alert["labels"]["alertname"] for message in pages for alert in message["alerts"]})
    for _, message in watch.received.messages:
        ours = {label: message["groupLabels"].get(label, "") for label in ("namespace", "service")}
        for alert in message["alerts"]:
            assert {label: alert["labels"].get(label, "") for label in ours} == ours
            assert alert["annotations"]["runbook_url"].endswith(f"/{alert['labels']['alertname']}.md")


def _messages(watch: Watch, receiver: str, namespace: str = "", service: str = "") -> list[dict[str, Any]]:
    wanted = {key: value for key, value in (("namespace", namespace), ("service", service)) if value}
    return [message for message in watch.received.of(receiver) if message["groupLabels"] == wanted]


@contextmanager
def _stopped(fleet: Fleet, namespace: str, service: str) -> Iterator[None]:
    """The processes of a service's replicas do nothing at all."""
    pods = fleet.pods(namespace, f"paceline.io/service={service}")
    stopped = [process for pod in pods for process in processes_of(pod)]
    assert stopped
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in stopped:
            # The node may have ended it meanwhile.
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


@contextmanager
def _other_config_map(fleet: Fleet, namespace: str, service: str) -> Iterator[None]:
    """A ConfigMap of a service says something else than is recorded."""
    # While nothing is changed the operator does not make it anew at once.
    fleet.apply(namespace, service, **SMALL, suspend=True)
    fleet.wait_reason(namespace, service, "Suspended")
    (found,) = [
        item
        for item in fleet.cluster.get("configmaps", "-n", namespace)["items"]
        if item["metadata"]["name"].startswith(f"{service}-")
    ]
    other = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "namespace": namespace,
            **{key: found["metadata"][key] for key in ("name", "labels", "ownerReferences")},
        },
        "data": {key: text.replace('"maxNumSeqs": 1', '"maxNumSeqs": 2') for key, text in found["data"].items()},
    }
    assert other["data"] != found["data"]
    fleet.cluster.kubectl("delete", "configmap", found["metadata"]["name"], "-n", namespace)
    fleet.cluster.kubectl("create", "-f", "-", stdin=json.dumps(other))
    yield


CHANGES = ("delete", "scale", "rollback")
"""Commands that somebody only types when it has come to that; tried elsewhere."""


def test_what_the_runbooks_tell_one_to_type_works_to_the_letter(fleet: Fleet, watch: Watch, services: str) -> None:
    pod = fleet.pods(services, "paceline.io/service=chat")[0]["metadata"]["name"]
    example = re.compile(r"^(POD|chat-default-[0-9a-z-]+)$")
    failed = []
    for words in runbook_steps():
        if words[0] == "amtool" or set(CHANGES) & set(words):
            continue
        command = [
            pod
            if example.match(word)
            else services
            if word == "demo"
            else word.replace("demo/chat", f"{services}/chat")
            for word in words
        ]
        if command[0] == "paceline":
            command[:1] = [sys.executable, "-m", "paceline_cli"]
        done = fleet.cluster.run(*command, check=False, timeout=120)
        # Of a container that never ended there is no log of before. That the answer is no, or not known, is one too.
        good = done.returncode == 0 or "--previous" in words or (words[0] == "paceline" and done.returncode in (1, 3))
        if not good or ("exec" in words and not done.stdout.startswith(("200 ", '{"status"'))):
            failed.append(f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
    assert not failed, "\n".join(failed)
    for query in runbook_queries():
        watch.query(query.replace('"demo"', f'"{services}"'))


def test_the_silences_of_the_runbooks_are_understood_by_alertmanager(watch: Watch) -> None:
    lines = runbook_commands("amtool")
    assert lines
    for _, *words in lines:
        command = [str(watch.amtool), *words, f"--alertmanager.url={watch.alertmanager}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
