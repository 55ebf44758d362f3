"""A rollout as the status of the service tells it, and as the status of its revision keeps it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from paceline_crds.revision import GateStatus, ProspectStatus, RevisionRollout, RolloutEvent, VerdictStatus
from paceline_crds.status import RolloutStatus, ShadowTraffic
from paceline_kube import JsonObject, Key, key_of
from paceline_operator.observed import Observed, Ownership

from .asked import Judgement
from .rules import Rules
from .state import Phase, State
from .transition import ITSELF, SUPERSEDED, Record

MOST_EVENTS = 40
MOST_GATES = 64
MESSAGE_CHARACTERS = 2000
RETELL_SECONDS = 60.0
"""After which the numbers of a verdict that stays the same are written anew."""


def rollout_status(
    state: State | None, asked: str, judgement: Judgement | None, waiting: Sequence[str] = ()
) -> RolloutStatus | None:
    """The entry in the status of the service; None where nothing is rolled out, refused or rejected.

    Live numbers are not in it: it changes when a decision does.

    Args:
        asked: the revision that the spec asks for.
        waiting: pools that change after this rollout.
    """
    if state is None or not (state.candidate or state.rejected or state.phase is Phase.BLOCKED):
        return None
    under_way = bool(state.candidate)
    said = judgement if judgement is not None and _is_about(judgement, state) else None
    return RolloutStatus(
        revision=state.candidate or state.rejected or asked,
        phase=state.phase.value,
        step=state.step + 1 if under_way else None,
        steps=len(state.steps) if under_way else None,
        weight=state.weight,
        since=stamp(state.since) if state.since else None,
        verdict=said.verdict.value if said is not None else None,
        waiting_pools=list(waiting) or None,
        prospect=said.prospect[:MESSAGE_CHARACTERS] or None if said is not None else None,
        reason=state.reason,
        message=state.message[:MESSAGE_CHARACTERS],
    )


def shadow_status(state: State | None, percent: int, rules: Rules | None, recorder: str) -> ShadowTraffic | None:
    """Which requests routers copy to the candidate. None at all where no recorder takes what comes of them."""
    if state is None or not state.shadows or not percent or not recorder:
        return None
    opt_out = list(rules.opt_out) if rules is not None and rules.opt_out else None
    return ShadowTraffic(revision=state.candidate, percent=percent, opt_out_tenants=opt_out, recorder=recorder)


def told_of(services: Iterable[JsonObject]) -> dict[Key, Mapping[str, Any]]:
    """The entries of all services that have one."""
    found = ((key_of(service), (service.get("status") or {}).get("rollout")) for service in services)
    return {key: told for key, told in found if isinstance(told, Mapping)}


def _is_about(judgement: Judgement, state: State) -> bool:
    said = (judgement.revision, judgement.generation, judgement.step)
    return said == (state.candidate, state.generation, state.step)


def rollout_of(obj: Mapping[str, Any]) -> RevisionRollout | None:
    """What the status of a revision says of its rollout; None where it says nothing, or in another form."""
    found = (obj.get("status") or {}).get("rollout")
    if not found:
        return None
    try:
        return RevisionRollout.model_validate(found, extra="ignore")
    except ValidationError:
        return None


def with_event(kept: RevisionRollout | None, record: Record) -> RevisionRollout:
    """With a decision at the end of its timeline."""
    before = (kept.timeline if kept is not None else None) or []
    event = RolloutEvent(
        at=stamp(record.at),
        phase=record.after.value,
        weight=record.weight,
        by=record.who,
        reason=record.reason,
        message=record.message[:MESSAGE_CHARACTERS],
    )
    return RevisionRollout(verdict=kept.verdict if kept is not None else None, timeline=[*before, event][-MOST_EVENTS:])


def untold(observed: Observed, asked: str, staged: bool) -> dict[str, RevisionRollout]:
    """What is to be kept of revisions whose last decision was taken and not kept, as by a process that ended just then.

    A decision is in the record of the traffic first, and then in the timeline. So the timeline is behind by one at the
    most, where this is asked before the next one is taken.

    Args:
        asked: the revision that the spec asks for.
        staged: the spec asks for a rollout by steps. Revisions that it left before they were begun are told of then.
    """
    traffic = observed.traffic
    if traffic is None:
        return {}
    state = traffic.rollout or State(traffic.revision, since=traffic.moved_at)
    about = asked if state.phase is Phase.BLOCKED else state.candidate or state.rejected
    found = {}
    for view in observed.revisions:
        if view.owner is Ownership.FOREIGN:
            continue
        last = next(reversed((view.rollout.timeline if view.rollout is not None else None) or []), None)
        if view.name == about != state.base:
            missing = _decision(view.name, state)
        elif last is not None and last.phase not in (Phase.IDLE, Phase.BLOCKED):
            missing = _end(view.name, last, state)
        elif staged and last is None and view.traffic is None and view.name not in (asked, state.base):
            words = f"the spec asks for {asked} now; it was not begun"
            missing = Record(state.since, view.name, state.phase, Phase.IDLE, 0, ITSELF, SUPERSEDED, words)
        else:
            continue
        if last is None or (last.phase, last.weight, last.reason) != (missing.after, missing.weight, missing.reason):
            found[view.name] = with_event(view.rollout, missing)
    return found


def _decision(revision: str, state: State) -> Record:
    who, phase = state.by or ITSELF, state.phase
    return Record(state.since, revision, phase, phase, state.weight, who, state.reason, state.message)


def _end(revision: str, last: RolloutEvent, state: State) -> Record:
    """Of a rollout that the record knows nothing of any more: it serves, or went back for the reason that was given."""
    if revision == state.base:
        return Record(state.since, revision, state.phase, Phase.IDLE, 100, ITSELF, "Finished", f"{revision} serves")
    return Record(state.since, revision, state.phase, Phase.IDLE, 0, ITSELF, last.reason, last.message)


def with_verdict(kept: RevisionRollout | None, judgement: Judgement, state: State) -> RevisionRollout | None:
    """With a verdict; None where that is not worth a write."""
    before = kept.verdict if kept is not None else None
    if not _is_about(judgement, state):
        return None
    said = verdict_status(judgement, state)
    if before is not None:
        same = (before.verdict, before.generation, before.step) == (said.verdict, said.generation, said.step)
        age = judgement.at - datetime.fromisoformat(before.at).timestamp()
        if same and age < RETELL_SECONDS:
            return None
    return RevisionRollout(verdict=said, timeline=kept.timeline if kept is not None else None)


def verdict_status(judgement: Judgement, state: State) -> VerdictStatus:
    """A verdict as it is kept. What decided comes first: worse, then not known."""
    order = {"Worse": 0, "NotKnown": 1}
    findings = sorted(judgement.findings, key=lambda one: order.get(one[1].outcome, 2))
    return VerdictStatus(
        verdict=judgement.verdict.value,
        message=judgement.message[:MESSAGE_CHARACTERS],
        base=state.base,
        generation=judgement.generation,
        step=judgement.step + 1,
        weight=state.weight,
        since=stamp(judgement.since),
        at=stamp(judgement.at),
        gates=[
            GateStatus(
                place=place,
                signal=found.name,
                outcome=found.outcome.value,
                reason=found.reason,
                message=found.message[:MESSAGE_CHARACTERS],
            )
            for place, found in findings[:MOST_GATES]
        ],
        prospects=[
            ProspectStatus(
                place=one.place,
                signal=one.name,
                seconds=None if one.seconds is None else math.ceil(one.seconds),
                detectable=None if one.detectable is None else f"{one.detectable:.3g}",
                message=one.message[:MESSAGE_CHARACTERS],
            )
            for one in judgement.foreseen[:MOST_GATES]
        ]
        or None,
    )


def stamp(seconds: float) -> str:
    """RFC 3339 in UTC, whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
