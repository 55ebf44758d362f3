"""The output canary as a gate: do the candidate's replicas answer the fixed question as they should. Pure.

It is of one version by itself: another model answers otherwise, and rightly. See `paceline_operator.canary`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from paceline_crds.rollout import GateSignal
from paceline_operator.canary.judge import Fault, Outcome
from paceline_operator.canary.told import POINTS_TO
from paceline_shadow_traffic.verdict import Outcome as Says
from paceline_shadow_traffic.verdict import Remark

NAME = GateSignal.OUTPUT_CANARY.value


def canaried(
    outcomes: Mapping[str, Outcome] | None, base: Collection[str], candidate: Collection[str], asked_for: bool
) -> Remark | None:
    """What the canary says of one pool; None where it has nothing to say.

    A fault that was seen twice is worse, whoever asked. What is not known, only a gate that was asked for tells.

    Args:
        outcomes: of all replicas of the service; None before the first was asked.
        base, candidate: names of the ready replicas of each.
        asked_for: the rollout has a gate on it.
    """
    found = list((outcomes or {}).values())
    faults = {name: fault for one in found for name, fault in one.faults.items()}
    wrong = {name: faults[name] for name in sorted(candidate) if name in faults}
    shared = {fault for name, fault in faults.items() if name in base}
    own = {name: fault for name, fault in wrong.items() if fault not in shared}
    if own:
        return _remark(Says.WORSE, _reason(own), f"is worse: {_words(own, len(candidate))}")
    if not asked_for:
        return None
    if wrong:
        return _remark(Says.NOT_KNOWN, "BaseToo", f"is not known: the old revision's too: {_words(wrong, len(wrong))}")
    agree = {name for one in found for name in one.agree}
    open_ones = sorted(set(candidate) - agree)
    if open_ones or not candidate:
        why = {name: words for one in found for name, words in one.unknown.items()}
        split = {name for one in found for name in one.split}
        first = open_ones[0] if open_ones else ""
        words = "its replicas contradict each other" if first in split else why.get(first, "it was not asked yet")
        named = f"{first}: {words}" if first else "no replica is ready"
        return _remark(Says.NOT_KNOWN, "NotAsked", f"is not known of {len(open_ones)} of {len(candidate)}: {named}")
    return _remark(Says.NO_WORSE, "SameAnswer", f"is no worse: all {len(candidate)} give the recorded answer")


def _remark(outcome: Says, reason: str, words: str) -> Remark:
    return Remark(NAME, outcome, reason, f"{NAME} {words}")


def _reason(faults: Mapping[str, Fault]) -> str:
    return f"{next(iter(faults.values()))}Fault"


def _words(faults: Mapping[str, Fault], of: int) -> str:
    name, fault = next(iter(faults.items()))
    return f"{len(faults)} of {of} replicas answer otherwise, {name} for one: {POINTS_TO[fault]}"
