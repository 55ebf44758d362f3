"""The verdict on a step, of what was heard of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from paceline_shadow_traffic.evidence import Window
from paceline_shadow_traffic.verdict import ALPHA, Gate, Judged, Outcome, Question, Said, Verdict, judge

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
        pools: those of both revisions that change.
    """
    evidence, minor = major(heard.windows)
    weight = state.weight / 100 if state.step != SHADOW_STEP else None
    counted = counted or Counted(heard.since)
    # Without a pool of both revisions that changes there is nothing to hold against each other.
    compared = pools_of(counted.windows, pools)
    beside = [Question(rules.replica_gates, compared)] if rules.replica_gates and compared else []
    steps, small = judged_steps(rules, state), {place: heard.windows[place] for place in minor}
    alpha, remarks = _with_small(rules.gates, small, len(evidence), heard.since, now, steps, remarks)
    found = judge(rules.gates, evidence, heard.since, now, steps, alpha, weight=weight, beside=beside, remarks=remarks)
    trouble = "; ".join(one for one in (heard.trouble, counted.trouble) if one)
    return _told(state, heard.since, found, remarks, minor, trouble, now)


def judgement_of_answers(rules: Rules, state: State, compared: Compared, now: float) -> Judgement:
    """The verdict on the shadow step, of what a recorder said of it."""
    windows = compared.windows
    evidence, minor = major(windows)
    steps, small = judged_steps(rules, state), {place: windows[place] for place in minor}
    alpha, remarks = _with_small(rules.output_gates, small, len(evidence), compared.since, now, steps, ())
    found = judge(rules.output_gates, evidence, compared.since, now, steps, alpha, remarks=remarks)
    return _told(state, compared.since, found, remarks, minor, compared.trouble, now)


def _with_small(
    gates: Sequence[Gate],
    small: Mapping[str, Sequence[Window]],
    places: int,
    since: float,
    now: float,
    steps: int,
    remarks: Remarks,
) -> tuple[float, Remarks]:
    """The false alarms that are left for the other places, and the remarks with what is worse in small ones: a
    candidate that fails all of one kind of requests is worse, however few those are. They share the part of one place.
    """
    if not small:
        return ALPHA, remarks
    part = ALPHA / (places + 1)
    found = judge(gates, small, since, now, steps, part).findings
    return ALPHA - part, (*remarks, *((place, one) for place, one in found if one.outcome is Outcome.WORSE))


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
        words.append(f"not waited for, with few requests: {', '.join(minor)}")
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
