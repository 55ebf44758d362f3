"""`paceline drift`: everything that does not run as its revision has it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from paceline_crds.names import LABEL_SERVICE, derived_name
from paceline_kube import (
    CONFIGMAPS,
    DEPLOYMENTS,
    INFERENCEREVISIONS,
    PODS,
    AioKubeClient,
    JsonObject,
    Resource,
)
from paceline_kube.pods import is_ready
from paceline_operator.drift.compare import Drift, World, compare
from paceline_operator.drift.world import world_of
from paceline_operator.gather import RevisionReader, gather
from paceline_operator.tuning.asked import allowed

from .answers import Answers, ask_now, found_by_operator
from .asking import ask
from .connection import (
    GOOD,
    NO,
    NOT_KNOWN,
    AllNamespacesOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    Output,
    OutputOption,
    Where,
    only_one,
    run,
)
from .services import behind, name_of, services, status_of
from .tables import columns
from .waiting import patiently

KINDS = (INFERENCEREVISIONS, DEPLOYMENTS, CONFIGMAPS, PODS)


@dataclass(frozen=True, slots=True)
class Found:
    """The comparison of one service; `why` says why there is none, `answers` what is known of its replicas' answers."""

    service: JsonObject
    drift: Drift | None
    why: str = ""
    answers: Answers | None = None

    @property
    def code(self) -> int:
        """The exit code that it alone would make."""
        if self.drift is not None and self.drift.items:
            return NO
        if self.answers is not None and self.answers.wrong:
            return NO
        known = self.drift is not None and not self.drift.unknown and (self.drift.checked or not self.drift.running)
        return GOOD if known else NOT_KNOWN


