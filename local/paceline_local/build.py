"""Builds the control plane, Prometheus and Alertmanager from their pinned Go modules, once for each content."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paceline_local.errors import LocalError
from paceline_local.locking import locked
from paceline_local.paths import cache_root, sources_root
from paceline_local.progress import INTERVAL_SECONDS, Progress, silent
from paceline_local.toolchain import find_go

MAX_INTERVAL_SECONDS = 20.0

KUBERNETES_VERSION = "v1.37.2"


@dataclass(frozen=True)
class GoModule:
    """A Go module of ours and how it becomes programs."""

    name: str
    title: str
    packages: tuple[str, ...]
    flags: tuple[str, ...]
    program: str
    """Name of a file that the build makes."""
    links: tuple[str, ...] = ()
    """Names under which `program` is also found."""
    page: tuple[str, str] | None = None
    """A module and the folder in it that a program embeds as its web page, where the published module lacks it."""

    @property
    def folder(self) -> Path:
        return sources_root() / self.name


def _version_stamp(version: str) -> str:
    """Linker flags without which `kubectl version` cannot parse the version and the API server calls itself v0.0.0."""
    major, minor, _ = version.removeprefix("v").split(".")
    stamps = [
        f"-X {package}.{variable}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for variable, value in (
            ("gitVersion", version),
            ("gitMajor", major),
            ("gitMinor", minor),
            ("gitTreeState", "clean"),
        )
    ]
    return " ".join(["-s", "-w", *stamps])


CONTROL_PLANE = GoModule(
    name="controlplane",
    title="the control plane (Kubernetes and helm)",
    packages=(".",),
    flags=("-trimpath", "-mod=readonly", "-buildvcs=false", f"-ldflags={_version_stamp(KUBERNETES_VERSION)}"),
    program="controlplane",
    links=("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm"),
)
PROMETHEUS = GoModule(
    name="prometheus",
    title="Prometheus",
    packages=(
        "github.com/prometheus/prometheus/cmd/prometheus",
        "github.com/prometheus/prometheus/cmd/promtool",
    ),
    flags=(
        "-trimpath",
        "-mod=readonly",
        "-buildvcs=false",
        "-ldflags=-s -w",
        "-tags=remove_all_sd,enable_kubernetes_sd",
    ),
    program="prometheus",
)
ALERTMANAGER = GoModule(
    name="alertmanager",
    title="Alertmanager",
    packages=(
        "github.com/prometheus/alertmanager/cmd/alertmanager",
        "github.com/prometheus/alertmanager/cmd/amtool",
    ),
    flags=("-trimpath", "-mod=readonly", "-buildvcs=false", "-ldflags=-s -w"),
    program="alertmanager",
    page=("github.com/prometheus/alertmanager", "ui/app/dist"),
)


def content_hash(module: GoModule) -> str:
    """Sixteen hex digits over everything of ours that decides what the build makes."""
    digest = hashlib.sha256()
    files = sorted(path for path in module.folder.iterdir() if path.suffix in (".go", ".mod", ".sum"))
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    made = (module.packages, module.flags, module.program, module.links)
    digest.update(repr((*made, module.page) if module.page else made).encode())
    return digest.hexdigest()[:16]


def built_folder(module: GoModule) -> Path:
    """Where the module's programs are, or will be once built."""
    return cache_root() / "bin" / f"{module.name}-{content_hash(module)}"


def find_built(module: GoModule) -> Path | None:
    """Folder of the built programs, or None where they have to be built first."""
    folder = built_folder(module)
    return folder if (folder / module.program).exists() else None


def _environment() -> dict[str, str]:
    # GOFLAGS of the user would change what is built without changing the hash.
    return os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local"}


