"""Which images exist in local mode, and what their entrypoints are on this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline_local.node.errors import ImageError

_REFERENCE = re.compile(r"(?P<name>[^:@\s]+(?::\d+/[^:@\s]+)?)(?::(?P<tag>[^@\s]+))?(?:@(?P<digest>\S+))?")

COMPONENTS = {
    "paceline.io/operator": "paceline_operator",
    "paceline.io/recorder": "paceline_shadow_traffic",
    "paceline.io/router": "paceline_router",
    "paceline.io/runtime": "paceline_runtime",
}
SHELL = "paceline.io/shell"
PROMETHEUS_NAMES = ("prometheus", "prom/prometheus", "docker.io/prom/prometheus", "quay.io/prometheus/prometheus")
PROMETHEUS_VARIABLE = "PACELINE_PROMETHEUS"

AVAILABLE = (
    "local mode can run paceline.io/operator, paceline.io/router, paceline.io/recorder, paceline.io/runtime "
    "(from this checkout), "
    "paceline.io/shell (needs a command) and prometheus, each with any tag"
)


@dataclass(frozen=True)
class Image:
    """An image as the node sees it: the `entrypoint` that a pod's `command` overrides (None: there is none)."""

    reference: str
    entrypoint: tuple[str, ...] | None


def prometheus_path() -> Path | None:
    """The Prometheus binary: `$PACELINE_PROMETHEUS`, else the one that local mode built; None where there is none."""
    chosen = os.environ.get(PROMETHEUS_VARIABLE)
    if chosen:
        return Path(chosen)
    if importlib.util.find_spec("paceline_local.build") is None:
        return None
    from paceline_local import build

    path = build.prometheus_binary()
    return path if path is not None and path.exists() else None


def resolve_image(reference: str, prometheus: Callable[[], Path | None] = prometheus_path) -> Image:
    """The image of a reference.

    Raises:
        ImageError: Local mode has no such image; the message lists those it has.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ImageError(f"{reference!r} is no image reference; {AVAILABLE}")
    name = match["name"]
    if name in COMPONENTS:
        return Image(reference, (sys.executable, "-m", COMPONENTS[name]))
    if name == SHELL:
        return Image(reference, None)
    if name in PROMETHEUS_NAMES:
        path = prometheus()
        if path is None or not os.access(path, os.X_OK):
            where = path or f"${PROMETHEUS_VARIABLE}"
            raise ImageError(f"Prometheus is not built here (looked for {where}); run `paceline local up` once more")
        return Image(reference, (str(path),))
    raise ImageError(f"{reference!r} is not available: {AVAILABLE}")
