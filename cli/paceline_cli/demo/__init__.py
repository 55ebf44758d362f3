"""`paceline demo`: what Paceline does, shown on this machine."""

from __future__ import annotations

import typer

from .first import down, up
from .rollout import rollout

app = typer.Typer(
    name="demo",
    help="From nothing to a streamed chat answer on this machine, a rollout that proves itself, and back.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Examples:  paceline demo up  |  paceline demo up --question 'Why is the sky blue?'  |  paceline demo down",
)
app.command(epilog="Examples:  paceline demo up  |  paceline demo up --question 'Why is the sky blue?'")(up)
app.command(epilog="Examples:  paceline demo rollout")(rollout)
app.command(epilog="Examples:  paceline demo down")(down)
