"""`python -m paceline_bench.gpu.pack DIR`: wheels that the check needs and a machine with torch and transformers lacks.

For Python 3.12 on x86-64 Linux, in the versions of `requirements/runtime.txt`, through pip's own `download`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DISTRIBUTIONS = (
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "typing-inspection",
    "typing-extensions",
    "msgspec",
)
"""Ours beside torch, triton, numpy, transformers and safetensors, which such a machine has; its typing-extensions may
be older than pydantic wants."""

LIMIT = 64 * 2**20
"""Bytes that a machine without a network may be sent, the tree included."""

_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")


def pinned(requirements: str, names: tuple[str, ...] = DISTRIBUTIONS) -> list[str]:
    """The lines `name==version` of a lock file.

    Raises:
        ValueError: one of the names is not in it.
    """
    found = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", requirements, re.MULTILINE))
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"requirements/runtime.txt does not pin {', '.join(missing)}")
    return [f"{name}=={found[name]}" for name in names]


def main(arguments: list[str]) -> int:
    """Fill the folder anew."""
    folder, root = Path(arguments[0]), Path(__file__).parents[3]
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", "3.12", "--implementation", "cp", "-d", str(folder)]
    for platform in _PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, *pinned((root / "requirements/runtime.txt").read_text())], check=True)
    wheels = sorted(folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels)
    print(
        f"{len(wheels)} wheels, {size / 2**20:.1f} MiB, in {folder}: carry it with the tree, {LIMIT >> 20} MiB in all"
    )
    return 0 if size < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
