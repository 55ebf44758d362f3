"""The node as a cluster's user meets it: real pods on a real API server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from paceline_local import lifecycle
from paceline_local.cluster import Cluster, CommandError
from paceline_local.state import Instance
from paceline_local.testing import temporary_cluster

pytestmark = pytest.mark.cluster

SHELL = "paceline.io/shell:1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with temporary_cluster(nodes=1, gpus_per_node=2) as made:
        yield made


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Poll until the condition gives something true, and return that."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
    return found


def container(command: str | list[str], **more: Any) -> dict[str, Any]:
    line = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    return {"name": "c", "image": SHELL, "command": line, **more}


def manifest(
    name: str, *containers: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"terminationGracePeriodSeconds": 2, "containers": list(containers), **spec},
    }


def create(cluster: Cluster, name: str, *containers: dict[str, Any], **spec: Any) -> None:
    cluster.apply(yaml.safe_dump(manifest(name, *containers, **spec)))


def apply(cluster: Cluster, kind: str, name: str, api: str = "v1", **body: Any) -> None:
    cluster.apply(yaml.safe_dump({"apiVersion": api, "kind": kind, "metadata": {"name": name}, **body}))


def pod(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("pod", name)
    return found


def first(cluster: Cluster, name: str) -> dict[str, Any]:
    """Status of the pod's first container; empty while there is none."""
    statuses = pod(cluster, name)["status"].get("containerStatuses") or [{"state": {}, "lastState": {}}]
    found: dict[str, Any] = statuses[0]
    return found


def condition(cluster: Cluster, name: str, kind: str) -> dict[str, Any]:
    conditions = pod(cluster, name)["status"].get("conditions") or ()
    return next((c for c in conditions if c["type"] == kind), {})


def ready(cluster: Cluster, name: str) -> bool:
    return condition(cluster, name, "Ready").get("status") == "True"


def is_gone(cluster: Cluster, name: str) -> bool:
    return not cluster.kubectl("get", "pod", name, "--ignore-not-found")


def waiting(cluster: Cluster, name: str) -> dict[str, str]:
    found: dict[str, str] = first(cluster, name)["state"].get("waiting") or {}
    return found


def marked(uid: str) -> dict[psutil.Process, str]:
    """Processes of a pod, found by the mark in their environment, and that mark."""
    found = {}
    for process in psutil.process_iter():
        try:
            mark = process.environ().get("PACELINE_CONTAINER", "")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if f"/pods/{uid}/" in mark:
            found[process] = mark
    return found


def processes_of(uid: str) -> list[psutil.Process]:
    return list(marked(uid))


def events(cluster: Cluster, name: str) -> dict[str, int]:
    """Reason → how often, summed over the pod's events."""
    found: dict[str, int] = {}
    for event in cluster.get("events", f"--field-selector=involvedObject.name={name}")["items"]:
        found[event["reason"]] = found.get(event["reason"], 0) + (event.get("count") or 1)
    return found


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:
        return str(response.read().decode())


def fetched(url: str) -> str | None:
    try:
        return fetch(url)
    except OSError:
        return None


# -- running ---------------------------------------------------------------------------------------------------------


