"""Which build of the router runs: its source, or the one whose hot path `router/compile.py` has compiled."""

from __future__ import annotations

import sys
from functools import cache
from importlib import metadata, util
from typing import Final

SOURCE: Final = "source"
COMPILED: Final = "compiled"

_HOT: Final = "paceline_router.wire.upstream"
"""One of the modules that are compiled all together."""


@cache
def build() -> str:
    """`COMPILED` or `SOURCE`."""
    found = util.find_spec(_HOT)
    return SOURCE if found is None or (found.origin or "").endswith(".py") else COMPILED


@cache
def version() -> str:
    """Of the distribution; `unknown` where the package runs without being installed."""
    try:
        return metadata.version("paceline")
    except metadata.PackageNotFoundError:
        return "unknown"


def words() -> str:
    """One line: version, build and Python."""
    python = ".".join(map(str, sys.version_info[:3]))
    return f"paceline router {version()} ({build()} build, Python {python})"
