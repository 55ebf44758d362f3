"""Every Triton kernel computes what its PyTorch reference does, in Triton's interpreter.

The interpreter is chosen when Triton is imported, for a whole process: each test has one of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.model
"""Left out of `make test-fast`: the interpreter takes some milliseconds for each program of a grid."""

GROUPS = {
    "decode": ["decode_attention"],
    "varlen": ["varlen_attention"],
    "mixed": ["mixed steps"],
    "layers": ["write_kv", "rms_norm", "add_rms_norm", "silu_and_mul", "rotate"],
    "sample": ["sample"],
}


def parity(kernels: list[str], report: Path, *flags: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-W", "ignore", "-m", "paceline_runtime.kernels.check", "parity", "--json", str(report)]
    for kernel in kernels:
        command += ["--kernel", kernel]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    results: list[dict[str, Any]] = json.loads(report.read_text())
    return results


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("group", list(GROUPS))
def test_kernels_compute_what_their_references_do(group: str, tmp_path: Path) -> None:
    results = parity(GROUPS[group], tmp_path / "results.json")
    assert all(result["good"] for result in results)
    for kernel in GROUPS[group]:
        dtypes = {result["dtype"] for result in results if result["kernel"] == kernel}
        assert dtypes == ({"float32"} if kernel == "sample" else {"float32", "bfloat16", "float16"})


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("group", list(GROUPS))
def test_kernels_compute_what_their_references_do_at_many_sizes(group: str, tmp_path: Path) -> None:
    assert parity(GROUPS[group], tmp_path / "results.json", "--full")
