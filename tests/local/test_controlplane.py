"""The local control plane as its users meet it. Real processes, a few seconds each."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from paceline_local import lifecycle, probing, processes, state
from paceline_local.cluster import Cluster, CommandError
from paceline_local.errors import UsageError
from paceline_local.install import clear_interrupted
from paceline_local.kubeconfig import write_kubeconfig
from paceline_local.lifecycle import PartError, Status
from paceline_local.pki import Authority, Subject
from paceline_local.state import Instance, Shape
from paceline_local.testing import clear_abandoned, temporary_cluster

pytestmark = pytest.mark.cluster

BARE = Shape(nodes=0, bare=True, prometheus=False)


def bring_up(directory: Path) -> Cluster:
    return lifecycle.start_instance(directory, lambda before: before or BARE)


def status_of(cluster: Cluster) -> Status:
    found = lifecycle.status(cluster.directory)
    assert found is not None
    return found


def pids(cluster: Cluster) -> dict[str, int | None]:
    return {part.name: part.pid for part in status_of(cluster).parts}


def kill_part(cluster: Cluster, name: str) -> None:
    part = Instance(cluster.directory).read_parts()[name]
    os.kill(part.process.pid, signal.SIGKILL)
    while processes.is_running(part.process):
        pass


# -- what is in it ---------------------------------------------------------------------------------------------------


def test_all_four_parts_run_and_answer(control_plane: Cluster) -> None:
    found = status_of(control_plane)
    assert found.works
    assert [part.name for part in found.parts] == [
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
    ]


def test_kubectl_talks_to_a_server_of_the_same_version(control_plane: Cluster) -> None:
    versions = yaml.safe_load(control_plane.kubectl("version", "-o", "yaml"))
    assert versions["serverVersion"]["gitVersion"] == versions["clientVersion"]["gitVersion"] == "v1.37.2"


def test_controllers_make_a_pod_from_a_deployment(control_plane: Cluster) -> None:
    control_plane.kubectl("create", "namespace", "made")
    control_plane.kubectl("--namespace=made", "create", "deployment", "d", "--image=paceline.io/shell:local")
    control_plane.kubectl("--namespace=made", "wait", "--for=create", "pod", "-l=app=d", "--timeout=20s")


def test_helm_installs_and_removes_a_chart(control_plane: Cluster, tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: small\nversion: 1.2.3\n")
    (chart / "templates" / "map.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-chart}\ndata: {who: {{ .Values.who }}}\n"
    )
    (chart / "values.yaml").write_text("who: nobody\n")
    install = ("upgrade", "--install", "small", str(chart), "--set", "who=me", "--wait")
    control_plane.helm(*install, "--namespace=charts", "--create-namespace")
    assert control_plane.get("configmap", "from-chart", "--namespace=charts")["data"] == {"who": "me"}
    assert "small-1.2.3" in control_plane.helm("list", "--namespace=charts")
    control_plane.helm("uninstall", "small", "--namespace=charts", "--wait")
    with pytest.raises(CommandError, match="not found"):
        control_plane.get("configmap", "from-chart", "--namespace=charts")


# -- who may do what -------------------------------------------------------------------------------------------------


def as_user(cluster: Cluster, folder: Path, name: str, organization: str | None = None) -> Cluster:
    """The cluster in the hands of another user with a certificate of its CA."""
    instance = Instance(cluster.directory)
    authority = Authority(instance.pki, "ca", lifecycle.now())
    pair = authority.issue(Subject(f"test-{name.replace(':', '-')}", name, organization))
    write_kubeconfig(folder / "kubeconfig", cluster.server, instance.authority, pair, name)
    return replace(cluster, kubeconfig=folder / "kubeconfig")


def test_a_user_without_roles_is_refused(control_plane: Cluster, tmp_path: Path) -> None:
    nobody = as_user(control_plane, tmp_path, "nobody")
    with pytest.raises(CommandError, match='User "nobody" cannot list resource "pods"'):
        nobody.kubectl("get", "pods")
    assert "nobody" in nobody.kubectl("auth", "whoami")


def test_a_node_may_not_read_secrets_that_its_pods_do_not_use(control_plane: Cluster, tmp_path: Path) -> None:
    node = as_user(control_plane, tmp_path, "system:node:n", "system:nodes")
    control_plane.kubectl("create", "secret", "generic", "private", "--from-literal=a=b")
    with pytest.raises(CommandError, match="no relationship found between node"):
        node.kubectl("get", "secret", "private")


def test_a_client_without_certificate_is_refused(control_plane: Cluster) -> None:
    context = ssl.create_default_context(cafile=str(control_plane.certificate_authority))
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(control_plane.server + "/api", context=context)
    assert refused.value.code == 401
    refused.value.close()


def test_the_servers_certificate_is_checked(control_plane: Cluster, tmp_path: Path) -> None:
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    assert "insecure-skip-tls-verify" not in config["clusters"][0]["cluster"]
    del config["clusters"][0]["cluster"]["certificate-authority-data"]
    (tmp_path / "trusting-others").write_text(yaml.safe_dump(config))
    stranger = replace(control_plane, kubeconfig=tmp_path / "trusting-others")
    with pytest.raises(CommandError, match="certificate signed by unknown authority"):
        stranger.kubectl("get", "namespaces")


def test_secrets_of_the_instance_are_readable_by_its_owner_alone(control_plane: Cluster) -> None:
    folder = control_plane.directory
    assert folder.stat().st_mode & 0o077 == 0
    assert control_plane.kubeconfig.stat().st_mode & 0o077 == 0
    assert not [path for path in (folder / "pki").iterdir() if path.stat().st_mode & 0o077]


# -- up and down -----------------------------------------------------------------------------------------------------


def test_up_again_changes_nothing(control_plane: Cluster) -> None:
    before = pids(control_plane)
    said: list[str] = []
    again = lifecycle.start_instance(control_plane.directory, lambda before: before or BARE, said.append)
    assert again == control_plane
    assert pids(control_plane) == before
    assert said == []


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane that tests may break, if they repair it."""
    with temporary_cluster(directory=tmp_path_factory.mktemp("own") / "cluster") as cluster:
        yield cluster