def test_a_pod_with_everything_runs(cluster: Cluster) -> None:
    apply(cluster, "ConfigMap", "everything", data={"word": "hello", "page": "one\n"})
    apply(cluster, "Secret", "everything", stringData={"password": "s3cret"})
    mounts = [
        {"name": "work", "mountPath": "/paceline-work"},
        {"name": "config", "mountPath": "/etc/paceline-config", "readOnly": True},
        {"name": "config", "mountPath": "/etc/paceline-page", "subPath": "page"},
        {"name": "info", "mountPath": "/paceline-info"},
    ]
    main = container(
        "cat /paceline-work/made; echo $WORD $PASSWORD $NODE $LIMIT; cat /etc/paceline-config/word /etc/paceline-page;"
        'cat /paceline-info/labels; echo; echo "gpus:$CUDA_VISIBLE_DEVICES:$HOSTNAME";'
        "echo up; exec sleep 300",
        args=[],
        env=[
            {"name": "WORD", "valueFrom": {"configMapKeyRef": {"name": "everything", "key": "word"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        ],
        envFrom=[{"secretRef": {"name": "everything"}, "prefix": ""}],
        resources={"limits": {"memory": "512Mi", "nvidia.com/gpu": "1"}},
        volumeMounts=mounts,
        readinessProbe={"exec": {"command": ["test", "-e", "/paceline-work/ready"]}, "periodSeconds": 1},
    )
    main["env"].append({"name": "PASSWORD", "value": "$(password)"})
    init = {**container("echo from init > /paceline-work/made", volumeMounts=mounts), "name": "init"}
    labels_file = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    volumes = [
        {"name": "work", "emptyDir": {}},
        {"name": "config", "configMap": {"name": "everything"}},
        {"name": "info", "downwardAPI": {"items": [labels_file]}},
    ]
    create(cluster, "everything", main, initContainers=[init], volumes=volumes, labels={"app": "everything"})
    until(lambda: "up" in cluster.kubectl("logs", "everything") if first(cluster, "everything").get("started") else 0)
    log = cluster.kubectl("logs", "everything", "-c", "c").splitlines()
    assert log[0] == "from init"
    assert log[1] == "hello s3cret node-0 512"
    assert log[2] == "helloone"
    assert log[3] == 'app="everything"'
    assert log[4].endswith(":everything")
    assert not ready(cluster, "everything")
    assert condition(cluster, "everything", "Ready")["reason"] == "ContainersNotReady"

    cluster.kubectl("exec", "everything", "--", "touch", "/paceline-work/ready")
    until(lambda: ready(cluster, "everything"))
    found = pod(cluster, "everything")["status"]
    assert found["phase"] == "Running"
    assert found["podIP"].startswith("127.")
    assert found["initContainerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"
    assert not os.path.lexists("/paceline-work")

    apply(cluster, "ConfigMap", "everything", data={"word": "changed", "page": "two\n"})
    until(lambda: cluster.kubectl("exec", "everything", "--", "cat", "/etc/paceline-config/word") == "changed")
    seen = events(cluster, "everything")
    assert {"Pulled", "Created", "Started", "Unhealthy"} <= seen.keys()


def test_logs_and_exec_work_through_the_api_server(cluster: Cluster) -> None:
    create(cluster, "talks", container("i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done"))
    until(lambda: first(cluster, "talks").get("started"))
    following = subprocess.Popen(
        [cluster.tools / "kubectl", "logs", "-f", "talks", "--tail=1", "--timestamps"],
        env=cluster.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    numbers = [int(following.stdout.readline().split()[-1]) for _ in range(10)]
    assert numbers == list(range(numbers[0], numbers[0] + 10))
    done = cluster.run(
        "kubectl", "exec", "-i", "talks", "--", "sh", "-c", "cat; echo err >&2; exit 7", stdin="in", check=False
    )
    assert (done.stdout, done.returncode) == ("in", 7)
    assert done.stderr.startswith("err\n")
    cluster.kubectl("delete", "pod", "talks", "--wait=false")
    assert following.wait(timeout=30) == 0


def test_a_service_account_token_opens_the_api(cluster: Cluster) -> None:
    code = """
import json, os, ssl, urllib.request
place = "/var/run/secrets/kubernetes.io/serviceaccount"
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
request = urllib.request.Request(f"{url}/apis/authentication.k8s.io/v1/selfsubjectreviews", json.dumps(body).encode(),
    {"Authorization": "Bearer " + open(place + "/token").read(), "Content-Type": "application/json"})
answer = urllib.request.urlopen(request, context=ssl.create_default_context(cafile=place + "/ca.crt"))
print(json.load(answer)["status"]["userInfo"]["username"], open(place + "/namespace").read())
"""
    create(cluster, "asks", container([sys.executable, "-c", code]), restartPolicy="Never")
    until(lambda: pod(cluster, "asks")["status"]["phase"] in ("Succeeded", "Failed"))
    assert cluster.kubectl("logs", "asks").split() == ["system:serviceaccount:default:default", "default"]


def test_a_pod_may_mount_over_the_checkout_and_use_a_claim(cluster: Cluster, tmp_path: Path) -> None:
    covered = str(Path(sys.prefix).parents[1])
    (tmp_path / "model").write_text("weights")
    storage = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    apply(cluster, "PersistentVolume", "models", spec={**storage, "hostPath": {"path": str(tmp_path)}})
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "models"}
    claim["resources"] = {"requests": {"storage": "1Gi"}}
    apply(cluster, "PersistentVolumeClaim", "models", spec=claim)
    code = (
        "import os, sys, paceline_kube\n"
        f"print(len(os.listdir({covered!r})), open('/models/model').read(), sys.prefix, os.getcwd())"
    )
    mounts = [{"name": "over", "mountPath": covered}, {"name": "models", "mountPath": "/models", "readOnly": True}]
    volumes = [
        {"name": "over", "emptyDir": {}},
        {"name": "models", "persistentVolumeClaim": {"claimName": "models"}},
    ]
    main = container([sys.executable, "-c", code], volumeMounts=mounts)
    create(cluster, "covers", main, volumes=volumes, restartPolicy="Never")
    until(lambda: pod(cluster, "covers")["status"]["phase"] in ("Succeeded", "Failed"))
    assert cluster.kubectl("logs", "covers").split() == ["1", "weights", sys.prefix, "/paceline/home"]


def test_sidecars_start_first_restart_and_end_with_a_job(cluster: Cluster) -> None:
    helper = {
        **container("echo up > /paceline-work/helper; exec sleep 300"),
        "name": "helper",
        "restartPolicy": "Always",
    }
    helper["startupProbe"] = {"exec": {"command": ["test", "-e", "/paceline-work/helper"]}, "periodSeconds": 1}
    mount = [{"name": "work", "mountPath": "/paceline-work"}]
    main = container("cat /paceline-work/helper", volumeMounts=mount)
    template = {
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "restartPolicy": "Never",
            "initContainers": [{**helper, "volumeMounts": mount}],
            "containers": [main],
            "volumes": [{"name": "work", "emptyDir": {}}],
        }
    }
    apply(cluster, "Job", "once", api="batch/v1", spec={"template": template})
    until(lambda: cluster.get("job", "once")["status"].get("succeeded") == 1)
    assert cluster.kubectl("logs", "job/once", "-c", "c") == "up\n"
    assert events(cluster, cluster.get("pods", "-l", "job-name=once")["items"][0]["metadata"]["name"])["Killing"] == 1


# -- ending and failing ----------------------------------------------------------------------------------------------


def test_what_cannot_run_says_why_and_stops_nobody_else(cluster: Cluster) -> None:
    no_config = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "no", "key": "k"}}}]
    pods = [
        manifest("no-image", {"name": "c", "image": "nginx:1"}),
        manifest("no-config", container("true", env=no_config)),
        manifest("no-volume", container("true"), volumes=[{"name": "v", "configMap": {"name": "later"}}]),
        manifest("no-host", container("true"), hostNetwork=True),
        manifest("no-program", container(["/no/such/program"])),
        manifest("crashes", container("echo last words; exit 3", terminationMessagePolicy="FallbackToLogsOnError")),
        manifest("works", container("exec sleep 300")),
    ]
    cluster.apply(yaml.safe_dump_all(pods))
    until(lambda: ready(cluster, "works"))
    until(lambda: waiting(cluster, "no-image").get("reason") == "ErrImagePull")
    until(lambda: waiting(cluster, "no-image").get("reason") == "ImagePullBackOff")
    assert "local mode can run" in waiting(cluster, "no-image")["message"]
    until(lambda: waiting(cluster, "no-config").get("reason") == "CreateContainerConfigError")
    assert waiting(cluster, "no-config")["message"] == 'configmap "no" not found'
    until(lambda: "later" in waiting(cluster, "no-volume").get("message", ""))
    assert waiting(cluster, "no-volume")["reason"] == "ContainerCreating"
    until(lambda: "hostNetwork" in waiting(cluster, "no-host").get("message", ""))
    until(lambda: first(cluster, "no-program")["lastState"])
    assert first(cluster, "no-program")["lastState"]["terminated"]["reason"] == "StartError"
    until(lambda: waiting(cluster, "crashes").get("reason") == "CrashLoopBackOff")
    crashed = until(lambda: first(cluster, "crashes")["lastState"].get("terminated"))
    assert (crashed["exitCode"], crashed["reason"], crashed["message"]) == (3, "Error", "last words")
    assert until(lambda: first(cluster, "crashes")["restartCount"]) >= 1
    until(lambda: waiting(cluster, "crashes").get("reason") == "CrashLoopBackOff")
    assert cluster.kubectl("logs", "crashes", "--previous") == "last words\n"
    assert cluster.kubectl("logs", "crashes") == "last words\n"
    apply(cluster, "ConfigMap", "later", data={"k": "v"})
    apply(cluster, "ConfigMap", "no", data={"k": "v"})
    until(lambda: first(cluster, "no-volume")["restartCount"] >= 1)
    until(lambda: first(cluster, "no-config")["restartCount"] >= 1)


