"""`python -m paceline_crds`: print the CRDs, or write all that is generated where it is committed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import crd

CRDS, CHART = Path("crds"), Path("charts/paceline")
"""What is generated, and what it stands beside, under the root of a checkout."""


def crds(
    write: Annotated[
        Path | None,
        typer.Option(help="Root of a checkout: writes crds/*.yaml and charts/paceline/files/crds/*.yaml there."),
    ] = None,
) -> None:
    """Print the CustomResourceDefinitions as YAML.

    Examples:

        paceline crds | kubectl apply --server-side -f -

        python -m paceline_crds --write .
    """
    if write is not None:
        missing = next((part for part in (CRDS, CHART / "Chart.yaml") if not (write / part).exists()), None)
        if missing is not None:
            raise typer.BadParameter(
                f"{write} is no root of a checkout: there is no {missing}; write the folder that has crds/",
                param_hint="--write",
            )
        for path in crd.write(write / CRDS, write / CHART / "files" / "crds"):
            typer.echo(path)
        return
    typer.echo("---\n".join(crd.files().values()), nl=False)


if __name__ == "__main__":
    typer.run(crds)
