"""`paceline local` on the command line: what it prints, and its exit status."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from paceline_local import commands
from paceline_local.cluster import Cluster
from paceline_local.commands import app
from paceline_local.errors import LocalError, UnreachableError, UsageError
from paceline_local.progress import StreamProgress, Waiting
from paceline_local.state import Shape


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("command", ["up", "down", "status", "env", "build"])
def test_help_has_an_example(command: str) -> None:
    shown = invoke(command, "--help")
    assert shown.exit_code == 0
    assert f"paceline local {command}" in shown.stdout


def test_no_command_is_wrong_use() -> None:
    assert invoke().exit_code == 2


def test_an_unknown_option_is_wrong_use() -> None:
    assert invoke("up", "--knots", "3").exit_code == 2


def test_status_without_a_cluster_says_how_to_make_one(tmp_path: Path) -> None:
    shown = invoke("status", "--dir", tmp_path / "none")
    assert shown.exit_code == 1
    assert "`paceline local up` makes one" in shown.stdout
    as_json = invoke("status", "--dir", tmp_path / "none", "-o", "json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout) == {"directory": str(tmp_path / "none"), "exists": False}


def test_env_without_a_cluster_prints_nothing_to_evaluate(tmp_path: Path) -> None:
    shown = invoke("env", "--dir", tmp_path / "none")
    assert shown.exit_code == 1
    assert shown.stdout == ""
    assert "`paceline local up` makes one" in shown.stderr


def test_down_without_a_cluster_is_no_error(tmp_path: Path) -> None:
    shown = invoke("down", "--dir", tmp_path / "none", "-o", "json")
    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == {"directory": str(tmp_path / "none"), "existed": False}
    assert not (tmp_path / "none").exists()


def test_up_in_a_folder_with_other_things_is_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setattr("paceline_local.lifecycle.control_plane_tools", lambda progress: {})
    shown = invoke("up", "--bare", "--dir", tmp_path)
    assert shown.exit_code == 2
    assert "--dir" in shown.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--bare", "--nodes", "1000"), "0 to 240 nodes"),
        (("--bare", "--nodes", "-1"), "0 to 240 nodes"),
        (("--nodes", "0", "--no-prometheus"), "or `--bare`"),
        (("--bare", "--gpus-per-node", "-1"), "0 or more GPUs"),
        (("--bare", "--memory-per-node", "much"), "16Gi"),
        (("--bare", "--cpus-per-node", "1.2.3"), "Kubernetes quantity"),
    ],
)
def test_an_impossible_cluster_is_wrong_use(
    options: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline_local.lifecycle.control_plane_tools", lambda progress: {})
    shown = invoke("up", *options, "--dir", tmp_path / "c")
    assert shown.exit_code == 2
    assert words in shown.stderr
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("error", "status"), [(LocalError("no"), 1), (UsageError("wrong"), 2), (UnreachableError("silent"), 4)]
)
def test_errors_have_their_exit_status_and_no_traceback(
    error: LocalError, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(directory: Path | None) -> None:
        raise error

    monkeypatch.setattr(commands.lifecycle, "status", fail)
    shown = invoke("status", "--dir", tmp_path)
    assert shown.exit_code == status
    assert str(error) in shown.stderr
    assert "Traceback" not in shown.output


def test_up_keeps_what_is_not_asked_for_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shapes: list[Shape] = []
    had = Shape(nodes=3, gpus_per_node=8, bare=True)

    def bring_up(directory: Path, change: commands.Callable[[Shape], Shape], report: object) -> Cluster:
        shapes.append(change(had))
        return Cluster(directory, "https://127.64.0.1:6443", directory / "kubeconfig", directory, directory)

    monkeypatch.setattr(commands, "bring_up", bring_up)
    assert invoke("up", "--dir", tmp_path).exit_code == 0
    assert invoke("up", "--dir", tmp_path, "--nodes", "1", "--full", "--no-prometheus").exit_code == 0
    assert shapes == [had, Shape(nodes=1, gpus_per_node=8, bare=False, prometheus=False)]


def write_services(directory: Path, services: dict[str, object]) -> None:
    (directory / "serviceproxy").mkdir()
    (directory / "serviceproxy" / "services.json").write_text(json.dumps(services))


def test_up_ends_with_the_kubeconfig_line_and_the_routers_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    url = "http://127.64.250.1:8080"
    write_services(folder, {"paceline-system/paceline-router": {"url": url, "ports": {"http": url}}})
    cluster = Cluster(folder, "https://127.64.0.1:6443", folder / "kubeconfig", folder / "ca.crt", folder / "bin")
    monkeypatch.setattr(commands, "bring_up", lambda *_: cluster)
    lines = invoke("up", "--dir", folder).stdout.splitlines()
    assert shlex.split(lines[-2]) == ["export", f"KUBECONFIG={folder / 'kubeconfig'}"]
    assert lines[-1] == f"Paceline's router: {url}"
    found = json.loads(invoke("up", "--dir", folder, "-o", "json").stdout)
    assert (found["kubeconfig"], found["routerUrl"]) == (str(folder / "kubeconfig"), url)


def test_a_service_that_the_proxy_does_not_know_has_no_url(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "https://127.64.0.1:6443", tmp_path, tmp_path, tmp_path)
    assert cluster.router_url is None
    write_services(tmp_path, {"a/b": {"url": "http://127.64.250.1:1", "ports": {"http": "http://127.64.250.1:1"}}})
    assert cluster.router_url is None
    assert cluster.service_url("a/b") == cluster.service_url("a/b", "http") == "http://127.64.250.1:1"
    assert cluster.service_url("a/b", "metrics") is None


# -- on a real control plane -----------------------------------------------------------------------------------------


def shell(script: str) -> Sequence[str]:
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.cluster
def test_env_makes_kubectl_and_helm_of_a_shell_talk_to_the_cluster(control_plane: Cluster) -> None:
    lines = invoke("env", "--dir", control_plane.directory).stdout
    assert shell(f"{lines}\nkubectl config view -o jsonpath='{{.clusters[0].cluster.server}}'") == [
        control_plane.server
    ]
    assert shell(f"{lines}\nhelm version --template '{{{{.Version}}}}'")[0].startswith("v4")


@pytest.mark.cluster
@pytest.mark.usefixtures("control_plane")
def test_build_names_the_programs_that_are_there() -> None:
    programs = json.loads(invoke("build", "-o", "json").stdout)
    assert set(programs) == {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm"}
    assert all(Path(path).exists() for path in programs.values())


@pytest.mark.cluster
def test_status_of_a_working_cluster_has_its_addresses_and_parts(control_plane: Cluster) -> None:
    shown = invoke("status", "--dir", control_plane.directory, "-o", "json")
    found = json.loads(shown.stdout)
    assert shown.exit_code == 0
    assert found["works"] is True
    assert found["kubeconfig"] == str(control_plane.kubeconfig)
    assert found["routerUrl"] is None
    assert {part["state"] for part in found["parts"]} == {"running"}
    as_text = invoke("status", "--dir", control_plane.directory).stdout
    assert str(control_plane.kubeconfig) in as_text
    assert "router      not installed" in as_text


# -- progress --------------------------------------------------------------------------------------------------------


def test_progress_lines_carry_the_time_and_repeat_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 0.5, 12.25])
    say = StreamProgress(clock=lambda: next(times))
    say("one")
    say("one")
    say("two")
    assert capsys.readouterr().err == "[   0.5 s] one\n[  12.2 s] two\n"


def test_a_wait_is_told_from_the_second_second_on_and_ever_less_often() -> None:
    said: list[str] = []
    waiting = Waiting(said.append)
    for waited in (0.0, 1.9, 2.0, 2.1, 3.9, 4.0, 60.0, 79.0, 80.0):
        waiting(waited, "waiting")
    assert said == ["waiting (2 s)", "waiting (4 s)", "waiting (60 s)", "waiting (80 s)"]


def test_a_wait_for_something_else_is_told_at_once() -> None:
    said: list[str] = []
    waiting = Waiting(said.append)
    for waited, what in ((60.0, "pods"), (61.0, "pods"), (62.0, "model")):
        waiting(waited, what)
    assert said == ["pods (60 s)", "model (62 s)"]
