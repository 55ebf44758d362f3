"""From a command line to a cluster and back to an exit code: what every command that asks a cluster shares."""

from __future__ import annotations

import asyncio
import enum
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.kube_config import list_kube_config_contexts

from paceline_crds.names import GROUP
from paceline_kube import (
    AioKubeClient,
    ApiError,
    KubeError,
    NotFound,
    Unauthorized,
    Unreachable,
    connect,
    in_cluster,
    own_namespace,
)

GOOD, NO, WRONG_USE, NOT_KNOWN, UNREACHABLE = 0, 1, 2, 3, 4
"""Exit codes of every command."""


TOO_MANY_REQUESTS, SERVER_ERRORS = 429, 500


class Output(enum.StrEnum):
    """How the answer is printed."""

    TABLE = "table"
    JSON = "json"


NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace. Default: that of the kubeconfig's context.")
]
KubeconfigOption = Annotated[
    Path | None, typer.Option("--kubeconfig", help="This kubeconfig. Default: $KUBECONFIG, else ~/.kube/config.")
]
ContextOption = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]


def output_of(text: str) -> Output:
    """How to print, by what the user wrote.

    Raises:
        typer.BadParameter: it is another word.
    """
    try:
        return Output(text)
    except ValueError:
        raise typer.BadParameter(f"write table or json, not {text!r}") from None


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", parser=output_of, metavar="<table|json>", help="table or json.")
]
AllNamespacesOption = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Services of every namespace.")]
TimeoutOption = Annotated[float, typer.Option(min=1.0, help="Seconds to wait at most.")]


class Stop(Exception):
    """Ends a command with words for its user, on standard error.

    Attributes:
        code: the exit code.
    """

    def __init__(self, message: str, code: int = NO) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Where:
    """Which cluster and namespace a command line names."""

    namespace: str | None = None
    kubeconfig: Path | None = None
    context: str | None = None


def run(work: Callable[[AioKubeClient, str], Awaitable[int]], where: Where) -> None:
    """Do `work(client, namespace)` and leave with the exit code that it returns.

    Raises:
        typer.Exit: always, unless the code is 0.
    """
    try:
        code = asyncio.run(_connected(work, where))
    except Stop as stop:
        typer.echo(f"error: {stop}", err=True)
        code = stop.code
    except (Unreachable, Unauthorized, FileNotFoundError, ConfigException) as exc:
        typer.echo(f"error: the cluster cannot be reached: {exc}", err=True)
        code = UNREACHABLE
    except KubeError as exc:
        typer.echo(f"error: {words_of(exc)}", err=True)
        code = UNREACHABLE if away(exc) else NO
    if code != GOOD:
        raise typer.Exit(code)


async def _connected(work: Callable[[AioKubeClient, str], Awaitable[int]], where: Where) -> int:
    async with connect(where.kubeconfig, context=where.context) as client:
        return await work(client, where.namespace or default_namespace(where))


def only_one(name: str | None, all_namespaces: bool, namespace: str | None) -> None:
    """Refuse a command line that names a service, or a namespace, and all of them.

    Raises:
        typer.BadParameter: it does.
    """
    if all_namespaces and (name is not None or namespace is not None):
        raise typer.BadParameter(
            "it means every namespace, so it goes without a name and without -n", param_hint="--all-namespaces"
        )


def default_namespace(where: Where) -> str:
    """The namespace of the kubeconfig's context, or of the pod that the command runs in."""
    if where.kubeconfig is None and in_cluster():
        return own_namespace() or "default"
    path = str(where.kubeconfig or os.environ.get("KUBECONFIG") or Path("~/.kube/config").expanduser())
    contexts, current = list_kube_config_contexts(path)
    chosen = current if where.context is None else next((c for c in contexts if c["name"] == where.context), {})
    return str((chosen.get("context") or {}).get("namespace") or "default")


def away(error: KubeError) -> bool:
    """Whether the API server could not answer, for now: this says nothing about what was asked."""
    return isinstance(error, Unreachable) or (
        isinstance(error, ApiError) and (error.status == TOO_MANY_REQUESTS or error.status >= SERVER_ERRORS)
    )


def words_of(error: KubeError) -> str:
    """What the API server said, and what to do where that is known."""
    if isinstance(error, NotFound) and not error.details.get("name"):
        return f"the cluster does not know {GROUP}: Paceline is not installed in it, or was taken out"
    return error.message if isinstance(error, ApiError) and error.message else str(error)
