"""`results.json` of every benchmark: one schema, one row per figure."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

SCHEMA = "paceline.results/v1"


@dataclass(frozen=True)
class Row:
    """One figure. `system` is `paceline` for ours and the peer's own name otherwise."""

    work: str
    system: str
    metric: str
    value: float
    unit: str
    params: dict[str, Any] = field(default_factory=dict)


def machine() -> dict[str, Any]:
    """What the figures were measured on: processor model and count, operating system, Python."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")),
        platform.processor() or "not known",
    )
    cores = sum(line.startswith("processor") for line in _lines(Path("/proc/cpuinfo")))
    return {"cpu": model, "cores": cores or None, "system": platform.platform(), "python": platform.python_version()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def versions(*distributions: str) -> dict[str, str]:
    """Installed versions of the distributions; those that are not installed are left out."""
    found = {}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def document(
    rows: Iterable[Row], versions_of: Mapping[str, str], probes: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """What `results.json` holds.

    Args:
        rows: the figures.
        versions_of: what was measured, with its version.
        probes: what the machine gave meanwhile; kept with the machine.
    """
    return {
        "schema": SCHEMA,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine() | ({"probes": list(probes)} if probes else {}),
        "versions": {**versions("paceline"), **versions_of},
        "rows": [asdict(row) for row in rows],
    }


def write_document(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write `results.json` into `folder` (made where absent) and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.json"
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def write(folder: Path, rows: Iterable[Row], *distributions: str) -> Path:
    """Write rows with the versions of installed distributions; the path of the file."""
    return write_document(folder, document(rows, versions(*distributions)))
