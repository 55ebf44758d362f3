"""`python -m paceline_runtime SOURCE` or `--config FILE`: one replica."""

from __future__ import annotations

import typer

from .server.commands import serve

if __name__ == "__main__":
    typer.run(serve)
