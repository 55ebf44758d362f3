"""`paceline promote|skip|abort|pause|resume`: what a person orders of a rollout by steps."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from paceline_crds.rollout import OrderAction, RolloutStrategy
from paceline_kube import JsonObject, KubeClient

from . import orders
from .connection import (
    GOOD,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    Output,
    OutputOption,
    Stop,
    TimeoutOption,
    Where,
    run,
)
from .services import name_of, order_of, rollout_of, service, status_of, suspended
from .waiting import TookTooLong, until

NameArgument = Annotated[str, typer.Argument(help="InferenceService.")]
ReasonOption = Annotated[str | None, typer.Option(help="Why; `paceline history` shows it.")]
RevisionOption = Annotated[
    str | None, typer.Option(help="The revision that is meant. Default: the one that is rolled out, or was rejected.")
]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the operator has followed.")]

Carried = Callable[[KubeClient, JsonObject], Awaitable[JsonObject]]


def promote(
    name: NameArgument,
    revision: RevisionOption = None,
    reason: ReasonOption = None,
    wait: WaitOption = True,
    timeout: TimeoutOption = 600.0,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give the revision that is rolled out all of the traffic, as soon as it has replicas for it.

    One that was rolled back is begun again. Exit code 1 where there is nothing to promote.

    Examples:

      paceline promote chat --reason "the slow minute was a node's"
    """
    _order(OrderAction.PROMOTE, name, revision, reason, wait, timeout, Where(namespace, kubeconfig, context), output)


def skip(
    name: NameArgument,
    revision: RevisionOption = None,
    reason: ReasonOption = None,
    wait: WaitOption = True,
    timeout: TimeoutOption = 600.0,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Go on to the next step of a rollout now, whatever is known of the present one.

    Examples:

      paceline skip chat --reason "too few requests at night"
    """
    _order(OrderAction.SKIP, name, revision, reason, wait, timeout, Where(namespace, kubeconfig, context), output)


def abort(
    name: NameArgument,
    revision: RevisionOption = None,
    reason: ReasonOption = None,
    wait: WaitOption = True,
    timeout: TimeoutOption = 600.0,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give all traffic back to the revision before, and reject the one that is rolled out.

    Examples:

      paceline abort chat --reason "answers in the wrong language"
    """
    _order(OrderAction.ABORT, name, revision, reason, wait, timeout, Where(namespace, kubeconfig, context), output)


def pause(
    name: NameArgument,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a rollout stay at the step it is at (spec.rollout.paused). It is still rolled back where a gate is worse.

    Examples:

      paceline pause chat
    """
    _pause(name, True, Where(namespace, kubeconfig, context), output)


def resume(
    name: NameArgument,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a paused rollout go on.

    Examples:

      paceline resume chat
    """
    _pause(name, False, Where(namespace, kubeconfig, context), output)


def _order(
    action: OrderAction,
    name: str,
    revision: str | None,
    reason: str | None,
    wait: bool,
    timeout: float,
    where: Where,
    output: Output,
) -> None:
    async def work(client: KubeClient, chosen: str) -> int:
        obj = await service(client, chosen, name)
        target = target_of(obj, action, revision)
        stored = await orders.order(client, obj, target, action, who(), reason)
        followed = False
        if wait:
            check = follows(obj, action, target, stored["metadata"]["generation"])
            try:
                await until(client, chosen, name, check, timeout)
            except TookTooLong as exc:
                raise Stop(f"not followed after {timeout:.0f} s, and the order stands: {exc}") from exc
            followed = True
        done = {"service": name_of(obj), "revision": target, "action": action.value, "followed": followed}
        words = "followed" if followed else "ordered; `paceline status` says how far it is"
        typer.echo(
            json.dumps(done, indent=2) if output is Output.JSON else f"{name_of(obj)}: {action} {target}: {words}"
        )
        return GOOD

    run(work, where)


def _pause(name: str, paused: bool, where: Where, output: Output) -> None:
    async def work(client: KubeClient, chosen: str) -> int:
        obj = await service(client, chosen, name)
        _must_be_staged(obj)
        await orders.pause(client, obj, paused)
        done = {"service": name_of(obj), "paused": paused, "revision": _under_way(obj)}
        words = pause_words(obj, paused)
        typer.echo(json.dumps(done, indent=2) if output is Output.JSON else f"{name_of(obj)}: {words}")
        return GOOD

    run(work, where)


def _under_way(obj: JsonObject) -> str | None:
    """The revision that gets copies or traffic by steps, or gets ready for them."""
    rollout = status_of(obj).get("rollout") or {}
    return rollout.get("revision") if rollout.get("phase") not in (None, "Idle", "Blocked") else None


def pause_words(obj: JsonObject, paused: bool) -> str:
    """What a pause, or its end, does to a service as it was before."""
    under_way = _under_way(obj)
    if not paused and not rollout_of(obj).get("paused"):
        return "it was not paused"
    if not paused:
        return f"{under_way} goes on" if under_way else "a new revision begins by itself again"
    until = f"until `paceline resume {obj['metadata']['name']}`"
    if under_way:
        return f"paused: {under_way} stays at its step {until}"
    return f"paused: nothing is rolled out now, and no new revision begins {until}"


def target_of(obj: JsonObject, action: OrderAction, revision: str | None) -> str:
    """The revision that an order is about.

    Raises:
        Stop: an order would do nothing; the words say why.
    """
    whole, name = name_of(obj), obj["metadata"]["name"]
    _must_be_staged(obj)
    if suspended(obj):
        raise Stop(f"spec.suspend of {whole} is true, so nothing would be done: set it to false first")
    if (pin := order_of(obj)) is not None:
        raise Stop(
            f"{whole} is pinned to {pin.get('revision')}: take that back first (`paceline rollback {name} --undo`)"
        )
    rollout = status_of(obj).get("rollout") or {}
    found = rollout.get("revision")
    if found is None:
        raise Stop(f"nothing of {whole} is rolled out by steps now, so there is nothing to {action.lower()}")
    if revision is not None and found not in (revision, f"{name}-{revision}"):
        raise Stop(f"{found} is what {whole} rolls out now, not {revision}")
    if action is OrderAction.ABORT and rollout.get("phase") in ("Idle", "RollingBack"):
        raise Stop(f"{found} is rolled back already: {rollout.get('message', '')}", GOOD)
    return str(found)


def follows(before: JsonObject, action: OrderAction, revision: str, generation: int) -> Callable[[JsonObject], bool]:
    """A check that the operator has seen an order and gone where it leads."""
    old = status_of(before).get("rollout") or {}

    def check(obj: JsonObject) -> bool:
        status = status_of(obj)
        if int(status.get("observedGeneration") or 0) < generation:
            return False
        rollout = status.get("rollout") or {}
        if status.get("currentRevision") == revision:
            return action is not OrderAction.ABORT
        if action is OrderAction.ABORT:
            return rollout.get("phase") == "Idle" and not rollout.get("weight")
        if action is OrderAction.PROMOTE:
            return rollout.get("weight") == 100 and rollout.get("phase") == "Finishing"
        return (rollout.get("step"), rollout.get("phase")) != (old.get("step"), old.get("phase"))

    return check


def _must_be_staged(obj: JsonObject) -> None:
    strategy = rollout_of(obj).get("strategy") or RolloutStrategy.ROLLING.value
    if strategy != RolloutStrategy.CANARY:
        raise Stop(
            f"spec.rollout.strategy of {name_of(obj)} is {strategy}, so its traffic moves at once: write "
            "strategy: Canary to move it by steps"
        )


def who() -> str:
    """Who gives an order, as far as this machine knows."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return "paceline"
