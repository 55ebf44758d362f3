"""From a pod's spec to what is executed: images, command lines, mounts, refusals."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paceline_local.node.errors import ConfigError, ImageError
from paceline_local.node.gpus import GpuPool, gpus_asked, real_gpus
from paceline_local.node.images import Image, resolve_image
from paceline_local.node.plan import (
    MountPlan,
    command_line,
    container_plan,
    containers_of,
    memory_limit,
    mounts_of,
    refusals,
    rewrite_paths,
    uncovered,
)

SHELL = Image("paceline.io/shell:1", None)


@pytest.mark.parametrize(
    ("reference", "module"),
    [
        ("paceline.io/operator:0.1.0", "paceline_operator"),
        ("paceline.io/router", "paceline_router"),
        ("paceline.io/recorder:0.1.0", "paceline_shadow_traffic"),
        ("paceline.io/runtime:dev@sha256:abc", "paceline_runtime"),
    ],
)
def test_our_images_are_this_environment(reference: str, module: str) -> None:
    assert resolve_image(reference).entrypoint == (sys.executable, "-m", module)


def test_prometheus_is_the_built_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "prometheus"
    binary.touch(mode=0o755)
    monkeypatch.setenv("PACELINE_PROMETHEUS", str(binary))
    assert resolve_image("prometheus:v3").entrypoint == (str(binary),)
    binary.unlink()
    with pytest.raises(ImageError, match="not built"):
        resolve_image("docker.io/prom/prometheus:v3")


@pytest.mark.parametrize("reference", ["nginx", "registry.example:5000/a/b:1", "paceline.io/other:1", "a b"])
def test_other_images_are_refused_with_what_there_is(reference: str) -> None:
    with pytest.raises(ImageError, match=r"paceline\.io/runtime"):
        resolve_image(reference)


def test_command_replaces_the_entrypoint_and_args_follow() -> None:
    image = Image("i", ("run", "it"))
    assert command_line(image, {"args": ["$(A)"]}, {"A": "1"}) == ("run", "it", "1")
    assert command_line(image, {"command": ["sh", "$(A)"], "args": ["x"]}, {"A": "1"}) == ("sh", "1", "x")
    with pytest.raises(ConfigError, match="give the container a command"):
        command_line(SHELL, {}, {})


def test_roles_and_policies_of_containers() -> None:
    pod = {
        "spec": {
            "restartPolicy": "Never",
            "initContainers": [{"name": "a"}, {"name": "b", "restartPolicy": "Always"}],
            "containers": [{"name": "c"}],
        }
    }
    assert [(c.name, c.role, c.policy) for c in containers_of(pod)] == [
        ("a", "init", "Never"),
        ("b", "sidecar", "Always"),
        ("c", "main", "Never"),
    ]
    pod["spec"].pop("restartPolicy")
    assert [c.policy for c in containers_of(pod)] == ["OnFailure", "Always", "Always"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"hostPID": True}, "hostPID"),
        ({"volumes": [{"name": "v", "nfs": {}}]}, "volume v: nfs"),
        ({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}, "volume v: csi"),
        ({"containers": [{"name": "c", "securityContext": {"privileged": True}}]}, "container c: privileged"),
        ({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 1}]}]}, "hostPort 1"),
        (
            {"containers": [{"name": "c", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
            "added capabilities",
        ),
    ],
)
def test_what_cannot_be_given_is_refused_by_name(spec: dict, words: str) -> None:
    (refusal,) = refusals({"spec": {"containers": [], **spec}})
    assert words in refusal


def test_hardening_is_no_reason_to_refuse() -> None:
    security = {
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    volumes = [{"name": "a"}, {"name": "b", "emptyDir": {}}, {"name": "c", "projected": {}}]
    assert refusals({"spec": {"containers": [{"name": "c", "securityContext": security}], "volumes": volumes}}) == []


def test_mounts_with_sub_paths() -> None:
    container = {
        "volumeMounts": [
            {"name": "v", "mountPath": "/etc/x/"},
            {"name": "v", "mountPath": "/f", "subPath": "a/b", "readOnly": True},
            {"name": "v", "mountPath": "/g", "subPathExpr": "$(NAME)"},
        ]
    }
    mounts = mounts_of(container, {"v": Path("/vol")}, {"NAME": "n"})
    assert mounts == (
        MountPlan(Path("/vol"), "/etc/x", False),
        MountPlan(Path("/vol/a/b"), "/f", True),
        MountPlan(Path("/vol/n"), "/g", False),
    )


@pytest.mark.parametrize("sub", ["../x", "/abs", "a/../../b"])
def test_a_sub_path_stays_in_its_volume(sub: str) -> None:
    with pytest.raises(ConfigError, match="relative"):
        mounts_of({"volumeMounts": [{"name": "v", "mountPath": "/m", "subPath": sub}]}, {"v": Path("/vol")}, {})


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("/etc/cfg", "/vol"),
        ("--config=/etc/cfg/config.yaml", "--config=/vol/config.yaml"),
        ("/etc/cfgs/x", "/etc/cfgs/x"),
        ("/other/etc/cfg", "/other/etc/cfg"),
        ("cat /etc/cfg/a /etc/cfg/sub/b", "cat /vol/a /vol-sub/b"),
        ("a:/etc/cfg:b", "a:/vol:b"),
    ],
)
def test_without_mount_namespaces_whole_path_prefixes_are_rewritten(text: str, rewritten: str) -> None:
    mounts = (MountPlan(Path("/vol"), "/etc/cfg", False), MountPlan(Path("/vol-sub"), "/etc/cfg/sub", False))
    assert rewrite_paths(text, mounts) == rewritten


def test_a_plan_without_namespaces_has_host_paths_wherever_the_pod_speaks() -> None:
    container = {
        "args": ["cat", "/m/f"],
        "workingDir": "/m",
        "volumeMounts": [{"name": "v", "mountPath": "/m"}],
        "resources": {"limits": {"memory": "1Gi"}},
    }
    base = {"HOME": "/home", "PATH": "/m/bin"}
    image = Image("i", ("/m/program",))
    arguments = (container, image, {**base, "F": "/m/f"}, {"v": Path("/vol")})
    plan = container_plan(*arguments, "none", base)
    assert plan.argv == ("/m/program", "cat", "/vol/f")
    assert plan.env == {**base, "F": "/vol/f"}
    assert (plan.cwd, plan.memory_limit) == ("/vol", 1 << 30)
    plan = container_plan(*arguments, "user", base)
    assert (plan.argv, plan.env["F"], plan.cwd) == (("/m/program", "cat", "/m/f"), "/m/f", "/m")
    container.pop("workingDir")
    assert container_plan(*arguments, "none", base).cwd == "/home"


def test_what_the_program_needs_is_shown_again_where_a_mount_covers_it() -> None:
    mounts = (MountPlan(Path("/v"), "/opt", False), MountPlan(Path("/v"), "/srv/x", False))
    needed = [Path("/opt/venv/bin/python"), Path("/opt/venv"), Path("/srv/y"), Path("/usr")]
    assert uncovered(mounts, needed) == (MountPlan(Path("/opt/venv"), "/opt/venv", False),)
    assert uncovered((), needed) == ()


def test_a_limit_that_cannot_be_read_is_said_in_words() -> None:
    assert memory_limit({"resources": {"limits": {"memory": "1Gi"}}}) == 1 << 30
    assert memory_limit({}) is None
    with pytest.raises(ConfigError, match="memory limit: '5n' is not a Kubernetes quantity"):
        memory_limit({"resources": {"limits": {"memory": "5n"}}})


def test_gpus_are_spread_and_given_back(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "null"):
        (tmp_path / name).touch()
    pool = GpuPool(real_gpus(tmp_path))
    assert pool.visible("a", 1) == "0"
    assert pool.visible("b", 1) == "1"
    pool.release("a")
    assert pool.visible("c", 1) == "0"
    assert pool.visible("d", 8) == "0,1"
    assert pool.visible("e", 0) == ""
    assert GpuPool([]).visible("a", 1) == ""
    found_again = GpuPool([0, 1])
    found_again.hold("a", "0")
    assert found_again.visible("b", 1) == "1"
    assert gpus_asked({"resources": {"limits": {"nvidia.com/gpu": "2"}}}) == 2
