"""`python -m paceline_observability --write ROOT`: write what is generated where it is committed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .catalogue.page import markdown

PAGE = Path("docs/reference/metrics.md")
"""Under the root of a checkout."""


def write(write: Annotated[Path, typer.Option(help="Root of a checkout.")]) -> None:
    """Write docs/reference/metrics.md.

    Example:

        python -m paceline_observability --write .
    """
    page = write / PAGE
    if not page.is_file():
        raise typer.BadParameter(
            f"{write} is no root of a checkout: there is no {PAGE}; write the folder that has docs/",
            param_hint="--write",
        )
    page.write_text(markdown(), encoding="utf-8")
    typer.echo(page)


if __name__ == "__main__":
    typer.run(write)
