"""The whole network gives the same logits on the Triton kernels as on the CPU's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.model
@pytest.mark.timeout(1200)
def test_prompts_mixed_steps_and_decodes_give_the_logits_of_the_cpu() -> None:
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("network.py"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    steps = json.loads(done.stdout)
    assert len(steps) == 4
    for difference, largest in steps:
        assert largest > 1
        assert difference < 1e-5 * largest
