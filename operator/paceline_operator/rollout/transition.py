"""One edge of a rollout: `transition(state, asked, seen, now)`. Pure; it advances on what is seen, never on what was
done.

    IDLE -> (BLOCKED) -> PREPARING -> SHADOW -> PREPARING -> MOVING -> JUDGING -> PREPARING -> ... -> FINISHING -> IDLE
    any of them with a candidate -> ROLLING_BACK -> IDLE

Rules that hold at every edge (and are tested so): at most two revisions have traffic; the candidate's share rises only
from a step that passed, or by an order, or where `onNotKnown: Continue` says so (the first share follows the shadow
step, or readiness where there is none); its replicas are there before and are kept until every router has left them;
and the way back is open from everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline_crds.rollout import OnBreach, OnNotKnown, OrderAction
from paceline_shadow_traffic.verdict import Verdict

from .asked import Asked, Order, Policy, Seen, Step
from .capacity import Way, fit
from .state import SHADOW_STEP, Phase, State, at, with_weight

ITSELF = "paceline"

SKEW_SECONDS = 30.0
"""By which two leaders' clocks may differ, and nothing is made of it."""

JUDGED = frozenset({Phase.SHADOW, Phase.MOVING, Phase.JUDGING, Phase.PREPARING, Phase.FINISHING})
"""Phases in which a verdict that fails sends the traffic back."""

SUPERSEDED = "Superseded"
"""Reason of a revision that another spec has left."""

BASE_SHORT = "BaseShort"
"""Reason of a step that waits for replicas of the base."""

ORDERED = frozenset({OrderAction.PROMOTE.value, OrderAction.SKIP.value})
"""Reasons of a step that a person wants now."""


@dataclass(frozen=True, slots=True)
class Record:
    """A decision, for the history and an event.

    Attributes:
        weight: the revision's whole percent, 100 once it is the base.
        who: `paceline`, or who gave the order.
        message: a sentence with the numbers.
    """

    at: float
    revision: str
    before: Phase
    after: Phase
    weight: int
    who: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Next:
    """Where it goes: the same state, and no record, where nothing is due."""

    state: State
    record: Record | None = None


def transition(state: State, asked: Asked, seen: Seen, now: float) -> Next:
    """The edge that is due now, if any; call it again until none is.

    Args:
        now: seconds since the epoch.
    """
    after, who = _next(state, asked, seen, now)
    if after == state:
        return Next(state)
    after = replace(after, by="" if who == ITSELF else who)
    revision = after.candidate or state.candidate or asked.revision
    weight = 100 if revision == after.base else after.weight
    return Next(after, Record(now, revision, state.phase, after.phase, weight, who, after.reason, after.message))


def _next(state: State, asked: Asked, seen: Seen, now: float) -> tuple[State, str]:
    if state.phase in (Phase.IDLE, Phase.BLOCKED):
        return _begin(state, asked, seen, now)
    if state.since > now + SKEW_SECONDS:
        return _counted_anew(state, now), ITSELF
    if state.phase is Phase.ROLLING_BACK:
        return _roll_back(state, asked, seen, now)
    if (stopped := _stopped(state, asked, seen, now)) is not None:
        return stopped
    return _step(state, asked, seen, now), ITSELF


# --- beginning -------------------------------------------------------------------------------------------------------


def _begin(state: State, asked: Asked, seen: Seen, now: float) -> tuple[State, str]:
    order = _order(state, asked, asked.revision)
    if asked.revision == state.base:
        if state.phase is Phase.IDLE and not state.rejected:
            return state, ITSELF
        return replace(state, phase=Phase.IDLE, rejected="", reason="AsAsked", message=""), ITSELF
    if order is not None and order.action is OrderAction.ABORT:
        aborted = replace(state.following(order), phase=Phase.IDLE, rejected=asked.revision)
        return replace(aborted, reason="Aborted", message=_said(order)), order.who
    if asked.revision == state.rejected and order is None:
        # A rollback of a rollback is a person's decision.
        return state, ITSELF
    if seen.total <= 0:
        taken = replace(state.serving(asked.revision), generation=state.generation + 1)
        return at(taken, Phase.IDLE, now, "TakenAtZero", "the service is at zero; its next start uses it"), ITSELF
    capacity = fit(asked.policy, seen.total, seen.free, seen.pools)
    if order is not None and capacity.way is Way.NOT_KNOWN:
        # A person says that there is room; where there is none, the scheduler says so before any traffic moves.
        capacity = replace(capacity, way=Way.SURGE)
    if asked.paused or capacity.way in (Way.REFUSED, Way.NOT_KNOWN):
        reason = "Paused" if asked.paused else {Way.REFUSED: "NoRoom", Way.NOT_KNOWN: "RoomNotKnown"}[capacity.way]
        message = "spec.rollout.paused is true" if asked.paused else capacity.message
        if (state.phase, state.reason) == (Phase.BLOCKED, reason):
            return state, ITSELF
        return at(state, Phase.BLOCKED, now, reason, message), ITSELF
    first = 0 if asked.policy.shadow is None else SHADOW_STEP
    begun = replace(
        state,
        candidate=asked.revision,
        step=first,
        weight=0,
        steps=capacity.steps,
        way=capacity.way,
        begun=now,
        rejected="",
    )
    words = capacity.message
    if order is not None:
        begun, words = _ordered(begun, order), f"{_said(order)}; {words}"
    return at(begun, Phase.PREPARING, now, "Begun", words), _who(order)