def test_a_crashed_part_is_named_by_status_and_started_by_up(own: Cluster) -> None:
    own.kubectl("create", "configmap", "stored", "--from-literal=a=b")
    before = pids(own)
    kill_part(own, "kube-scheduler")
    kill_part(own, "etcd")
    found = status_of(own)
    assert not found.works
    states = {part.name: part for part in found.parts}
    assert states["kube-scheduler"].state == states["etcd"].state == "crashed"
    assert states["kube-scheduler"].last_lines
    assert states["kube-controller-manager"].state == "running"
    command = subprocess.run(
        [sys.executable, "-m", "paceline_local", "status", "--dir", str(own.directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert command.returncode == 1
    assert "kube-scheduler           crashed" in command.stdout
    bring_up(own.directory)
    assert status_of(own).works
    after = pids(own)
    assert after["kube-apiserver"] == before["kube-apiserver"]
    assert after["etcd"] != before["etcd"]
    assert own.get("configmap", "stored")["data"] == {"a": "b"}


def test_a_part_that_hangs_is_told_from_one_that_works(own: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "TIMEOUT_SECONDS", 2.0)
    hanging = Instance(own.directory).read_parts()["kube-scheduler"].process.pid
    os.kill(hanging, signal.SIGSTOP)
    try:
        found = {part.name: part for part in status_of(own).parts}
    finally:
        os.kill(hanging, signal.SIGCONT)
    assert found["kube-scheduler"].state == "not answering"
    assert "timed out" in found["kube-scheduler"].problem
    assert found["etcd"].state == "running"


def test_a_part_that_cannot_start_is_an_error_with_its_own_words_and_kept_state_is_there_after_the_next_up(
    own: Cluster,
) -> None:
    own.kubectl("create", "configmap", "kept", "--from-literal=a=b")
    lifecycle.down(own.directory, keep_state=True)
    assert processes.of_instance(own.directory) == []
    assert {part.state for part in status_of(own).parts} == {"stopped"}
    key = own.directory / "pki" / "service-account.pub"
    good = key.read_bytes()
    key.write_text("not a key")
    with pytest.raises(PartError, match=r"kube-apiserver ended right after its start(.|\n)*service-account.pub"):
        bring_up(own.directory)
    assert {part.name: part.state for part in status_of(own).parts}["kube-apiserver"] == "crashed"
    key.write_bytes(good)
    assert bring_up(own.directory) == own
    assert own.get("configmap", "kept")["data"] == {"a": "b"}


def test_a_process_whose_record_was_never_written_is_taken_over(own: Cluster) -> None:
    before = pids(own)
    for name in ("etcd", "kube-scheduler"):
        Instance(own.directory).forget_part(name)
    assert bring_up(own.directory) == own
    assert pids(own) == before


def test_a_release_whose_helm_was_killed_can_be_installed_again(own: Cluster, tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: slow\nversion: 1.0.0\n")
    pod = "{containers: [{name: c, image: paceline.io/shell:local}]}"
    # Without a node it never becomes ready, so helm waits.
    (chart / "templates" / "pod.yaml").write_text(
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: waits}}\nspec: {pod}\n"
    )
    install = ("upgrade", "--install", "slow", str(chart), "--namespace=default")
    environment = own.environment() | {processes.INSTANCE_VARIABLE: str(own.directory)}
    helm = subprocess.Popen([str(own.tools / "helm"), *install, "--wait"], env=environment, stdout=subprocess.DEVNULL)
    own.kubectl("wait", "--for=create", "pod/waits", "--timeout=30s")
    helm.kill()
    helm.wait()
    with pytest.raises(CommandError, match="another operation"):
        own.helm(*install)
    clear_interrupted(own, "slow", "default")
    own.helm(*install)
    assert '"status":"deployed"' in own.helm("status", "slow", "--namespace=default", "-o", "json")
    # A helm that still runs is ended.
    helm = subprocess.Popen([str(own.tools / "helm"), *install, "--wait"], env=environment, stdout=subprocess.DEVNULL)
    clear_interrupted(own, "slow", "default")
    assert helm.wait(10) != 0


def test_instances_made_at_once_live_side_by_side_and_each_goes_without_a_trace(
    control_plane: Cluster, tmp_path: Path
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    try:
        with ThreadPoolExecutor() as pool:
            made = list(pool.map(bring_up, folders))
        assert len({cluster.server for cluster in (*made, control_plane)}) == 3
        assert [len(processes.of_instance(folder)) for folder in folders] == [4, 4]
        made[0].kubectl("create", "namespace", "only-in-one")
        names = {item["metadata"]["name"] for item in made[1].get("namespaces")["items"]}
        assert "default" in names
        assert "only-in-one" not in names
        # One's certificates are worth nothing to the other.
        crossed = replace(made[0], kubeconfig=tmp_path / "crossed")
        config = made[0].kubeconfig.read_text().replace(made[0].server, made[1].server)
        crossed.kubeconfig.write_text(config)
        with pytest.raises(CommandError, match="certificate"):
            crossed.kubectl("get", "namespaces")
        assert lifecycle.down(folders[0]) is True
        assert processes.of_instance(folders[0]) == []
        assert not folders[0].exists()
        assert lifecycle.down(folders[0]) is False
        assert lifecycle.status(folders[0]) is None
        assert status_of(made[1]).works
        # The other's folder is deleted by hand while it runs: its processes are found all the same.
        shutil.rmtree(folders[1])
        assert lifecycle.down(folders[1]) is True
        assert processes.of_instance(folders[1]) == []
    finally:
        for folder in folders:
            lifecycle.down(folder)


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="neither empty nor a local cluster's"):
        bring_up(tmp_path)
    assert lifecycle.down(tmp_path) is False
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_what_a_killed_test_run_left_is_cleared_away(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys\n"
        "from paceline_local.testing import temporary_cluster\n"
        "with temporary_cluster(directory=pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    directory = tmp_path / "left"
    killed = subprocess.run([sys.executable, "-c", program, str(directory)], check=False)
    assert killed.returncode == -signal.SIGKILL
    try:
        assert len(processes.of_instance(directory)) == 4
        assert directory in state.abandoned()
        clear_abandoned()
        assert processes.of_instance(directory) == []
        assert not directory.exists()
    finally:
        lifecycle.down(directory)
