"""Which way of giving containers their own mounts this machine allows."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from paceline_local.node.plan import Namespaces

log = logging.getLogger(__name__)

SHIM = Path(__file__).with_name("shim.py")


def shim_command(*arguments: str) -> list[str]:
    """The command line of the shim: isolated and without site packages, since it is started once per container."""
    return [sys.executable, "-I", "-S", str(SHIM), *arguments]


def refusal(mode: Namespaces) -> str | None:
    """Try a mount namespace with a new directory in /etc, exactly as containers use it; the words where it fails."""
    with tempfile.TemporaryDirectory(prefix="paceline-probe-") as root:
        command = shim_command("probe", mode, root)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def probe_namespaces() -> Namespaces:
    """The best way that works here; `none` where neither does."""
    modes: tuple[Namespaces, ...] = ("root", "user") if os.geteuid() == 0 else ("user",)
    for mode in modes:
        words = refusal(mode)
        if words is None:
            return mode
        log.info("no mount namespace as %s here: %s", mode, words)
    log.warning("no mount namespaces on this machine: volumes are reached through rewritten paths")
    return "none"
