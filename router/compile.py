"""Compiles the router's hot path with mypyc: the same source at about half the CPU time.

    python router/compile.py OUT        # two or three minutes of one core; needs a C compiler and the extra `dev`
    PYTHONPATH=OUT python -m paceline_router --version

`OUT/paceline_router` is a copy of the package in which the modules of `HOT` are shared libraries for this Python
and machine, and wins over the installed package where OUT is on PYTHONPATH. Nothing depends on it: development and most
tests run the source, images and benchmarks the compiled build (docs/decisions/compiled-router.md).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "router" / "paceline_router"

STAMP: Final = "source.sha256"
"""In OUT: from which source it was made."""

HOT: Final = {
    "choice": "chooser load",
    "epp": "carried",
    "flow": "admission answering backend dataplane exchange living places record retries versions waiting",
    "report": "cells histogram objectives observer service timing",
    "shadow": "copied",
    "shape": "asked classes histogram output_length prompt_length shaper",
    "tenancy": "gate series tenant tenants",
    "wire": "chunks client request_head response_head upstream usage",
}
"""Modules by room: what each request passes through, and nothing else. A class and those that derive from it go
together, all or none.
"""

SETTINGS: Final = f"""[mypy]
mypy_path = {{out}}:{ROOT / "crds"}:{ROOT / "kube"}
ignore_missing_imports = True
follow_imports = silent
plugins = pydantic.mypy
"""


def source_hash() -> str:
    """Of all that goes into the build: the package's files by name, and this one."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def is_current(out: Path) -> bool:
    """Whether `out` has the build of the source as it is now."""
    stamp = out / STAMP
    return stamp.is_file() and stamp.read_text() == source_hash()


def build(out: Path) -> None:
    """Make the compiled package in `out`; what was there of an earlier one goes.

    Raises:
        subprocess.CalledProcessError: mypyc or the C compiler failed; what they said is on standard error.
    """
    shutil.rmtree(out, ignore_errors=True)
    package = out / PACKAGE.name
    made_from = source_hash()
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    settings = out / "mypyc.ini"
    settings.write_text(SETTINGS.format(out=out))
    modules = [f"{PACKAGE.name}/{room}/{name}.py" for room, names in HOT.items() for name in names.split()]
    subprocess.run(
        [sys.executable, "-m", "mypyc", "--config-file", settings.name, *modules],
        cwd=out,
        env={"MYPYC_DEBUG_LEVEL": "0", **os.environ, "MYPYPATH": str(out)},
        check=True,
        stdout=sys.stderr,
    )
    for leftover in ("build", ".mypy_cache"):
        shutil.rmtree(out / leftover, ignore_errors=True)
    settings.unlink()
    (out / STAMP).write_text(made_from)


def main() -> None:
    """The command line. Exit codes: 0 built or current, 1 (`--check`) not current, 2 wrong use or no compiler."""
    parser = argparse.ArgumentParser(description="Compile the router's hot path.")
    parser.add_argument("out", type=Path, help="folder of its own for the compiled package; replaced")
    parser.add_argument("--check", action="store_true", help="only say by the exit code whether it is current")
    options = parser.parse_args()
    out: Path = options.out.resolve()
    if options.check:
        sys.exit(not is_current(out))
    if is_current(out):
        print(f"{out} has the compiled router of this source already")
        return
    if out.exists() and not (out / PACKAGE.name).is_dir():
        parser.error(f"{out} is there and is no such build; name a folder that may be replaced")
    compiler = os.environ.get("CC") or "cc"
    if shutil.which(compiler) is None:
        parser.error(f"there is no C compiler ({compiler}): install gcc, or run the router as it is, which needs none")
    build(out)
    print(f"compiled the router; use it with PYTHONPATH={out}")


if __name__ == "__main__":
    main()
