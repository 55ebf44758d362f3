"""Which replica answers otherwise, and what that points to. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

CONFIRMED = 2
"""Looks in a row that find a fault before it is told: sums in another batch may once have chosen another token."""

ONCE = "it answered otherwise and is asked again"


@dataclass(frozen=True, slots=True)
class Answer:
    """What all replicas of a pool hash say, as hashes: of the prompt's tokens, the answer's tokens, and its text."""

    prompt: str
    tokens: str
    text: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What one replica said.

    Attributes:
        computed: the answer with nothing from the cache.
        warm: hash of the answer's tokens with the prompt from the cache; empty where nothing came from there.
    """

    computed: Answer
    warm: str = ""


class Failed(str):
    """In words, why a replica that was ready and free gave no answer. Other words are about what may well be."""

    __slots__ = ()


class Fault(enum.StrEnum):
    """What an answer that changed points to.

    TOKENIZER: the question became other tokens, or the same tokens another text.
    MODEL: computed anew, the same tokens are answered otherwise: weights, kernels or sampling.
    CACHE: only the answer that the prefix cache has a part in is another one.
    """

    TOKENIZER = "Tokenizer"
    MODEL = "Model"
    CACHE = "Cache"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of the replicas of one pool hash.

    Attributes:
        reference: what they are held against; None where nobody has answered, or as many say one thing as another.
        agree: replicas that say it.
        faults: those that do not.
        unknown: those that could not be judged, with the reason.
        uncached: of those that agree, the ones whose cache had no part in any answer.
        split: halves that contradict each other: one of them is wrong, and which is not known.
    """

    reference: Answer | None = None
    agree: frozenset[str] = frozenset()
    faults: Mapping[str, Fault] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    uncached: frozenset[str] = frozenset()
    split: frozenset[str] = frozenset()

    @property
    def everywhere(self) -> Fault | None:
        """The fault that every replica shares that has answered; None where some have none, or another one."""
        kinds = set(self.faults.values())
        return kinds.pop() if len(kinds) == 1 and not self.agree and not self.split else None


def judge(readings: Mapping[str, Reading | str], recorded: Answer | None) -> Outcome:
    """Hold readings against what was recorded, or where nothing was against what most of them say.

    Args:
        readings: by name of the replica; in words, why there is none.
        recorded: the answer of this pool hash as it was first agreed upon.
    """
    said = {name: one for name, one in readings.items() if isinstance(one, Reading)}
    unknown = {name: one for name, one in readings.items() if isinstance(one, str)}
    reference = recorded or _of_most(one.computed for one in said.values())
    if reference is None:
        return Outcome(unknown=unknown, split=frozenset(said))
    found = {name: fault_of(one, reference) for name, one in said.items()}
    agree = frozenset(name for name, fault in found.items() if fault is None)
    return Outcome(
        reference=reference,
        agree=agree,
        faults={name: fault for name, fault in sorted(found.items()) if fault is not None},
        unknown=unknown,
        uncached=frozenset(name for name in agree if not said[name].warm),
    )


def fault_of(reading: Reading, reference: Answer) -> Fault | None:
    """What is wrong with one reading; None: nothing."""
    computed = reading.computed
    if computed.prompt != reference.prompt:
        return Fault.TOKENIZER
    if computed.tokens != reference.tokens:
        return Fault.MODEL
    if computed.text != reference.text:
        return Fault.TOKENIZER
    if reading.warm and reading.warm != computed.tokens:
        return Fault.CACHE
    return None


Doubts = Mapping[str, tuple[Fault, int]]
"""Faults that were seen, by replica, and in how many looks in a row."""


def confirmed(outcome: Outcome, doubts: Doubts, asked: Iterable[str]) -> tuple[Outcome, dict[str, tuple[Fault, int]]]:
    """What may be told: a fault that was seen only once is not known yet. And the doubts for the next look.

    Args:
        asked: replicas that were asked anew for this look; others say what they said before.
    """
    fresh = set(asked)
    now = {}
    for name, fault in outcome.faults.items():
        before, times = doubts.get(name, (fault, 0))
        now[name] = fault, (times if before is fault else 0) + (name in fresh or not times)
    single = {name: ONCE for name, (_, times) in now.items() if times < CONFIRMED}
    faults = {name: fault for name, fault in outcome.faults.items() if name not in single}
    return replace(outcome, faults=faults, unknown={**outcome.unknown, **single}), now


def _of_most(answers: Iterable[Answer]) -> Answer | None:
    """What more than half say."""
    counts = Counter(answers)
    first = counts.most_common(1)
    return first[0][0] if first and 2 * first[0][1] > counts.total() else None
