"""The long chain, `make e2e`: replicas die, specs change under load, parts are killed, everything is deleted."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import openai
import pytest
from e2e_support import SYSTEM, Fleet, eventually, kill, processes_of, restarts, system_pod, under_load

from paceline_local import lifecycle
from paceline_local.cluster import CommandError
from paceline_local.commands import bring_up

pytestmark = [pytest.mark.cluster, pytest.mark.model, pytest.mark.long, pytest.mark.timeout(900)]


def test_a_replica_killed_mid_stream_ends_that_stream_with_a_readable_error_and_no_other(fleet: Fleet) -> None:
    with fleet.namespace("kill"):
        fleet.apply("kill", "chat", replicas=2)
        fleet.wait_ready("kill", "chat")
        stream = fleet.client().chat.completions.create(
            model="kill/chat",
            stream=True,
            max_tokens=900,
            temperature=0,
            messages=[{"role": "user", "content": "Write a very long story about a lighthouse."}],
        )
        chunks = iter(stream)
        for _ in range(5):
            next(chunks)
        running = {}
        for pod in fleet.pods("kill"):
            ip = pod["status"]["podIP"]
            load = json.loads(_get(f"http://{ip}:8000/v1/paceline/load"))
            running[pod["metadata"]["name"]] = (load["running"], pod)
        (victim,) = [pod for count, pod in running.values() if count]
        kill(victim)
        with pytest.raises(openai.APIError) as error:
            for _ in chunks:
                pass
        assert error.value.message
        for _ in range(8):
            assert fleet.chat("kill/chat")
        condition = fleet.wait_ready("kill", "chat")
        assert condition["status"]["readyReplicas"] == 2


def _get(url: str) -> str:
    import urllib.request

    with urllib.request.urlopen(url, timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def test_a_spec_change_under_load_rolls_without_a_failed_request(fleet: Fleet) -> None:
    with fleet.namespace("roll"):
        fleet.apply("roll", "chat", replicas=2)
        before = fleet.wait_ready("roll", "chat")["status"]["currentRevision"]
        old = {pod["metadata"]["name"] for pod in fleet.pods("roll")}
        with under_load(fleet, "roll/chat") as load:
            fleet.apply("roll", "chat", replicas=2, runtime={"maxNumSeqs": 4})
            fleet.wait_reason("roll", "chat", "RollingOut", 30)
            after = fleet.wait_ready("roll", "chat")["status"]["currentRevision"]
            eventually(lambda: not old & {p["metadata"]["name"] for p in fleet.pods("roll")}, "old pods gone")
            answered = load.answered
            eventually(lambda: load.answered > answered + 3, "answers from the new revision")
        assert load.failures == []
        assert after != before
        assert load.revisions[0] == before
        assert load.revisions[-1] == after
        # Back to the first spec: the same hash, the same revision.
        fleet.apply("roll", "chat", replicas=2)
        assert fleet.wait_ready("roll", "chat")["status"]["currentRevision"] == before


def test_an_unchanged_pool_is_not_touched_by_a_change_of_another(fleet: Fleet) -> None:
    with fleet.namespace("pools"):
        fleet.apply("pools", "chat", pools=[{"name": "long"}])
        fleet.wait_ready("pools", "chat")
        kept = {p["metadata"]["uid"]: restarts(p) for p in fleet.pods("pools", "paceline.io/pool=default")}
        changed = {p["metadata"]["uid"] for p in fleet.pods("pools", "paceline.io/pool=long")}
        fleet.apply("pools", "chat", pools=[{"name": "long", "runtime": {"prefillChunkTokens": 128}}])
        fleet.wait_ready("pools", "chat")
        assert {p["metadata"]["uid"]: restarts(p) for p in fleet.pods("pools", "paceline.io/pool=default")} == kept
        assert not changed & {p["metadata"]["uid"] for p in fleet.pods("pools", "paceline.io/pool=long")}


def test_a_change_that_cannot_start_leaves_the_old_revision_serving(fleet: Fleet) -> None:
    with fleet.namespace("bad"):
        fleet.apply("bad", "chat")
        fleet.wait_ready("bad", "chat")
        with under_load(fleet, "bad/chat") as load:
            # The pod has no limit, so that only the node itself can tell that it has not so much.
            fleet.apply("bad", "chat", runtime={"kvCache": {"memory": "4096Gi"}})
            condition = fleet.wait_reason("bad", "chat", "ConfigError", 120)
            assert "kvCache" in condition["message"]
            traffic = fleet.condition("bad", "chat", "TrafficReady")
            assert traffic is not None
            assert traffic["status"] == "True"
        assert load.failures == []


def test_scaling_up_and_down_under_load_loses_nothing(fleet: Fleet) -> None:
    with fleet.namespace("scale"):
        fleet.apply("scale", "chat")
        fleet.wait_ready("scale", "chat")
        with under_load(fleet, "scale/chat") as load:
            fleet.cluster.kubectl("scale", "psvc/chat", "-n", "scale", "--replicas=2")
            eventually(lambda: fleet.service("scale", "chat")["status"].get("readyReplicas") == 2, "two replicas", 120)
            fleet.cluster.kubectl("scale", "psvc/chat", "-n", "scale", "--replicas=1")
            eventually(lambda: len(fleet.cluster.get("pods", "-n", "scale")["items"]) == 1, "one pod", 120)
        assert load.failures == []


def test_what_cannot_be_scheduled_says_so(fleet: Fleet) -> None:
    with fleet.namespace("toobig"):
        fleet.apply("toobig", "chat", accelerator={"resource": "nvidia.com/gpu", "count": 64})
        assert "nvidia.com/gpu" in fleet.wait_reason("toobig", "chat", "Unschedulable")["message"]


def test_a_quota_that_is_exceeded_says_so_and_recovers_without_an_edit(fleet: Fleet) -> None:
    with fleet.namespace("quota"):
        fleet.cluster.kubectl("create", "quota", "few", "-n", "quota", "--hard=pods=1")
        fleet.apply("quota", "chat", replicas=2)
        assert "few" in fleet.wait_reason("quota", "chat", "QuotaExceeded", 90)["message"]
        fleet.cluster.kubectl("delete", "quota", "few", "-n", "quota")
        fleet.wait_ready("quota", "chat", 240)


def test_memory_past_the_limit_says_out_of_memory(fleet: Fleet) -> None:
    with fleet.namespace("oom"):
        fleet.apply("oom", "chat", pod={"resources": {"limits": {"memory": "200Mi"}}})
        assert fleet.wait_reason("oom", "chat", "OutOfMemory", 120)["status"] == "False"


def test_deleting_the_service_leaves_nothing(fleet: Fleet) -> None:
    with fleet.namespace("gone"):
        fleet.apply("gone", "chat")
        fleet.wait_ready("gone", "chat")
        (pod,) = fleet.pods("gone")
        fleet.cluster.kubectl("delete", "psvc", "chat", "-n", "gone")
        kinds = "inferencerevisions,deployments,replicasets,pods,configmaps"

        def left() -> list[str]:
            items = fleet.cluster.get(kinds, "-n", "gone")["items"]
            return [i["metadata"]["name"] for i in items if i["metadata"]["name"] != "kube-root-ca.crt"]

        eventually(lambda: not left(), "nothing is left", 90)
        eventually(lambda: not processes_of(pod), "its processes are gone", 30)
        with pytest.raises(openai.NotFoundError):
            fleet.chat("gone/chat")


def test_foreign_labels_and_annotations_on_children_are_no_fight(fleet: Fleet) -> None:
    with fleet.namespace("foreign"):
        fleet.apply("foreign", "chat")
        fleet.wait_ready("foreign", "chat")
        (deployment,) = fleet.cluster.get("deployments", "-n", "foreign")["items"]
        name = deployment["metadata"]["name"]
        fleet.cluster.kubectl("annotate", "deployment", name, "-n", "foreign", "other.io/x=1")
        fleet.cluster.kubectl("label", "deployment", name, "-n", "foreign", "other.io/team=a")
        marked = fleet.cluster.get("deployment", name, "-n", "foreign")["metadata"]["resourceVersion"]
        time.sleep(3)
        now = fleet.cluster.get("deployment", name, "-n", "foreign")["metadata"]
        assert now["annotations"]["other.io/x"] == "1"
        assert now["resourceVersion"] == marked


@pytest.mark.parametrize("component", ["operator", "router"])
def test_kill_9_of_operator_or_router_restarts_no_model_and_service_goes_on(fleet: Fleet, component: str) -> None:
    namespace = f"kill9-{component}"
    with fleet.namespace(namespace):
        fleet.apply(namespace, "chat")
        fleet.wait_ready(namespace, "chat")
        # The first look at what the replicas run with comes after they are ready, and is told in the status.
        eventually(
            lambda: "1 replica reports" in _condition(fleet, namespace, "ConfigInSync"), "the replica was looked at"
        )
        models = {p["metadata"]["uid"]: restarts(p) for p in fleet.pods(namespace)}
        objects = _versions(fleet, namespace)
        before = restarts(system_pod(fleet, component))
        kill(system_pod(fleet, component))
        if component == "operator":
            assert fleet.chat(f"{namespace}/chat"), "a stopped operator never stops traffic"
        eventually(lambda: restarts(system_pod(fleet, component)) > before, f"the {component} restarted")
        eventually(
            lambda: all(s["ready"] for s in system_pod(fleet, component)["status"]["containerStatuses"]),
            f"the {component} is ready again",
        )
        assert fleet.chat(f"{namespace}/chat")
        assert {p["metadata"]["uid"]: restarts(p) for p in fleet.pods(namespace)} == models
        # The restarted operator finds all as it should be and writes nothing.
        time.sleep(3)
        assert _versions(fleet, namespace) == objects
        # And it still works.
        fleet.apply(namespace, "chat", runtime={"maxNumSeqs": 2})
        fleet.wait_ready(namespace, "chat")


def _condition(fleet: Fleet, namespace: str, type: str) -> str:
    conditions = fleet.cluster.get("psvc", "chat", "-n", namespace)["status"]["conditions"]
    return next((str(c["message"]) for c in conditions if c["type"] == type), "")


def _versions(fleet: Fleet, namespace: str) -> dict[str, str]:
    items = fleet.cluster.get("psvc,prev,deployments,configmaps", "-n", namespace)["items"]
    return {f"{i['kind']}/{i['metadata']['name']}": i["metadata"]["resourceVersion"] for i in items}


def test_traffic_goes_on_while_the_operator_is_scaled_away(fleet: Fleet) -> None:
    with fleet.namespace("headless"):
        fleet.apply("headless", "chat")
        fleet.wait_ready("headless", "chat")
        fleet.cluster.kubectl("scale", "deployment/paceline-operator", "-n", SYSTEM, "--replicas=0")
        try:
            eventually(lambda: not fleet.pods(SYSTEM, "app.kubernetes.io/component=operator"), "operator gone")
            assert fleet.chat("headless/chat")
            fleet.apply("headless", "chat", runtime={"maxNumSeqs": 2})
        finally:
            fleet.cluster.kubectl("scale", "deployment/paceline-operator", "-n", SYSTEM, "--replicas=1")
        fleet.wait_ready("headless", "chat")


@pytest.mark.parametrize(
    "part", ["kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd", "service-proxy"]
)
def test_kill_9_of_a_control_plane_part_is_said_repaired_and_stops_no_answer(fleet: Fleet, part: str) -> None:
    namespace = f"part-{part}"
    with fleet.namespace(namespace):
        fleet.apply(namespace, "chat")
        fleet.wait_ready(namespace, "chat")
        models = {p["metadata"]["uid"]: restarts(p) for p in fleet.pods(namespace)}
        eventually(lambda: _answers(fleet, f"{namespace}/chat"), "an answer before")
        with _killed(fleet, part):
            if part != "service-proxy":
                assert fleet.chat(f"{namespace}/chat"), "answers do not need the control plane"
        status = lifecycle.status(fleet.cluster.directory)
        assert status is not None
        assert status.works, status
        eventually(lambda: _answers(fleet, f"{namespace}/chat"), "an answer")
        assert {p["metadata"]["uid"]: restarts(p) for p in fleet.pods(namespace)} == models
        fleet.apply(namespace, "chat", runtime={"maxNumSeqs": 2})
        fleet.wait_ready(namespace, "chat")


def test_a_node_that_was_taken_for_lost_serves_again_once_the_control_plane_is_back(fleet: Fleet) -> None:
    with fleet.namespace("lost"):
        fleet.apply("lost", "chat")
        fleet.wait_ready("lost", "chat")
        (pod,) = fleet.pods("lost")
        eventually(lambda: _answers(fleet, "lost/chat"), "an answer before")
        with _killed(fleet, "etcd"):
            # The node controller waits for 50 s of silence before it marks the node and all pods on it.
            until = time.monotonic() + 60
            while time.monotonic() < until:
                assert fleet.chat("lost/chat")
                time.sleep(1)
        eventually(lambda: _answers(fleet, "lost/chat"), "an answer")
        fleet.wait_ready("lost", "chat")
        (again,) = fleet.pods("lost")
        assert again["metadata"]["uid"] == pod["metadata"]["uid"]
        assert restarts(again) == restarts(pod)


def test_kill_9_of_the_node_leaves_pods_running_and_finds_them_again(fleet: Fleet) -> None:
    with fleet.namespace("node"):
        fleet.apply("node", "chat")
        fleet.wait_ready("node", "chat")
        (pod,) = fleet.pods("node")
        pids = {process.pid for process in processes_of(pod)}
        eventually(lambda: _answers(fleet, "node/chat"), "an answer before")
        with _killed(fleet, "node-0"):
            assert fleet.chat("node/chat")
        eventually(lambda: _answers(fleet, "node/chat"), "an answer")
        assert pids <= {process.pid for process in processes_of(pod)}
        (again,) = fleet.pods("node")
        assert again["metadata"]["uid"] == pod["metadata"]["uid"]
        assert restarts(again) == restarts(pod)


@contextmanager
def _killed(fleet: Fleet, part: str) -> Iterator[None]:
    """A part of the cluster ends at once; afterwards it is brought up again, whatever was found meanwhile."""
    status = lifecycle.status(fleet.cluster.directory)
    assert status is not None
    (found,) = [p for p in status.parts if p.name == part]
    assert found.pid is not None
    os.kill(found.pid, signal.SIGKILL)

    def said() -> bool:
        now = lifecycle.status(fleet.cluster.directory)
        return now is not None and any(p.name == part and p.state == "crashed" for p in now.parts)

    try:
        eventually(said, f"status says that {part} crashed", 20)
        yield
    finally:
        bring_up(fleet.cluster.directory, lambda shape: shape)


def _answers(fleet: Fleet, model: str) -> bool:
    try:
        return bool(fleet.chat(model))
    except (openai.APIError, CommandError):
        return False


def test_a_client_that_leaves_frees_its_blocks(fleet: Fleet) -> None:
    with fleet.namespace("leaver"):
        fleet.apply("leaver", "chat")
        fleet.wait_ready("leaver", "chat")
        (pod,) = fleet.pods("leaver")
        url = f"http://{pod['status']['podIP']}:8000/v1/paceline/load"
        client, left = fleet.client(), threading.Event()

        def ask() -> None:
            # Not streamed: the only sign of the client's departure is its closed connection.
            try:
                client.with_options(timeout=2).chat.completions.create(
                    model="leaver/chat",
                    max_tokens=900,
                    messages=[{"role": "user", "content": "Tell a long story."}],
                    extra_body={"ignore_eos": True},
                )
            except openai.APIConnectionError:
                left.set()

        thread = threading.Thread(target=ask)
        thread.start()
        eventually(lambda: json.loads(_get(url))["running"] == 1, "the request runs", 20, every=0.05)
        thread.join()
        assert left.is_set(), "the answer came before the client left"
        eventually(lambda: json.loads(_get(url))["running"] == 0, "its place is free", 5)
