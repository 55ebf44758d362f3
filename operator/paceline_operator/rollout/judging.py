"""The verdict on a step, of what was heard of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline_shadow_traffic.verdict import Judged, Question, Said, Verdict, judge

from .asked import Judgement
from .comparing import Compared
from .gathering import Heard, major
from .replicas import Counted, pools_of
from .rules import Rules
from .state import SHADOW_STEP, State

Remarks = Sequence[tuple[str, Said]]
"""What others than routers and replicas' counters have to say, by place."""


def judgement(
    rules: Rules,
    state: State,
    heard: Heard,
    now: float,
    counted: Counted | None = None,
    pools: Iterable[str] = (),
    remarks: Remarks = (),
) -> Judgement:
    """The verdict on a step in which both revisions have requests.

    Args:
        counted: what replicas counted.
        pools: those that change.
    """
    evidence, minor = major(heard.windows)
    weight = state.weight / 100 if state.step != SHADOW_STEP else None
    counted = counted or Counted(heard.since)
    beside = [Question(rules.replica_gates, pools_of(counted.windows, pools))] if rules.replica_gates else []
    found = judge(
        rules.gates,
        evidence,
        heard.since,
        now,
        judged_steps(rules, state),
        weight=weight,
        beside=beside,
        remarks=remarks,
    )
    trouble = "; ".join(one for one in (heard.trouble, counted.trouble) if one)
    return _told(state, heard.since, found, remarks, minor, trouble, now)


def judgement_of_answers(rules: Rules, state: State, compared: Compared, now: float) -> Judgement:
    """The verdict on the shadow step, of what a recorder said of it."""
    evidence, minor = major(compared.windows)
    found = judge(rules.output_gates, evidence, compared.since, now, judged_steps(rules, state))
    return _told(state, compared.since, found, (), minor, compared.trouble, now)


def not_begun(state: State, now: float) -> Judgement:
    """Of a step whose traffic has not moved yet."""
    words = "its traffic has not moved yet"
    about = (state.candidate, state.generation, state.step)
    return Judgement(*about, now, Verdict.NOT_KNOWN, words, now)


def judged_steps(rules: Rules, state: State) -> int:
    """Steps of the whole rollout that share the false alarms."""
    return sum(step.weight < 100 for step in state.steps) + (rules.policy.shadow is not None)


def _told(
    state: State, since: float, found: Judged, remarks: Remarks, minor: Sequence[str], trouble: str, now: float
) -> Judgement:
    words = [found.message]
    if minor:
        words.append(f"left out for few requests: {', '.join(minor)}")
    if trouble:
        words.append(f"the last look: {trouble}")
    return Judgement(
        state.candidate,
        state.generation,
        state.step,
        since,
        found.verdict,
        "; ".join(words),
        now,
        (*found.findings, *remarks),
    )
