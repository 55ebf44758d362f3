"""What a pool's knobs should be now, why, and with which numbers. Pure: time is a parameter, memory a value.

Where answers come slower than promised, prompts get smaller pieces of a step, then steps become smaller, then fewer
requests run at a time. Where requests wait while answers come with time to spare, the other way round. One knob at a
time, one step, and then a pause in which it is measured what that did: a step that was of no use, or did harm, is taken
back and not tried again for a while. What is not known changes nothing.

A tight knob has a price: steps do less, and who is not let in waits. So nothing is tightened while requests wait too
long, and where they do behind a knob that was tightened it is loosened again. Too long is what misses the promise for
the first token; where there is none, more than a few requests that wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TypeAlias

from paceline_crds.tuning import Knob

from .samples import NotANumber, Present, Sample, why_unknown

TIGHTEN = (Knob.PREFILL_CHUNK_TOKENS, Knob.MAX_BATCHED_TOKENS, Knob.MAX_NUM_SEQS)
"""Order in which answers are made faster: what costs throughput least goes first."""

LOOSEN = tuple(reversed(TIGHTEN))

GRAIN: Mapping[Knob, int] = {Knob.MAX_NUM_SEQS: 1, Knob.MAX_BATCHED_TOKENS: 16, Knob.PREFILL_CHUNK_TOKENS: 16}
"""Values between the ends of a range are multiples of this."""

Values: TypeAlias = Mapping[Knob, int]
Direction: TypeAlias = bool
"""True: tighter."""

MOVED = frozenset({"Tightened", "Loosened", "Eased", "TakenBack", "WithinBounds"})
"""Reasons of a decision that moves a knob."""

CALM = frozenset({"Steady", "Settling", "NotEnoughRequests", "Overloaded"})
"""Reasons to leave everything as it is that come and go."""

HELD = frozenset({"MetricsUnavailable"})
"""Reasons of a decision that is only to hold, since something is not known that should be."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What a pool's replicas measured over the last window.

    Attributes:
        tpot: seconds per token, as the promised share of the requests that ended had it at the most; no number while
            too few ended for that.
        ttft: seconds to the first token likewise, of those that got theirs.
        requests: arrivals per second.
        prefill, decode: prompt tokens computed, and answer tokens made, per second.
        waiting, running: requests, at this moment.
        preempted: requests per second that lost their blocks.
    """

    tpot: Sample
    requests: Sample
    prefill: Sample
    decode: Sample
    waiting: Sample
    running: Sample
    preempted: Sample
    ttft: Sample

    def all(self) -> Iterator[tuple[str, Sample]]:
        """Each by its name."""
        for one in fields(self):
            yield one.name, getattr(self, one.name)


@dataclass(frozen=True, slots=True)
class Range:
    """How far a knob may go.

    Attributes:
        started: what replicas start with; the knob goes back there when there is nothing to do.
    """

    least: int
    most: int
    started: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= self.started:
            raise ValueError(
                f"a knob goes from {self.least} to {self.most} of the {self.started} that replicas start with: the "
                "first has to be the least, and above zero"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """How eager decisions are.

    Attributes:
        settle: seconds after a change before the next one; longer than samples are over, so that what they say is what
            the change did.
        again_after: seconds for which a step that was taken back is not tried again, and for which a knob that was
            tightened is not loosened.
        calm_after: seconds with time to spare and nobody waiting, after which a knob begins to go back.
        down, up: what one step makes of a value.
        room: answers come with time to spare where TPOT is below this share of what is promised.
        waiting: requests waiting for each replica from which there are many.
        noise: a share below which two measurements are the same.
        alike: a share by which arrivals, and prompts' tokens, may differ for a before and an after to be comparable.
        prompts: share of all tokens from which prompts make steps long, and `mostly` from which nothing else does.
    """

    settle: float = 90.0
    again_after: float = 900.0
    calm_after: float = 600.0
    down: float = 0.7
    up: float = 1.3
    room: float = 0.8
    waiting: float = 1.0
    noise: float = 0.05
    alike: float = 0.25
    prompts: float = 0.1
    mostly: float = 0.8


@dataclass(frozen=True, slots=True)
class Trial:
    """A change that is not judged yet, and what was measured before it; `queued`: requests waited too long."""

    knob: Knob
    before: int
    tighter: Direction
    tpot: float
    tokens: float
    requests: float
    prefill: float
    queued: bool


@dataclass(frozen=True, slots=True)
class State:
    """What a pool's decisions remember. Starts with nothing but the values that replicas have.

    Attributes:
        values: as decided last; a knob that is not there is as it was started.
        changed: when any of them last changed.
        barred: until when a step is not tried again, since it was taken back.
        tightened: when each knob last was.
        calm_since: since when there is nothing to do.
    """

    values: Values = field(default_factory=lambda: MappingProxyType({}))
    changed: float = -math.inf
    trial: Trial | None = None
    barred: Mapping[tuple[Knob, Direction], float] = field(default_factory=lambda: MappingProxyType({}))
    tightened: Mapping[Knob, float] = field(default_factory=lambda: MappingProxyType({}))
    calm_since: float | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that one decision is made from.

    Attributes:
        ranges: of the knobs that may change.
        limit: seconds per token that are promised; None where nothing is.
        first_limit: seconds to the first token that are promised; None where nothing is.
        replicas: that are ready, and measured.
        rolling: whether another revision is on its way: what is compared must not change meanwhile.
        measuring: why samples are not there yet, in words, where nothing is wrong with that: replicas have just begun.
    """

    samples: Samples
    ranges: Mapping[Knob, Range]
    limit: float | None
    replicas: int
    rolling: bool = False
    measuring: str = ""
    first_limit: float | None = None
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do.

    Attributes:
        knobs: every knob that may change, by name.
        reason: one word of CamelCase.
        message: a sentence.
        inputs: the numbers that made it; None for what is not known.
        state: to hand over to the next decision.
    """

    knobs: Values
    reason: str
    message: str
    inputs: Mapping[str, float | None]
    state: State


def tune(observed: Observed, state: State, now: float) -> Decision:
    """Decide what a pool's knobs should be.

    Args:
        observed: what was measured, and what is allowed.
        state: `Decision.state` of the last decision, or `State()`.
        now: seconds of any clock.
    """
    look = _Look(observed, within(observed.ranges, state.values), now)
    if any(state.values.get(knob, one.started) != look.values[knob] for knob, one in observed.ranges.items()):
        moved = replace(state, values=look.values, changed=now, trial=None, calm_since=None)
        return look.told("WithinBounds", f"{_named(look.values)}: no further than the limits are", moved)
    state = replace(state, values=look.values)
    if observed.limit is None:
        back = within(observed.ranges, {})
        words = "nothing is promised to hold the knobs against: write slo.tpot.p90"
        # Without a memory of trials: once there is a promise, everything begins anew.
        return replace(look, values=back).told("NoObjective", words, State(back))
    if observed.rolling:
        words = "held while another revision is on its way: what is compared does not change meanwhile"
        return look.told("RollingOut", words, replace(state, trial=None, calm_since=None))
    if observed.measuring:
        return look.told("Measuring", f"held; {observed.measuring}", replace(state, calm_since=None))
    if look.unknown:
        reason = "NotEnoughRequests" if look.only_too_few else "MetricsUnavailable"
        return look.told(reason, f"held; {'; '.join(look.unknown)}", replace(state, calm_since=None))
    state = look.watched(state)
    if state.trial is not None and look.queued(state.trial):
        # Who waits is known at once; what it did to TPOT need not be waited for.
        return look.take_back(state, state.trial, look.queued(state.trial))
    if now - state.changed < observed.settings.settle:
        words = f"held until what the last change did is measured, {observed.settings.settle:.0f} s after it"
        return look.told("Settling", words, state)
    if state.trial is not None:
        harm = look.harm(state.trial)
        if harm:
            return look.take_back(state, state.trial, harm)
        state = replace(state, trial=None)
    return look.next(state)


def within(ranges: Mapping[Knob, Range], values: Values) -> Values:
    """Values that a scheduler can have, as near to those given as the ranges allow; a missing one is as started.

    A step has room for a token of each request and for a whole piece of a prompt: the budget is at least as much as the
    others, and these no more than it may become.
    """
    found = {knob: min(max(values.get(knob, one.started), one.least), one.most) for knob, one in sorted(ranges.items())}
    budget = ranges.get(Knob.MAX_BATCHED_TOKENS)
    if budget is not None:
        found = {knob: min(value, budget.most) for knob, value in found.items()}
        found[Knob.MAX_BATCHED_TOKENS] = max(found.values())
    return MappingProxyType(found)


def resumed(values: Values, ranges: Mapping[Knob, Range], now: float) -> State:
    """The state of somebody who finds values that an earlier one has decided, and knows nothing of why.

    What is below the start was tightened, for all that is known just now.
    """
    lower = {knob: now for knob, one in ranges.items() if values.get(knob, one.started) < min(one.started, one.most)}
    return State(MappingProxyType(dict(values)), now if lower else -math.inf, tightened=MappingProxyType(lower))


@dataclass(frozen=True, slots=True)
class _Look:
    """One decision in the making; `values` are those so far."""

    observed: Observed
    values: Values
    now: float

    def told(self, reason: str, message: str, state: State) -> Decision:
        return Decision(self.values, reason, message, self.inputs, state)

    @property
    def idle(self) -> bool:
        """Nobody runs and nobody waits: then no request ends either, and that is known."""
        known = (self.observed.samples.waiting, self.observed.samples.running)
        return all(isinstance(one, Present) and one.complete and one.value == 0 for one in known)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What is not known, and why."""
        by_fault: dict[str, list[str]] = {}
        for name, why in self._faults().items():
            by_fault.setdefault(why, []).append(name)
        return tuple(f"{', '.join(names)}: {why}" for why, names in by_fault.items())

    @property
    def only_too_few(self) -> bool:
        """Whether nothing is wrong but that too few requests ended for a percentile."""
        return set(self._faults()) == {"tpot"} and isinstance(self.observed.samples.tpot, NotANumber)

    def _faults(self) -> dict[str, str]:
        found = {name: why for name, sample in self.observed.samples.all() if (why := why_unknown(sample)) is not None}
        if self.observed.first_limit is None or isinstance(self.observed.samples.ttft, NotANumber):
            found.pop("ttft", None)  # nobody asks, or nobody was given a first token: then the queue says it
        if self.idle and isinstance(self.observed.samples.tpot, NotANumber):
            found.pop("tpot", None)
        return found

    @property
    def inputs(self) -> Mapping[str, float | None]:
        known = {
            name: sample.value if isinstance(sample, Present) else None for name, sample in self.observed.samples.all()
        }
        limits = {"limit": self.observed.limit, "first_limit": self.observed.first_limit}
        return {**known, **limits, "replicas": float(self.observed.replicas)}

    def _of(self, name: str) -> float:
        sample = getattr(self.observed.samples, name)
        return sample.value if isinstance(sample, Present) else 0.0

    @property
    def limit(self) -> float:
        assert self.observed.limit is not None, "without a promise nothing is decided"
        return self.observed.limit

    @property
    def spare(self) -> bool:
        """Answers come with time to spare."""
        return self._of("tpot") < self.observed.settings.room * self.limit

    @property
    def many_wait(self) -> bool:
        """Requests wait too long."""
        first = self.observed.first_limit
        if first is not None and isinstance(self.observed.samples.ttft, Present):
            return self._of("ttft") > first
        return self._of("waiting") > self.observed.settings.waiting * self.observed.replicas

    @property
    def wait(self) -> str:
        """How long, in words."""
        first = self.observed.first_limit
        if first is not None and isinstance(self.observed.samples.ttft, Present):
            return f"TTFT is {_ms(self._of('ttft'))}, and {_ms(first)} are promised"
        return f"{self._of('waiting'):.0f} requests wait"

    @property
    def tokens(self) -> float:
        return self._of("prefill") + self._of("decode")

    def watched(self, state: State) -> State:
        """With how long there has been nothing to do."""
        calm = self.spare and self._of("waiting") == 0
        return replace(state, calm_since=(self.now if state.calm_since is None else state.calm_since) if calm else None)

    # --- what a change did ---

    def harm(self, trial: Trial) -> str:
        """What the last change did wrong, in words; nothing where it did what it was made for, or none can say."""
        noise = self.observed.settings.noise
        if not (self._alike("requests", trial.requests) and self._alike("prefill", trial.prefill)):
            return ""  # of two different loads neither says anything about the other
        tpot = self._of("tpot")
        if trial.tighter:
            if tpot > (1.0 - noise) * trial.tpot and not self.idle:
                return f"TPOT was {_ms(trial.tpot)} before and is {_ms(tpot)} with it"
            return ""
        if tpot > self.limit:
            return f"TPOT went from {_ms(trial.tpot)} to {_ms(tpot)}, and {_ms(self.limit)} are promised"
        if self.many_wait and self.tokens < (1.0 - 2.0 * noise) * trial.tokens:
            return f"{trial.tokens:.0f} tokens per second became {self.tokens:.0f}, and requests still wait"
        return ""

    def queued(self, trial: Trial) -> str:
        """Whether a tighter knob makes requests wait, in words."""
        if not trial.tighter or not self.many_wait or trial.queued:
            return ""
        return f"with it {self.wait}"

    def _alike(self, name: str, before: float) -> bool:
        return abs(self._of(name) - before) <= self.observed.settings.alike * max(before, self._of(name))

    def take_back(self, state: State, trial: Trial, harm: str) -> Decision:
        value = self.values[trial.knob]
        until = self.now + self.observed.settings.again_after
        moved = self._moved(state, trial.knob, trial.before, not trial.tighter)
        moved = replace(moved, barred=MappingProxyType({**state.barred, (trial.knob, trial.tighter): until}))
        words = f"{trial.knob} {value} goes back to {trial.before}: {harm}"
        return replace(self, values=moved.values).told("TakenBack", words, moved)

    # --- what to do next ---

    def next(self, state: State) -> Decision:
        tpot, waiting = self._of("tpot"), self._of("waiting")
        if self.many_wait and not self.spare:
            return self._let_in(state)
        if tpot > self.limit:
            words = f"TPOT is {_ms(tpot)}, and {_ms(self.limit)} are promised"
            step = next(self._steps(state, TIGHTEN, True), None)
            return self._change(state, step, True, "Tightened", words) or self.told(
                "AtMin", f"{words}; no knob has a step left that would help", state
            )
        spare = f"TPOT is {_ms(tpot)} of {_ms(self.limit)}"
        if self.many_wait:
            words = f"{self.wait}, while {spare}"
            step = next(self._steps(state, LOOSEN, False), None)
            return self._change(state, step, False, "Loosened", words) or self.told(
                "AtMax", f"{words}; no knob has a step left that would help", state
            )
        calm = state.calm_since is not None and self.now - state.calm_since >= self.observed.settings.calm_after
        step = next(self._steps(state, LOOSEN, False, calm=True), None) if calm else None
        words = f"nobody has waited for {self.observed.settings.calm_after:.0f} s, and {spare}"
        return self._change(state, step, False, "Eased", words) or self.told(
            "Steady", f"{waiting:.0f} requests wait and {spare}", state
        )

    def _let_in(self, state: State) -> Decision:
        """Requests wait and answers have no time to spare: whatever was tightened is loosened, and nothing else moves.

        Not judged afterwards, since TPOT is known to suffer; nor tightened again before the pause is over.
        """
        words = f"{self.wait}, and TPOT is {_ms(self._of('tpot'))} of {_ms(self.limit)}"
        tight = (knob for knob in LOOSEN if knob in state.tightened and knob in self.observed.ranges)
        for knob in tight:
            value = self._higher(knob)
            if value != self.values[knob] and self._binds_above(knob):
                before = self.values[knob]
                until = self.now + self.observed.settings.again_after
                moved = self._moved(state, knob, value, False)
                moved = replace(moved, barred=MappingProxyType({**state.barred, (knob, True): until}))
                told = f"{knob} {before} → {value}: {words}; who waits behind it loses more than the others gain"
                return replace(self, values=moved.values).told("Loosened", told, moved)
        return self.told("Overloaded", f"held: {words}; knobs only choose who waits, more replicas are needed", state)

    def _change(
        self, state: State, step: tuple[Knob, int] | None, tighter: Direction, reason: str, why: str
    ) -> Decision | None:
        if step is None:
            return None
        knob, value = step
        before = self.values[knob]
        trial = Trial(
            knob,
            before,
            tighter,
            self._of("tpot"),
            self.tokens,
            self._of("requests"),
            self._of("prefill"),
            self.many_wait,
        )
        moved = replace(self._moved(state, knob, value, tighter), trial=trial)
        return replace(self, values=moved.values).told(reason, f"{knob} {before} → {value}: {why}", moved)

    def _moved(self, state: State, knob: Knob, value: int, tighter: Direction) -> State:
        values = MappingProxyType({**self.values, knob: value})
        tightened = {**state.tightened, knob: self.now} if tighter else state.tightened
        return replace(state, values=values, changed=self.now, trial=None, tightened=MappingProxyType(dict(tightened)))

    def _steps(
        self, state: State, order: tuple[Knob, ...], tighter: Direction, *, calm: bool = False
    ) -> Iterator[tuple[Knob, int]]:
        """Knobs that may take a step now and where that could help, each with its new value."""
        for knob in order:
            if knob not in self.observed.ranges or state.barred.get((knob, tighter), -math.inf) > self.now:
                continue
            lately = self.now - state.tightened.get(knob, -math.inf) < self.observed.settings.again_after
            if not tighter and lately:
                continue
            value = self._lower(knob) if tighter else self._higher(knob)
            helps = calm or (self._binds_below(knob) if tighter else self._binds_above(knob))
            if value != self.values[knob] and helps:
                yield knob, value

    def _lower(self, knob: Knob) -> int:
        """One step down, as far as the other knobs allow."""
        one, value = self.observed.ranges[knob], self.values[knob]
        base = float(value)
        if knob is Knob.MAX_NUM_SEQS and self.observed.replicas:
            # Places that nobody takes are no step.
            base = min(base, max(1.0, self._of("running") / self.observed.replicas))
        lower = math.floor(base * self.observed.settings.down / GRAIN[knob]) * GRAIN[knob]
        least = one.least
        if knob is Knob.MAX_BATCHED_TOKENS:
            others = [other for name, other in self.values.items() if name is not knob]
            least = max(least, *others, 0)
        return min(value, max(lower, least))

    def _higher(self, knob: Knob) -> int:
        """One step up, as far as the other knobs allow."""
        one, value = self.observed.ranges[knob], self.values[knob]
        higher = math.ceil(value * self.observed.settings.up / GRAIN[knob]) * GRAIN[knob]
        most = one.most
        if knob is not Knob.MAX_BATCHED_TOKENS:
            most = min(most, self.values.get(Knob.MAX_BATCHED_TOKENS, most))
        return max(value, min(higher, most))

    def _binds_below(self, knob: Knob) -> bool:
        """Whether a lower value would make steps shorter, of prompts' pieces only where prompts are computed.

        Where tokens are mostly prompts', requests that run are not what makes them long, as far as pieces can be
        smaller; to let fewer in would only make them wait.
        """
        share = self._of("prefill") / max(self.tokens, 1e-9)
        if knob is Knob.MAX_NUM_SEQS:
            others = (one for one in TIGHTEN if one is not knob and one in self.observed.ranges)
            return share < self.observed.settings.mostly or all(self._lower(one) == self.values[one] for one in others)
        return share >= self.observed.settings.prompts

    def _binds_above(self, knob: Knob) -> bool:
        """Whether a higher value would let more in: of places where they are taken and the cache has room."""
        if knob is not Knob.MAX_NUM_SEQS:
            return self._of("prefill") >= self.observed.settings.prompts * max(self.tokens, 1e-9)
        full = 0.9 * self.values[knob] * self.observed.replicas
        return self._of("running") >= full and self._of("preempted") == 0


def _named(values: Values) -> str:
    return ", ".join(f"{knob} {value}" for knob, value in sorted(values.items()))


def _ms(seconds: float) -> str:
    return f"{1000.0 * seconds:.3g} ms" if seconds < 1.0 else f"{seconds:.3g} s"