def drift(
    name: Annotated[str | None, typer.Argument(help="InferenceService. Left out: all of the namespace.")] = None,
    all_namespaces: AllNamespacesOption = False,
    answers: Annotated[
        bool, typer.Option("--answers", help="Also ask each replica the fixed question of the output canary now.")
    ] = False,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare what is recorded with Deployments, ConfigMaps, pods, and with what each ready replica says it runs with.

    It looks now and by itself, so that it works without the operator too; of the replicas' answers it tells what the
    operator found last, unless it is to ask (two short requests to each replica). Exit code 0 in sync, 1 drifted or
    answered otherwise, 3 where a replica does not say what it runs with.

    Examples:

      paceline drift

      paceline drift chat -n demo

      paceline drift chat --answers

      paceline drift -A -o json
    """
    only_one(name, all_namespaces, namespace)

    async def work(client: AioKubeClient, chosen: str) -> int:
        objects = await patiently(services(client, chosen, name, all_namespaces), "the services")
        selector = LABEL_SERVICE if name is None else f"{LABEL_SERVICE}={derived_name(name)}"
        children = {}
        for kind in KINDS:
            listed = client.list(kind, None if all_namespaces else chosen, selector)
            children[kind] = _by_service((await patiently(listed, kind.plural)).items)
        found = await look(client, objects, children, answers)
        if output is Output.JSON:
            typer.echo(json.dumps([_as_json(one) for one in found], indent=2))
        else:
            typer.echo(_text(found) if found else "no InferenceServices")
        codes = {one.code for one in found}
        return NO if NO in codes else max(codes, default=GOOD)

    run(work, Where(namespace, kubeconfig, context))


Children = dict[Resource, dict[tuple[str, str], list[JsonObject]]]


async def look(
    client: AioKubeClient, objects: Iterable[JsonObject], children: Children, answers: bool = False
) -> list[Found]:
    """Compare services; the ready replicas of all of them are asked side by side. `answers`: for these too."""
    worlds = [(obj, _world(obj, children)) for obj in objects]
    ready = [pod for _, world in worlds if isinstance(world, World) for pod in world.pods if is_ready(pod)]
    reports = await ask(client, ready)
    found = [
        Found(obj, None, world) if isinstance(world, str) else Found(obj, compare(replace(world, reports=reports)))
        for obj, world in worlds
    ]
    said = [
        await ask_now(client, world, children[INFERENCEREVISIONS].get(_key(obj), []))
        if answers and isinstance(world, World)
        else found_by_operator(obj)
        for obj, world in worlds
    ]
    return [replace(one, answers=answer) for one, answer in zip(found, said, strict=True)]


def _world(obj: JsonObject, children: Children) -> World | str:
    """What is compared: against the revision that the operator has stored for the spec. Words where there is none."""
    revisions, deployments, config_maps, pods = (children[kind].get(_key(obj), []) for kind in KINDS)
    observed = gather(
        obj,
        read=RevisionReader(),
        revisions=revisions,
        deployments=deployments,
        config_maps=config_maps,
        pods=pods,
    )
    # A status may be away, after a restore from a backup say: then what serves by its own record.
    recorded = observed.traffic.revision if observed.traffic is not None else ""
    asked_for = observed.revision(status_of(obj).get("updatedRevision") or recorded)
    if asked_for is None:
        return "no revision has been made yet"
    if asked_for.parsed is None:
        return f"{asked_for.name} was written by a newer release, so it cannot be read"
    return world_of(observed, asked_for.pools, deployments, config_maps, pods, allowed(obj))


def _key(obj: JsonObject) -> tuple[str, str]:
    return obj["metadata"]["namespace"], derived_name(obj["metadata"]["name"])


def _by_service(objects: Iterable[JsonObject]) -> dict[tuple[str, str], list[JsonObject]]:
    found: dict[tuple[str, str], list[JsonObject]] = defaultdict(list)
    for obj in objects:
        metadata = obj["metadata"]
        found[metadata["namespace"], metadata["labels"][LABEL_SERVICE]].append(obj)
    return found


def _text(found: Sequence[Found]) -> str:
    rows = [["SERVICE", "OBJECT", "FIELD", "RECORDED", "ACTUAL"]]
    for one in found:
        items = (*(one.drift.items if one.drift is not None else ()), *(one.answers.items if one.answers else ()))
        rows += [[name_of(one.service), i.subject, i.field, i.desired, i.actual] for i in items]
    lines = [columns(rows), ""] if len(rows) > 1 else []
    for one in found:
        lines.append(f"{name_of(one.service)}: {_verdict(one)}")
        if behind(one.service):
            lines.append("  the operator has not seen the latest change of the spec yet")
        if one.answers is not None:
            lines.append(f"  answers: {one.answers.message}")
        unknown = one.drift.unknown if one.drift is not None else {}
        lines += [f"  not known: {pod} ({why})" for pod, why in sorted(unknown.items())]
    return "\n".join(lines)


def _verdict(one: Found) -> str:
    if one.drift is None:
        return f"not known: {one.why}"
    checked = one.drift.checked
    asked = "no replica is ready, so none could be asked" if one.drift.running else "no replica is there to be asked"
    if checked:
        asked = "1 replica says" if checked == 1 else f"{checked} replicas say"
        asked += " what it runs with" if checked == 1 else " what they run with"
    if one.drift.items:
        count = len(one.drift.items)
        return f"drifted, {count} {'value differs' if count == 1 else 'values differ'}; {asked}"
    if one.drift.unknown:
        return f"not known for {len(one.drift.unknown)} of {checked + len(one.drift.unknown)} ready replicas"
    return f"not known: {asked}" if one.code == NOT_KNOWN else f"in sync; {asked}"


def _as_json(one: Found) -> dict[str, Any]:
    found = one.drift
    return {
        "namespace": one.service["metadata"]["namespace"],
        "name": one.service["metadata"]["name"],
        "inSync": {GOOD: True, NO: False}.get(one.code),
        "why": one.why or None,
        "checked": None if found is None else found.checked,
        "items": None
        if found is None
        else [{"object": i.subject, "field": i.field, "recorded": i.desired, "actual": i.actual} for i in found.items],
        "unknown": {} if found is None else dict(found.unknown),
        "answers": None
        if one.answers is None
        else {
            "agree": {"True": True, "False": False}.get(one.answers.status),
            "reason": one.answers.reason,
            "message": one.answers.message,
            "items": [
                {"object": i.subject, "field": i.field, "recorded": i.desired, "actual": i.actual}
                for i in one.answers.items
            ],
        },
    }