class _StepCounter(threading.Thread):
    """Reads a command's stderr, where go writes one line for each step done, and keeps count and the last lines."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self.count = 0
        self.tail: deque[str] = deque(maxlen=30)

    def run(self) -> None:
        for line in self._stream:
            self.count += 1
            self.tail.append(line)


def _run_go(command: list[str], folder: Path, progress: Progress, step: Callable[[int], str]) -> None:
    """Run a go command, telling ever less often how far it is; `step` words the number of steps done.

    Raises:
        LocalError: It failed; the message has its last lines.
    """
    with subprocess.Popen(
        command,
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        counter = _StepCounter(process.stderr)
        counter.start()
        pause = INTERVAL_SECONDS
        try:
            while True:
                try:
                    status = process.wait(pause)
                    break
                except subprocess.TimeoutExpired:
                    progress(step(counter.count))
                    pause = min(pause * 1.5, MAX_INTERVAL_SECONDS)
        except BaseException:
            # go clears its work folder away when it is interrupted, and not when it is terminated.
            process.send_signal(signal.SIGINT)
            progress("interrupted; what was compiled is kept for the next time")
            raise
        counter.join()
    if status != 0:
        raise LocalError(f"`{' '.join(command[:3])}` failed in {folder}:\n{''.join(counter.tail).strip()}")


def _go_list(go: Path, module: GoModule, *arguments: str) -> list[str]:
    listed = subprocess.run(
        [go, "list", *arguments],
        cwd=module.folder,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        raise LocalError(f"`go list` failed in {module.folder}:\n{listed.stderr.strip()}")
    return listed.stdout.splitlines()


def _with_page(go: Path, module: GoModule, scratch: Path) -> tuple[str, ...]:
    """Flags for a build with an empty web page: the page of a published module is made by tools that we have not."""
    if module.page is None:
        return ()
    path, page = module.page
    (published,) = _go_list(go, module, "-m", "-f", "{{.Dir}}", path)
    copy = scratch / "module"
    # Modules are kept read-only.
    shutil.copytree(published, copy, copy_function=shutil.copyfile)
    for folder in (copy, *(each for each in copy.rglob("*") if each.is_dir())):
        folder.chmod(0o755)
    (copy / page).mkdir(parents=True)
    (copy / page / "index.html").write_text("<p>This build has no page; the API is at /api/v2.</p>\n")
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(module.folder / name, scratch / name)
    with (scratch / "go.mod").open("a") as file:
        file.write(f"\nreplace {path} => {copy}\n")
    return (f"-modfile={scratch / 'go.mod'}",)


def _build(module: GoModule, target: Path, progress: Progress) -> None:
    go = find_go(module.folder / "go.mod", progress)
    progress(f"building {module.title} with {go}; minutes the first time, then kept in {cache_root()}")
    _run_go(
        [str(go), "mod", "download", "-x"],
        module.folder,
        progress,
        lambda steps: f"downloading the modules of {module.title}: {steps} steps done",
    )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{module.name}-") as scratch:
        flags = (*module.flags, *_with_page(go, module, Path(scratch)))
        total = len(_go_list(go, module, "-deps", *flags, *module.packages))
        made = Path(scratch) / "made"
        made.mkdir()
        # A folder as output, with its slash: go then names each program after its package.
        output = f"{made}/" if len(module.packages) > 1 else str(made / module.program)
        _run_go(
            [str(go), "build", "-v", *flags, "-o", output, *module.packages],
            module.folder,
            progress,
            lambda steps: f"building {module.title}: {steps} packages of at most {total} compiled",
        )
        for link in module.links:
            (made / link).symlink_to(module.program)
        made.replace(target)


def ensure_built(module: GoModule, progress: Progress = silent) -> Path:
    """Folder with the module's programs, built now if they are not there yet.

    Two processes that ask at once make one build: the second waits for the first.

    Raises:
        LocalError: The build failed or no Go can be had.
    """
    if not (module.folder / "go.mod").exists():
        raise LocalError(f"{module.folder} is missing: local mode runs from a checkout of Paceline")
    target = built_folder(module)
    if find_built(module) is None:
        with locked(target.parent / f"{module.name}.lock", f"which builds {module.title}", progress):
            if find_built(module) is None:
                _build(module, target, progress)
    return target


def prometheus_binary() -> Path | None:
    """The Prometheus that `ensure_built` made, or None where it has not been built."""
    folder = find_built(PROMETHEUS)
    return None if folder is None else folder / "prometheus"


TOOLS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm")


def control_plane_tools(progress: Progress = silent, environment: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """The program for each of `TOOLS`: from `$KUBEBUILDER_ASSETS` where it has it, else from our build.

    The build is made only if something is missing from the assets (envtest's have no controller-manager).

    Raises:
        LocalError: A build was needed and failed.
    """
    found: dict[str, Path] = {}
    assets = environment.get("KUBEBUILDER_ASSETS")
    if assets:
        candidates = {tool: Path(assets).resolve() / tool for tool in TOOLS}
        found = {tool: path for tool, path in candidates.items() if os.access(path, os.X_OK)}
    if len(found) < len(TOOLS):
        folder = ensure_built(CONTROL_PLANE, progress)
        found = {tool: folder / tool for tool in TOOLS} | found
    return found