def test_pre_stop_then_sigterm_then_sigkill_and_nothing_is_left(cluster: Cluster) -> None:
    lead = {"preStop": {"exec": {"command": ["sh", "-c", "echo pre > $HOME/order"]}}}
    script = "trap 'cat $HOME/order; echo term' TERM; (setsid sleep 300 &); echo up; while :; do sleep 0.1; done"
    create(cluster, "stubborn", container(script, lifecycle=lead))
    until(lambda: first(cluster, "stubborn").get("started"))
    uid = pod(cluster, "stubborn")["metadata"]["uid"]
    assert processes_of(uid)
    following = subprocess.Popen(
        [cluster.tools / "kubectl", "logs", "-f", "stubborn"],
        env=cluster.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    assert following.stdout.readline() == "up\n"
    cluster.kubectl("delete", "pod", "stubborn")
    assert following.communicate(timeout=30)[0] == "pre\nterm\n"
    assert processes_of(uid) == []
    until(lambda: not list((cluster.directory / "nodes").glob(f"*/pods/{uid}")))


def test_a_forced_deletion_leaves_nothing_either(cluster: Cluster) -> None:
    create(cluster, "forced", container("trap '' TERM; while :; do sleep 0.1; done"))
    until(lambda: first(cluster, "forced").get("started"))
    uid = pod(cluster, "forced")["metadata"]["uid"]
    cluster.kubectl("delete", "pod", "forced", "--grace-period=0", "--force")
    until(lambda: not processes_of(uid))
    until(lambda: not list((cluster.directory / "nodes").glob(f"*/pods/{uid}")))


def test_too_much_memory_is_out_of_memory(cluster: Cluster) -> None:
    held = "import time; x = bytearray(300 << 20); time.sleep(300)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {held!r}])"
    greedy = container([sys.executable, "-c", code], resources={"limits": {"memory": "64Mi"}})
    create(cluster, "greedy", greedy, restartPolicy="Never")
    until(lambda: pod(cluster, "greedy")["status"]["phase"] == "Failed")
    ended = first(cluster, "greedy")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")
    assert processes_of(pod(cluster, "greedy")["metadata"]["uid"]) == []


def test_a_failed_liveness_probe_restarts_the_container(cluster: Cluster) -> None:
    probe = {"exec": {"command": ["sh", "-c", "test ! -e $HOME/sick"]}, "periodSeconds": 1, "failureThreshold": 2}
    create(cluster, "sick", container("rm -f $HOME/sick; echo healthy; exec sleep 300", livenessProbe=probe))
    until(lambda: first(cluster, "sick").get("started"))
    cluster.kubectl("exec", "sick", "--", "sh", "-c", "touch $HOME/sick")
    until(lambda: first(cluster, "sick")["restartCount"] == 1 and ready(cluster, "sick"))
    assert first(cluster, "sick")["lastState"]["terminated"]["exitCode"] == 143
    assert cluster.kubectl("logs", "sick", "--previous") == "healthy\n"
    seen = until(
        lambda: events(cluster, "sick") if {"Unhealthy", "Killing"} <= events(cluster, "sick").keys() else None
    )
    assert seen["Killing"] == 1


# -- the node and the proxy come and go ------------------------------------------------------------------------------


def node_pid(cluster: Cluster) -> int:
    return int(Path(cluster.directory / "nodes" / "node-0" / "node.lock").read_text())


def restart_parts(cluster: Cluster) -> None:
    lifecycle.start_instance(cluster.directory, lambda before: before)


def test_a_killed_node_finds_its_pods_again(cluster: Cluster) -> None:
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    create(cluster, "survivor", container("exec sleep 300", readinessProbe=probe))
    create(
        cluster,
        "ends-meanwhile",
        container("while test ! -e $HOME/end; do sleep 0.1; done; exit 5"),
        restartPolicy="Never",
    )
    create(cluster, "deleted-meanwhile", container("exec sleep 300"))
    for name in ("survivor", "ends-meanwhile", "deleted-meanwhile"):
        until(lambda name=name: ready(cluster, name))
    before, since = first(cluster, "survivor"), condition(cluster, "survivor", "Ready")
    uid = pod(cluster, "deleted-meanwhile")["metadata"]["uid"]
    home = next(
        (cluster.directory / "nodes").glob(f"*/pods/{pod(cluster, 'ends-meanwhile')['metadata']['uid']}/home/c")
    )
    os.kill(node_pid(cluster), signal.SIGKILL)
    (home / "end").touch()
    cluster.kubectl("delete", "pod", "deleted-meanwhile", "--grace-period=0", "--force")
    assert processes_of(uid)
    restart_parts(cluster)
    until(lambda: pod(cluster, "ends-meanwhile")["status"]["phase"] == "Failed")
    assert first(cluster, "ends-meanwhile")["state"]["terminated"]["exitCode"] == 5
    until(lambda: not processes_of(uid))
    assert first(cluster, "survivor") == before
    assert condition(cluster, "survivor", "Ready") == since
    assert cluster.kubectl("exec", "survivor", "--", "echo", "hello") == "hello\n"
    cluster.kubectl("delete", "pod", "survivor")


def test_a_crashed_container_restarts_while_the_api_server_is_away(cluster: Cluster) -> None:
    apply(cluster, "ConfigMap", "needed", data={"k": "v"})
    env = [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "needed", "key": "k"}}}]
    volumes = [{"name": "v", "configMap": {"name": "needed"}}]
    main = container("echo k=$K; exec sleep 300", env=env, volumeMounts=[{"name": "v", "mountPath": "/paceline-v"}])
    create(cluster, "alone", main, volumes=volumes)
    until(lambda: ready(cluster, "alone"))
    uid = pod(cluster, "alone")["metadata"]["uid"]
    restarts = first(cluster, "alone")["restartCount"]
    server = Instance(cluster.directory).read_parts()["kube-apiserver"].process.pid
    os.kill(server, signal.SIGKILL)
    try:
        before = next(p for p in processes_of(uid) if p.name() == "sleep")
        before.kill()
        until(lambda: [p for p in processes_of(uid) if p.name() == "sleep" and p.pid != before.pid])
    finally:
        restart_parts(cluster)  # the tests after this one need it too
    until(lambda: first(cluster, "alone")["restartCount"] == restarts + 1 and ready(cluster, "alone"))
    assert first(cluster, "alone")["lastState"]["terminated"]["exitCode"] == 137
    assert cluster.kubectl("logs", "alone") == "k=v\n"