def _counted_anew(state: State, now: float) -> State:
    """The phase of a rollout that seems to begin only in a while: a clock went back. To wait until it is there again
    would be to take no verdict for as long.
    """
    words = f"the clock went back by {state.since - now:.0f} s: the time of this phase counts anew"
    return replace(at(state, state.phase, now, state.reason, words), begun=min(state.begun, now))


# --- going on --------------------------------------------------------------------------------------------------------


def _step(state: State, asked: Asked, seen: Seen, now: float) -> State:
    if seen.total <= 0 and state.weight and state.phase is not Phase.HELD:
        # No requests, no replicas: the step is begun anew when there are some again.
        words = "the service is at zero; the step begins anew when it wakes"
        return at(with_weight(state, 0), Phase.PREPARING, now, "AtZero", words)
    match state.phase:
        case Phase.PREPARING:
            return _prepared(state, asked, seen, now)
        case Phase.MOVING:
            if not _followed(state, seen):
                return state
            last = state.weight == 100
            phase = Phase.FINISHING if last else Phase.JUDGING
            return at(state, phase, now, "Followed", f"every router follows generation {state.generation}")
        case Phase.SHADOW | Phase.JUDGING:
            return _judged(state, asked, seen, now)
        case Phase.FINISHING:
            if asked.paused or now - state.since < state.steps[-1].hold:
                return state
            return _finished(state, now)
        case _:
            return state


def _prepared(state: State, asked: Asked, seen: Seen, now: float) -> State:
    needed = state.replicas(seen.total).candidate
    if seen.total <= 0 or seen.ready.get(state.candidate, 0) < needed:
        return state
    if state.step == SHADOW_STEP:
        return at(state, Phase.SHADOW, now, "Shadowing", f"replicas ready for copies of requests: {needed}")
    if asked.paused:
        return state
    if (short := _short(state, seen, now)) is not None:
        return short
    step = state.steps[state.step]
    moved = with_weight(state, step.weight)
    return at(moved, Phase.MOVING, now, "Moving", f"replicas ready for {step.weight} %: {needed}")


def _short(state: State, seen: Seen, now: float) -> State | None:
    """Stay, as long as a step may take, where the base lacks replicas: it would be held to less than it is, and give up
    replicas beside those that it lost. None: go on, as where a person wants the step now.
    """
    whole, ready = state.replicas(seen.total).base, seen.ready.get(state.base, 0)
    over = state.reason in ORDERED or now - state.since >= state.steps[state.step].most
    if over or not 0 < ready < whole:
        return None
    words = f"{ready} of {whole} replicas of {state.base} are ready; it goes on when all are, or by an order"
    return state if state.reason == BASE_SHORT else replace(state, reason=BASE_SHORT, message=words)


def _judged(state: State, asked: Asked, seen: Seen, now: float) -> State:
    step = _times(state, asked.policy)
    verdict, message = _verdict(state, seen)
    spent = now - state.since
    if asked.paused or spent < step.hold:
        return state
    if verdict is Verdict.PASS:
        return _onward(state, now, "Passed", message)
    if spent < step.most or verdict is Verdict.FAIL:
        return state
    match asked.policy.on_not_known:
        case OnNotKnown.CONTINUE:
            return _onward(state, now, "NotKnown", f"onNotKnown is Continue: {message}")
        case OnNotKnown.ROLLBACK:
            return _back(state, seen, now, "NotKnown", f"onNotKnown is Rollback: {message}")
        case OnNotKnown.PAUSE:
            # Stays where it is, and a later verdict still counts.
            return state if state.reason == "NotKnown" else replace(state, reason="NotKnown", message=message)


def _onward(state: State, now: float, reason: str, message: str) -> State:
    return at(replace(state, step=state.step + 1), Phase.PREPARING, now, reason, message)


def _finished(state: State, now: float) -> State:
    done = state.serving(state.candidate)
    return at(done, Phase.IDLE, now, "Finished", f"{state.candidate} serves; {state.base} is let go")


