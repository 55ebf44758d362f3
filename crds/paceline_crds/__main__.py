"""`python -m paceline_crds`: print the CRDs, or write all that is generated where it is committed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import crd, metrics


def crds(
    write: Annotated[
        Path | None,
        typer.Option(
            help="Root of a checkout: writes crds/*.yaml, charts/paceline/files/crds/*.yaml and "
            "docs/reference/metrics.md there."
        ),
    ] = None,
) -> None:
    """Print the CustomResourceDefinitions as YAML.

    Examples:

        paceline crds | kubectl apply --server-side -f -

        python -m paceline_crds --write .
    """
    if write is not None:
        for path in crd.write(write / "crds", write / "charts" / "paceline" / "files" / "crds"):
            typer.echo(path)
        page = write / "docs" / "reference" / "metrics.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(metrics.markdown(), encoding="utf-8")
        typer.echo(page)
        return
    typer.echo("---\n".join(crd.files().values()), nl=False)


if __name__ == "__main__":
    typer.run(crds)
