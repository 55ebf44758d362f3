"""Where local mode keeps things on this machine."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import platformdirs

from paceline_local.errors import LocalError


def cache_root() -> Path:
    """Folder for what can be made again: `$PACELINE_CACHE`, else `paceline` in the user's cache folder."""
    chosen = os.environ.get("PACELINE_CACHE")
    return Path(chosen).expanduser().resolve() if chosen else Path(platformdirs.user_cache_dir("paceline"))


def sources_root() -> Path:
    """Folder with the Go modules `controlplane` and `prometheus`: `local/` of the checkout."""
    return Path(__file__).resolve().parents[1]


def checkout_root() -> Path:
    """Root of the checkout, which has the chart and the environment that pods run in."""
    return sources_root().parent


def default_instance() -> Path:
    """Folder of the instance that the commands mean when `--dir` is absent."""
    return cache_root() / "local"


def runtime_root() -> Path:
    """The user's folder for sockets and reservations; private, machine-wide and with a short name.

    It cannot follow `$PACELINE_CACHE`, since two instances with different caches still share the machine's addresses,
    and a socket's path may have 107 bytes at most.

    Raises:
        LocalError: The folder belongs to somebody else.
    """
    folder = Path(tempfile.gettempdir()) / f"paceline-local-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise LocalError(f"{folder} is not a folder of yours; remove it, or point $TMPDIR somewhere private")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)
    return folder
