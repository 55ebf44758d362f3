"""`python -m paceline_crds`: print the CRDs, or write all that is generated where it is committed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import crd, metrics

CRDS, CHART, PAGE = Path("crds"), Path("charts/paceline"), Path("docs/reference/metrics.md")
"""What is generated, and what it stands beside, under the root of a checkout."""


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
        missing = next((part for part in (CRDS, CHART / "Chart.yaml", PAGE) if not (write / part).exists()), None)
        if missing is not None:
            raise typer.BadParameter(
                f"{write} is no root of a checkout: there is no {missing}; write the folder that has crds/",
                param_hint="--write",
            )
        for path in crd.write(write / CRDS, write / CHART / "files" / "crds"):
            typer.echo(path)
        page = write / PAGE
        page.write_text(metrics.markdown(), encoding="utf-8")
        typer.echo(page)
        return
    typer.echo("---\n".join(crd.files().values()), nl=False)


if __name__ == "__main__":
    typer.run(crds)
