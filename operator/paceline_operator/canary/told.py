"""What the status says of answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paceline_crds.conditions import ConditionStatus, Reason
from paceline_operator.verdict import Verdict

from .judge import Fault, Outcome

NAMED = 3

POINTS_TO = {
    Fault.TOKENIZER: "the fixed question has other tokens, or its answer another text: look at the tokeniser's files",
    Fault.MODEL: "computed anew, the answer is another one: look at the weights, the kernels and the sampling",
    Fault.CACHE: "only what comes from the prefix cache is another one: its blocks are damaged, or of another prompt",
}


def outputs_agree(outcomes: Mapping[str, Outcome] | None) -> Verdict | None:
    """`OutputsAgree`, over the pools of a service; None before the first look."""
    if outcomes is None:
        return None
    if not outcomes:
        return Verdict(ConditionStatus.UNKNOWN, Reason.NOT_KNOWN, "no replica is ready to be asked")
    for pool, one in sorted(outcomes.items()):
        if one.faults:
            return Verdict(ConditionStatus.FALSE, _reason(one), _words(pool, one))
        if one.split:
            named = _named(one.split)
            words = f"pool {pool}: {named} contradict each other, and which of them is wrong is not known"
            return Verdict(ConditionStatus.FALSE, Reason.REPLICA_DIFFERS, words)
    unknown = {name: why for one in outcomes.values() for name, why in one.unknown.items()}
    agree = sum(len(one.agree) for one in outcomes.values())
    if unknown:
        named = "; ".join(f"{name}: {why}" for name, why in sorted(unknown.items())[:NAMED])
        more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
        words = f"{agree} replicas give the same answer, {len(unknown)} are not known ({named}{more})"
        return Verdict(ConditionStatus.UNKNOWN, Reason.NOT_KNOWN, words)
    uncached = sum(len(one.uncached) for one in outcomes.values())
    count = "1 replica gives the recorded answer" if agree == 1 else f"{agree} replicas give the recorded answer"
    cache = ", computed and from the cache"
    if uncached == agree:
        cache = "; what the cache makes of it is not known, since it had no part in any answer"
    elif uncached:
        cache = f"; of {uncached} it is not known what the cache makes of it"
    return Verdict(ConditionStatus.TRUE, Reason.SAME_ANSWER, f"{count}{cache}")


def _reason(one: Outcome) -> Reason:
    if one.everywhere in (Fault.MODEL, Fault.TOKENIZER):
        return Reason.ANSWER_CHANGED
    if set(one.faults.values()) == {Fault.CACHE}:
        return Reason.CACHE_CONTAMINATED
    return Reason.REPLICA_DIFFERS


def _words(pool: str, one: Outcome) -> str:
    first = next(iter(one.faults.values()))
    names = [name for name, fault in one.faults.items() if fault is first]
    whole = one.everywhere is not None
    who = f"all {len(names)} replicas that answered" if whole and len(names) > 1 else _named(names)
    others = len(one.faults) - len(names)
    more = f"; {others} more differ otherwise" if others else ""
    assert one.reference is not None, "a fault is one against something"
    beside = "" if whole else f", while {len(one.agree)} give the recorded one ({one.reference.tokens})"
    return f"pool {pool}: {who}: {POINTS_TO[first]}{beside}{more}"


def _named(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return ", ".join(listed[:NAMED]) + more
