"""What options of several commands have in common: checked before anything is computed."""

from __future__ import annotations

import math
from pathlib import Path

import typer


def out_folder(value: Path | None) -> Path | None:
    """A folder that results can be written to; it is made here.

    Raises:
        typer.BadParameter: it cannot be.
    """
    if value is None:
        return None
    try:
        value.mkdir(parents=True, exist_ok=True)
        probe = value / ".paceline-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise typer.BadParameter(f"cannot write into {value}: {error.strerror or error}; name a folder") from None
    taken = [name for name in ("results.json", "plot.svg") if (value / name).is_dir()]
    if taken:
        raise typer.BadParameter(f"{value / taken[0]} is a folder, and a file of that name is to be written")
    return value


def finite(value: float | None) -> float | None:
    """A number; `inf` and `nan` pass for one in the range checks.

    Raises:
        typer.BadParameter: it is none.
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"write a number, not {value}")
    return value
