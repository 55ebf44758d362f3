"""What a long check has found so far, in a file: one that was cut short goes on where it was.

The first line says what the rest was found with; where that is something else by now, the file is begun anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parents[1]


def found_with(**versions: str) -> dict[str, str]:
    """What results depend on: versions, and all of the kernels' sources."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.py")):
        digest.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes())
    return {**versions, "sources": digest.hexdigest()}


class Progress:
    """Results by name, each on a line of its own.

    Args:
        path: the file; `None` keeps nothing.
        basis: see `found_with`.
    """

    def __init__(self, path: Path | None, basis: Mapping[str, str]) -> None:
        self._path = path
        self.found: dict[str, dict[str, Any]] = {}
        if path is None:
            return
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if lines and json.loads(lines[0]) == basis:
            for line in lines[1:]:
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    continue  # cut off while it was written
                self.found[entry["name"]] = entry["result"]
            if not path.read_bytes().endswith(b"\n"):
                with path.open("a") as file:
                    file.write("\n")
        else:
            path.write_text(json.dumps(basis) + "\n", encoding="utf-8")

    def add(self, name: str, result: dict[str, Any]) -> None:
        """Keep a result."""
        self.found[name] = result
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"name": name, "result": result}) + "\n")