def test_a_node_that_was_taken_for_lost_says_that_it_and_its_pods_are_ready(cluster: Cluster) -> None:
    create(cluster, "lost", container("exec sleep 300"))
    until(lambda: ready(cluster, "lost"))
    condition_of_pod = {"type": "Ready", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    mark(cluster, "pod", "lost", condition_of_pod)
    until(lambda: ready(cluster, "lost"))
    assert condition(cluster, "lost", "Ready")["lastTransitionTime"] > "2021"
    mark(cluster, "node", "node-0", {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"})
    until(lambda: {"Ready": "True"} in [{c["type"]: c["status"]} for c in node_conditions(cluster)], 30)
    cluster.kubectl("delete", "pod", "lost", "--grace-period=0", "--force")


def mark(cluster: Cluster, kind: str, name: str, condition: dict[str, Any]) -> None:
    patch = json.dumps({"status": {"conditions": [condition]}})
    cluster.kubectl("patch", kind, name, "--subresource=status", "--type=strategic", "-p", patch)


def node_conditions(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.get("node", "node-0")["status"]["conditions"]
    return found


def test_pods_that_come_and_go_while_the_node_is_killed_are_never_doubled_nor_left(cluster: Cluster) -> None:
    pair = [container("(setsid sleep 300 &); exec sleep 300"), container("trap '' TERM; while :; do sleep 0.3; done")]
    pair[1]["name"] = "stubborn"
    template = {
        "metadata": {"labels": {"app": "churn"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": pair},
    }
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "churn"}}, "template": template}
    apply(cluster, "Deployment", "churn", api="apps/v1", spec=spec)
    for replicas in (5, 2):
        until(lambda: psutil.pid_exists(node_pid(cluster)))
        cluster.kubectl("scale", "deployment", "churn", f"--replicas={replicas}")
        os.kill(node_pid(cluster), signal.SIGKILL)
        restart_parts(cluster)
    cluster.kubectl("rollout", "status", "deployment", "churn", "--timeout=60s")
    pods = until(lambda: _settled(cluster, "app=churn", 2))
    for each in pods:
        marks = marked(each["metadata"]["uid"]).values()
        assert {mark.rpartition("/containers/")[2] for mark in marks} == {"c/0", "stubborn/0"}
    cluster.kubectl("delete", "deployment", "churn")
    until(lambda: not cluster.get("pods", "-l", "app=churn")["items"])
    place = str(cluster.directory / "nodes")
    kept = {p["metadata"]["uid"] for p in cluster.get("pods")["items"]}
    until(lambda: {path.name for path in Path(place).glob("node-0/pods/*")} <= kept)
    assert all(not processes_of(each["metadata"]["uid"]) for each in pods)


def _settled(cluster: Cluster, selector: str, count: int) -> list[dict[str, Any]]:
    """The pods, once there are exactly so many and none is being deleted; else nothing."""
    items: list[dict[str, Any]] = cluster.get("pods", "-l", selector)["items"]
    leaving = any(item["metadata"].get("deletionTimestamp") for item in items)
    return items if len(items) == count and not leaving else []


def web(word: str) -> dict[str, Any]:
    code = (
        "import http.server, os\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(os.environ['WORD'].encode())\n"
        "    def log_message(self, *a): pass\n"
        "http.server.ThreadingHTTPServer((os.environ['PACELINE_BIND_HOST'], 8000), H).serve_forever()\n"
    )
    return container(
        [sys.executable, "-c", code],
        env=[{"name": "WORD", "value": word}],
        ports=[{"name": "http", "containerPort": 8000}],
        readinessProbe={"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1},
    )


def test_a_service_has_a_stable_address_that_follows_ready_pods(cluster: Cluster) -> None:
    ports = [{"name": "http", "port": 8080, "targetPort": "http"}]
    apply(cluster, "Service", "web", spec={"selector": {"app": "web"}, "ports": ports})
    url = until(lambda: cluster.service_url("default/web", "http"))
    assert fetched(url) is None
    create(cluster, "web-a", web("a"), labels={"app": "web"})
    assert until(lambda: fetched(url)) == "a"
    create(cluster, "web-b", web("b"), labels={"app": "web"})
    until(lambda: {fetched(url) for _ in range(8)} == {"a", "b"})
    cluster.kubectl("delete", "pod", "web-a")
    assert {fetched(url) for _ in range(8)} == {"b"}
    annotations = until(lambda: cluster.get("service", "web")["metadata"].get("annotations"))
    assert annotations["local.paceline.io/url"] == url

    proxy = next(p for p in psutil.process_iter() if _is_proxy_of(p, cluster))
    proxy.kill()
    proxy.wait(10)
    restart_parts(cluster)
    assert until(lambda: fetched(url)) == "b"
    assert cluster.service_url("default/web", "http") == url
    cluster.kubectl("delete", "service", "web")
    until(lambda: cluster.service_url("default/web") is None)
    assert fetched(url) is None


def _is_proxy_of(process: psutil.Process, cluster: Cluster) -> bool:
    try:
        line = process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return "paceline_local.serviceproxy" in line and any(str(cluster.directory) in part for part in line)


def test_only_the_api_server_may_use_the_kubelet_api(cluster: Cluster) -> None:
    node = cluster.get("node", "node-0")["status"]
    port = node["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    base = f"https://{node['addresses'][0]['address']}:{port}"
    url = f"{base}/containerLogs/default/x/c"
    pki = cluster.directory / "pki"
    authority = ["--cacert", str(cluster.certificate_authority)]

    def status(*options: str) -> str:
        command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", *authority, *options, url]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    assert status() == "000"
    assert status("--cert", str(pki / "admin.crt"), "--key", str(pki / "admin.key")) == "403"
    client = pki / "kube-apiserver-kubelet-client"
    assert status("--cert", f"{client}.crt", "--key", f"{client}.key") == "404"


def test_a_node_tells_of_itself(cluster: Cluster) -> None:
    node = cluster.get("node", "node-0")
    assert node["status"]["capacity"]["nvidia.com/gpu"] == "2"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "node-0"
    conditions = {c["type"]: c["status"] for c in node["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    with pytest.raises(CommandError, match="not found"):
        cluster.kubectl("logs", "nobody")
    assert json.loads(
        cluster.kubectl("get", "--raw", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-0")
    )
