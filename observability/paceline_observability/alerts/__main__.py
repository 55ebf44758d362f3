"""`python -m paceline_observability.alerts`: print the rules, or write them where the chart has them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .file import routing_file, rule_file
from .rule import Windows
from .rules import alerts

FOLDER = Path("charts/paceline/files/alerts")
PAGES = Path("charts/paceline/files/runbooks")
"""Under the root of a checkout: the rules, and a copy of the runbooks."""


def main(
    write: Annotated[Path | None, typer.Option(help="Root of a checkout, to write the chart's files.")] = None,
    shorten: Annotated[float, typer.Option(min=1, help="Divide every length of time, for trials.")] = 1.0,
) -> None:
    """Print the alerting rules for Prometheus, or write them, Alertmanager's routing and the runbooks into the chart.

    Example, for a Prometheus that scrapes every two seconds:

        python -m paceline_observability.alerts --shorten 10 > rules.yaml
    """
    if write is None:
        typer.echo(rule_file(Windows(shorten)), nl=False)
        return
    folder = write / FOLDER
    if not folder.is_dir():
        raise typer.BadParameter(f"{write} is no root of a checkout: there is no {FOLDER}", param_hint="--write")
    if shorten != 1.0:
        raise typer.BadParameter("the chart has the rules as they are; leave out --shorten", param_hint="--shorten")
    texts = {folder / "rules.yaml": rule_file(Windows()), folder / "alertmanager.yaml": routing_file()}
    pages = write / PAGES
    pages.mkdir(exist_ok=True)
    for alert in alerts(Windows()):
        # helm reads nothing outside of a chart.
        texts[pages / f"{alert.name}.md"] = (write / alert.runbook).read_text(encoding="utf-8")
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
        typer.echo(path)


if __name__ == "__main__":
    typer.run(main)
