"""`paceline bench`: what we measure, beside a peer, in one run."""

from __future__ import annotations

import typer

from .engine import engine
from .fleet.command import fleet
from .preemption import preemption
from .router.choice import router_choice
from .router.command import router
from .router.loss import router_loss
from .router.tenants import router_tenants
from .scheduling import scheduling
from .shadow.command import shadow
from .shapes import shapes
from .soak.command import soak

app = typer.Typer(
    name="bench",
    help="Benchmarks that put Paceline and its peers side by side in one run.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Examples:  paceline bench engine  |  paceline bench router --out results/router",
)
app.command()(engine)
app.command()(fleet)
app.command()(router)
app.command("router-choice")(router_choice)
app.command("router-loss")(router_loss)
app.command("router-tenants")(router_tenants)
app.command()(preemption)
app.command()(scheduling)
app.command()(shadow)
app.command()(shapes)
app.command()(soak)

if __name__ == "__main__":
    app(prog_name="paceline bench")
