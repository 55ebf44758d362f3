"""Every kernel compiles for GPUs that are not there, with the constants that its launch function gives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.model
KERNELS = {
    "decode_kernel",
    "reduce_kernel",
    "varlen_kernel",
    "write_kv_kernel",
    "rms_norm_kernel",
    "rotate_kernel",
    "silu_and_mul_kernel",
    "sample_kernel",
}


def compiled(folder: Path, *flags: str) -> list[dict[str, Any]]:
    report = folder / "table.json"
    command = [sys.executable, "-W", "ignore", "-m", "paceline_runtime.kernels.check", "compile", "--json", str(report)]
    # An empty cache: what was compiled before would prove nothing of today's compiler.
    env = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False, env=env)
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    rows: list[dict[str, Any]] = json.loads(report.read_text())
    return rows


@pytest.mark.timeout(1200)
def test_kernels_of_a_common_model_compile_without_a_gpu(tmp_path: Path) -> None:
    rows = compiled(tmp_path, "--arch", "80")
    assert {row["kernel"] for row in rows} == KERNELS
    assert all(row["registers"] > 0 for row in rows)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_every_form_of_every_kernel_compiles_for_8_0_and_9_0(tmp_path: Path) -> None:
    rows = compiled(tmp_path, "--full")
    for arch in (80, 90):
        assert {row["kernel"] for row in rows if row["arch"] == arch} == KERNELS