# --- stopping --------------------------------------------------------------------------------------------------------


def _stopped(state: State, asked: Asked, seen: Seen, now: float) -> tuple[State, str] | None:
    """What ends or turns a rollout, strongest first; None where nothing does."""
    if asked.revision != state.candidate:
        if asked.revision != state.base and state.phase is Phase.FINISHING:
            return _finished(state, now), ITSELF
        reverted = asked.revision == state.base
        reason = "Reverted" if reverted else SUPERSEDED
        return _back(state, seen, now, reason, f"the spec asks for {asked.revision} now"), ITSELF
    order = _order(state, asked, state.candidate)
    if order is not None and order.action is OrderAction.ABORT:
        return _back(state.following(order), seen, now, "Aborted", _said(order)), order.who
    if seen.broken is not None:
        return _back(state, seen, now, "CandidateBroken", seen.broken), ITSELF
    if seen.total > 0 and state.weight and not seen.ready.get(state.candidate, 0):
        return _back(state, seen, now, "CandidateGone", "no replica of the candidate is ready"), ITSELF
    verdict, message = _verdict(state, seen)
    if verdict is Verdict.FAIL and state.phase in JUDGED:
        if asked.policy.on_breach is OnBreach.PAUSE and order is None:
            return at(state, Phase.HELD, now, "GateWorse", message), ITSELF
        if asked.policy.on_breach is OnBreach.ROLLBACK:
            return _back(state, seen, now, "GateWorse", message), ITSELF
    if order is not None and state.phase is Phase.FINISHING:
        return _finished(state.following(order), now), order.who
    if order is not None:
        went = _ordered(state, order)
        return at(went, Phase.PREPARING, now, order.action, _said(order)), order.who
    return None


def _back(state: State, seen: Seen, now: float, reason: str, message: str) -> State:
    return _traffic_back(at(state, Phase.ROLLING_BACK, now, reason, message), seen)


def _traffic_back(state: State, seen: Seen) -> State:
    """All traffic to the base, as soon as it has a replica, or when the candidate has none either."""
    if seen.ready.get(state.base, 0) or not seen.ready.get(state.candidate, 0):
        return with_weight(state, 0)
    return state


def _roll_back(state: State, asked: Asked, seen: Seen, now: float) -> tuple[State, str]:
    order = _order(state, asked, state.candidate)
    if order is not None and order.action is not OrderAction.ABORT and asked.revision == state.candidate:
        return at(_ordered(state, order), Phase.PREPARING, now, order.action, _said(order)), order.who
    if state.weight:
        return _traffic_back(state, seen), ITSELF
    if not _followed(state, seen):
        return state, ITSELF
    # A revision that the spec has left may be asked for again; one that it still asks for was found wanting.
    rejected = state.candidate if asked.revision == state.candidate else ""
    done = replace((state if order is None else state.following(order)).serving(state.base), rejected=rejected)
    return at(done, Phase.IDLE, now, "RolledBack" if rejected else state.reason, state.message), ITSELF


# --- reading ---------------------------------------------------------------------------------------------------------


def _order(state: State, asked: Asked, revision: str) -> Order | None:
    order = asked.order
    return order if order is not None and not state.followed(order) and order.revision == revision else None


def _ordered(state: State, order: Order) -> State:
    """Promote goes to the last step. Skip waits no longer: from a step that is judged it goes to the next one; what has
    not begun, or gets ready for a step already, goes to just that one.
    """
    last = len(state.steps) - 1
    waits = state.phase in (Phase.IDLE, Phase.BLOCKED, Phase.PREPARING)
    step = last if order.action is OrderAction.PROMOTE else state.step if waits else min(state.step + 1, last)
    return replace(state.following(order), step=step)


def _said(order: Order) -> str:
    return f"{order.action} by {order.who}: {order.why}"


def _who(order: Order | None) -> str:
    return ITSELF if order is None else order.who


def _followed(state: State, seen: Seen) -> bool:
    return seen.acknowledged is not None and seen.acknowledged >= state.generation


def _verdict(state: State, seen: Seen) -> tuple[Verdict, str]:
    said = seen.judgement
    about = (state.candidate, state.generation, state.step)
    if said is None or (said.revision, said.generation, said.step) != about or said.since < state.begun:
        return Verdict.NOT_KNOWN, "there is no verdict on this step"
    if said.verdict is Verdict.PASS and said.since < state.since:
        return Verdict.NOT_KNOWN, "the verdict is on what was before this step"
    return said.verdict, said.message


def _times(state: State, policy: Policy) -> Step:
    if state.step == SHADOW_STEP:
        return policy.shadow or Step(1, 0.0, 0.0)
    return state.steps[state.step]
