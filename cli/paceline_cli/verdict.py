"""`paceline verdict`: whether a revision is worse than the one before it, for people and for pipelines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from paceline_kube import Forbidden, JsonObject, KubeClient
from paceline_shadow_traffic.verdict import Verdict

from .connection import (
    NOT_KNOWN,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    Output,
    OutputOption,
    Stop,
    Where,
    run,
)
from .revisions import Kept, kept_of
from .services import behind, name_of, service, serving, status_of
from .tables import age, indented, seconds_of, shortened

STALE_SECONDS = 180.0
"""A verdict on a step that is under way is given anew every minute; an older one says that nobody judges any more."""


GLANCE_CHARACTERS = 400
"""Of a verdict in `paceline status`; `paceline verdict` has all of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said of a revision.

    Attributes:
        told: the verdict as it is kept with the revision; empty where there is none.
    """

    verdict: Verdict
    words: str
    told: Mapping[str, Any]


def verdict(
    name: Annotated[str, typer.Argument(help="InferenceService.")],
    revision: Annotated[
        str | None,
        typer.Option(help="A kept revision. Default: the one that is rolled out, else the one that is asked for."),
    ] = None,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Whether a revision is worse than the one before it, by the gates of its rollout (spec.rollout.gates).

    Exit code 0: it passed; 1: it failed, or was rolled back; 3: not known (yet); 4: the cluster cannot be reached.
    While a step is under way the answer is about this step.

    Examples:

      paceline verdict chat

      paceline verdict chat --revision chat-7f3c9a1b2c -o json
    """

    async def work(client: KubeClient, chosen: str) -> int:
        obj = await service(client, chosen, name)
        kept = choose(obj, await kept_of(client, obj), revision)
        said = answer(obj, kept, time.time())
        if output is Output.JSON:
            typer.echo(json.dumps(_as_json(obj, kept, said), indent=2))
        else:
            typer.echo("\n".join(_lines(obj, kept, said, time.time())))
        return said.verdict.exit_code

    run(work, Where(namespace, kubeconfig, context))


async def under_way(client: KubeClient, obj: JsonObject, now: float) -> str | None:
    """What is known of the revision that a service rolls out now, in a sentence; None where there is none.

    Args:
        now: seconds since the epoch.
    """
    rollout = status_of(obj).get("rollout") or {}
    if rollout.get("phase") not in ("Shadow", "Judging"):
        return None
    try:
        kept = next((one for one in await kept_of(client, obj) if one.name == rollout.get("revision")), None)
    except Forbidden:
        return "not known (you may not read inferencerevisions here)"
    if kept is None:
        return None
    said = answer(obj, kept, now)
    return f"{said.verdict}: {shortened(said.words, GLANCE_CHARACTERS)}"


def choose(obj: JsonObject, kept: list[Kept], revision: str | None) -> Kept:
    """The revision that is asked about.

    Raises:
        Stop: there is none of this name, or none at all.
    """
    status, name = status_of(obj), obj["metadata"]["name"]
    if revision is None and behind(obj):
        raise Stop(f"the operator has not seen the latest change of {name_of(obj)} yet", NOT_KNOWN)
    wanted = revision or (status.get("rollout") or {}).get("revision") or status.get("updatedRevision")
    found = next((one for one in kept if wanted is not None and one.name in (wanted, f"{name}-{wanted}")), None)
    if found is None:
        names = ", ".join(one.name for one in kept) or "none"
        raise Stop(f"revision {wanted or ''} of {name_of(obj)} is not kept; kept are: {names}", NOT_KNOWN)
    return found


def answer(obj: JsonObject, kept: Kept, now: float) -> Answer:
    """What is known of a revision. Pure.

    Args:
        now: seconds since the epoch.
    """
    told: Mapping[str, Any] = kept.verdict
    rollout = status_of(obj).get("rollout") or {}
    if rollout.get("revision") == kept.name:
        return _under_way(obj, rollout, told, now)
    if serving(obj) != kept.name and kept.timeline and kept.timeline[-1].get("reason") == "RolledBack":
        return Answer(Verdict.FAIL, f"it was rolled back: {kept.timeline[-1].get('message', '')}", told)
    if not told:
        return Answer(Verdict.NOT_KNOWN, "no rollout by steps has judged it", told)
    return Answer(_verdict(told), str(told.get("message") or ""), told)


def _under_way(obj: JsonObject, rollout: Mapping[str, Any], told: Mapping[str, Any], now: float) -> Answer:
    phase, words = rollout.get("phase"), str(rollout.get("message") or "")
    if phase in ("Idle", "RollingBack", "Held"):
        return Answer(Verdict.FAIL, f"{rollout.get('reason')}: {words}", told)
    if phase == "Blocked":
        return Answer(Verdict.NOT_KNOWN, f"it cannot begin: {words}", told)
    if phase == "Finishing" and told:
        return Answer(_verdict(told), str(told.get("message") or ""), told)
    generation = (status_of(obj).get("traffic") or {}).get("generation")
    step = f"step {rollout.get('step')} of {rollout.get('steps')}"
    if not told or (told.get("generation"), told.get("step")) != (generation, rollout.get("step")):
        return Answer(Verdict.NOT_KNOWN, f"{step} is not judged yet ({phase}: {words})", told)
    at = seconds_of(told.get("at"))
    if at is None or now - at > STALE_SECONDS:
        return Answer(Verdict.NOT_KNOWN, f"the verdict on {step} is {age(at, now)} old: nobody judges it now", told)
    return Answer(_verdict(told), str(told.get("message") or ""), told)


def _verdict(told: Mapping[str, Any]) -> Verdict:
    try:
        return Verdict(str(told.get("verdict")))
    except ValueError:
        return Verdict.NOT_KNOWN


def _lines(obj: JsonObject, kept: Kept, said: Answer, now: float) -> Iterator[str]:
    yield f"{name_of(obj)} {kept.name}: {said.verdict}: {said.words}"
    if not said.told:
        return
    told = said.told
    judged = f"{age(seconds_of(told.get('at')), now)} ago"
    yield f"judged {judged} at step {told.get('step')} ({told.get('weight')} %), against {told.get('base')}"
    gates = told.get("gates") or ()
    if gates:
        rows = [["PLACE", "SIGNAL", "OUTCOME", "NUMBERS"]]
        rows += [[str(gate.get(key) or "") for key in ("place", "signal", "outcome", "message")] for gate in gates]
        yield indented(rows)
    prospects = told.get("prospects") or ()
    if prospects:
        rows = [["PLACE", "SIGNAL", "WHAT THE STEP CAN FIND OUT, COMPUTED BEFORE IT"]]
        rows += [[str(one.get(key) or "") for key in ("place", "signal", "message")] for one in prospects]
        yield indented(rows)


def _as_json(obj: JsonObject, kept: Kept, said: Answer) -> dict[str, Any]:
    return {
        "service": name_of(obj),
        "revision": kept.name,
        "verdict": said.verdict,
        "message": said.words,
        "rollout": status_of(obj).get("rollout"),
        "judged": dict(said.told) or None,
        "timeline": [dict(one) for one in kept.timeline],
    }
