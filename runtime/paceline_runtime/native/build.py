"""Compiles the kernels on first use and keeps the result in the user's cache folder.

The library is plain C++ behind a C interface: it depends on the instruction set, not on torch or Python. A wheel may
ship it ready made as `native/prebuilt/libpaceline-ISA.so`.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline_runtime.config import ConfigError

SOURCES = Path(__file__).parent / "src"
PREBUILT = Path(__file__).parent / "prebuilt"

ISA_FLAGS = {
    "avx512bf16": ("-march=x86-64-v4", "-mavx512bf16", "-mprefer-vector-width=512"),
    "avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
    "avx2": ("-march=x86-64-v3", "-mprefer-vector-width=256"),
}
"""Instruction sets from the best downwards, named as in `PACELINE_NATIVE_ISA`."""

_AVX2 = {"avx2", "fma", "bmi2", "f16c"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_NEEDED = {"avx512bf16": _AVX512 | {"avx512_bf16"}, "avx512": _AVX512, "avx2": _AVX2}

# No -ffast-math: it would allow sums in any order, and where it reaches the linker it changes how the whole process
# rounds. Contraction into fused multiply-adds is GCC's default and is what the kernels count on.
FLAGS = (
    "-std=c++20",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wno-psabi",
)

QUIET_SECONDS = 2.0
"""A build that takes longer says so."""

log = logging.getLogger(__name__)


class NativeUnavailable(Exception):
    """The kernels cannot be had here; the message says why and what would help."""


def cache_root() -> Path:
    """Folder for what can be made again: `$PACELINE_CACHE`, else `paceline` in the user's cache folder.

    Raises:
        OSError: if the user has none.
    """
    chosen = os.environ.get("PACELINE_CACHE")
    if chosen:
        return Path(chosen).expanduser().resolve()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"
    except RuntimeError as error:
        raise OSError("this user has no home folder; name a folder in PACELINE_CACHE") from error


def pick_isa(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The best instruction set of this processor, or the one that `$PACELINE_NATIVE_ISA` names.

    Raises:
        NativeUnavailable: if there is none, or the named one is not there.
        ConfigError: if there is no such name.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise NativeUnavailable(f"the kernels need an x86-64 processor, this one is {platform.machine()}")
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError as error:
        raise NativeUnavailable(f"cannot read what the processor can do: {error}") from error
    there = set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))
    able = [isa for isa, needed in _NEEDED.items() if needed <= there]
    wanted = os.environ.get("PACELINE_NATIVE_ISA")
    if wanted and wanted not in ISA_FLAGS:
        raise ConfigError(f"PACELINE_NATIVE_ISA is {wanted!r}; write one of {', '.join(ISA_FLAGS)}")
    if wanted and wanted not in able:
        raise NativeUnavailable(f"PACELINE_NATIVE_ISA is {wanted}, which this processor does not have")
    if not able:
        raise NativeUnavailable("the kernels need a processor with AVX2 and FMA")
    return wanted or able[0]


def library_path(isa: str) -> Path:
    """The library for an instruction set; compiled if it is not there yet.

    Raises:
        NativeUnavailable: without a compiler, or if it fails.
    """
    ready = PREBUILT / f"libpaceline-{isa}.so"
    if ready.is_file():
        return ready
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    sources = sorted(SOURCES.iterdir())
    key = hashlib.sha256()
    for source in sources:
        key.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    key.update("\0".join((*FLAGS, *ISA_FLAGS[isa], _version(compiler) if compiler else "")).encode())
    name = f"libpaceline-{isa}.so"
    try:
        folder = cache_root() / "native"
        target = folder / key.hexdigest()[:20] / name
        if target.is_file():
            return target
        compiler = _require(compiler)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "lock"):
            if not target.is_file():
                _compile(compiler, isa, target)
        return target
    except OSError as error:
        # A container's root is often read-only: then for this process only, in a folder that nobody else can write to.
        log.info("the kernels are built for this process only: %s", error)
        try:
            target = Path(tempfile.mkdtemp(prefix="paceline-native-")) / name
            atexit.register(shutil.rmtree, target.parent, ignore_errors=True)
            _compile(_require(compiler), isa, target)
        except OSError as again:
            raise NativeUnavailable(f"there is nowhere to build the kernels: {error}; {again}") from again
        return target


def _require(compiler: str | None) -> str:
    if compiler is None:
        raise NativeUnavailable("there is no C++ compiler; install g++, or name one in CXX")
    return compiler


def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "-dumpfullversion", "-dumpmachine"], capture_output=True, text=True, check=False)
    return done.stdout


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One build at a time; whoever waits finds the library made."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(compiler: str, isa: str, target: Path) -> None:
    sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        command = [compiler, *FLAGS, *ISA_FLAGS[isa], *sources, "-o", str(made)]
        notice = threading.Timer(
            QUIET_SECONDS, print, (f"building the CPU kernels for {isa} (once) …",), {"file": sys.stderr, "flush": True}
        )
        notice.daemon = True
        notice.start()
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            notice.cancel()
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            reason = next((line for line in lines if "error" in line), lines[-1] if lines else "no message")
            raise NativeUnavailable(f"{compiler} could not build the kernels: {reason}")
        made.rename(target)
