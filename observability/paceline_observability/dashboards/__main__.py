"""`python -m paceline_observability.dashboards --write ROOT`: write the boards where the chart has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .board import Board
from .boards import BOARDS

FOLDER = Path("charts/paceline/files/dashboards")
"""Under the root of a checkout."""


def text(board: Board) -> str:
    """The file of a board."""
    return json.dumps(board.json(), indent=1) + "\n"


def main(write: Annotated[Path, typer.Option(help="Root of a checkout.")]) -> None:
    """Write the boards into the chart.

    Example:

        python -m paceline_observability.dashboards --write .
    """
    folder = write / FOLDER
    if not folder.is_dir():
        raise typer.BadParameter(f"{write} is no root of a checkout: there is no {FOLDER}", param_hint="--write")
    for board in BOARDS:
        file = folder / f"{board.name}.json"
        file.write_text(text(board), encoding="utf-8")
        typer.echo(file)


if __name__ == "__main__":
    typer.run(main)
