"""The native kernels for AVX-512, on a processor that may not have it: what they compute, not how fast."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("isa", ["avx512", "avx512bf16"])
def test_vectors_of_16_compute_what_those_of_8_do(isa: str, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS / "support"), os.environ.get("PYTHONPATH", "")]),
        # Not where libraries are kept that a processor with AVX-512 would take.
        "PACELINE_CACHE": str(tmp_path),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "emulated_avx512", "-p", "no:cacheprovider"]
    command += [str(TESTS / "runtime/test_native.py"), "-k", f"[{isa}- or [{isa}]"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=TESTS.parent)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "skipped" not in done.stdout
