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
from dataclasses import dataclass, replace
from types import MappingProxyType

from paceline_crds.tuning import Knob

from .knobs import Decision, Direction, Observed, Range, State, Trial, Values
from .samples import NotANumber, Present, why_unknown

TIGHTEN = (Knob.PREFILL_CHUNK_TOKENS, Knob.MAX_BATCHED_TOKENS, Knob.MAX_NUM_SEQS)
"""Order in which answers are made faster: what costs throughput least goes first."""

LOOSEN = tuple(reversed(TIGHTEN))

GRAIN: Mapping[Knob, int] = {Knob.MAX_NUM_SEQS: 1, Knob.MAX_BATCHED_TOKENS: 16, Knob.PREFILL_CHUNK_TOKENS: 16}
"""Values between the ends of a range are multiples of this."""


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
        return look.told("RollingOut", words, replace(state, calm_since=None))
    if observed.measuring:
        return look.told("Measuring", f"held; {observed.measuring}", replace(state, calm_since=None))
    if look.unknown and not look.only_too_few:
        return look.told("MetricsUnavailable", f"held; {'; '.join(look.unknown)}", replace(state, calm_since=None))
    state = look.watched(state)
    if state.trial is not None and (queued := look.queued(state.trial)):
        # Who waits is known at once; what it did to TPOT need not be waited for.
        return look.take_back(state, state.trial, queued)
    if now - state.changed < observed.settings.settle:
        words = f"held until what the last change did is measured, {observed.settings.settle:.0f} s after it"
        return look.told("Settling", words, state)
    if look.only_too_few:
        return look.next_without_tpot(state)
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
    def _late(self) -> bool:
        """First tokens came later than promised; of those of the last minute, some of them before the last change."""
        first = self.observed.first_limit
        return first is not None and self._of("ttft") > first

    @property
    def _queue(self) -> bool:
        """More wait at this moment than may: a few, or those that arrive while one may wait (Little's law)."""
        few = self.observed.settings.waiting * self.observed.replicas
        may = (self.observed.first_limit or 0.0) * self._of("requests")
        return self._of("waiting") > max(few, may)

    @property
    def many_wait(self) -> bool:
        """Requests wait too long."""
        return self._late or self._queue

    @property
    def wait(self) -> str:
        """How long, in words."""
        waiting, first = f"{self._of('waiting'):.0f} requests wait", self.observed.first_limit
        if first is None or not self._late:
            return waiting
        return f"TTFT is {_ms(self._of('ttft'))}, and {_ms(first)} are promised"

    @property
    def tokens(self) -> float:
        return self._of("prefill") + self._of("decode")

    def watched(self, state: State) -> State:
        """With how long there has been nothing to do."""
        calm = (self.spare or self.only_too_few) and self._of("waiting") == 0 and not self._late
        return replace(state, calm_since=(self.now if state.calm_since is None else state.calm_since) if calm else None)

    # --- what a change did ---

    def harm(self, trial: Trial) -> str:
        """What the last change did wrong, in words; nothing where it did what it was made for, or none can say."""
        noise = self.observed.settings.noise
        tpot = self._of("tpot")
        if not (self._alike("requests", trial.requests) and self._alike("prefill", trial.prefill)):
            # Of two different loads neither says anything about the other, but for one that is gone.
            return "the load that it was for is gone" if trial.tighter and self.spare else ""
        if trial.tighter:
            if self.many_wait and not trial.queued:
                return f"with it {self.wait}"
            if tpot > max(self.limit, (1.0 - noise) * trial.tpot) and not self.idle:
                return f"TPOT was {_ms(trial.tpot)} before and is {_ms(tpot)} with it"
            return ""
        if tpot > self.limit and not self.many_wait:
            return f"TPOT went from {_ms(trial.tpot)} to {_ms(tpot)}, and {_ms(self.limit)} are promised"
        if self.many_wait and self.tokens < (1.0 - 2.0 * noise) * trial.tokens:
            return f"{trial.tokens:.0f} tokens per second became {self.tokens:.0f}, and requests still wait"
        return ""

    def queued(self, trial: Trial) -> str:
        """Whether a tighter knob makes requests wait at this moment, in words."""
        if not trial.tighter or not self._queue or trial.queued:
            return ""
        return f"with it {self._of('waiting'):.0f} requests wait"

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
        if self.many_wait:
            return self._let_in(state)
        if tpot > self.limit and not self.idle:
            words = f"TPOT is {_ms(tpot)}, and {_ms(self.limit)} are promised"
            step = next(self._steps(state, TIGHTEN, True), None)
            return self._change(state, step, True, "Tightened", words) or self.told(
                "AtMin", f"{words}; no knob has a step left that would help", state
            )
        spare = f"TPOT is {_ms(tpot)} of {_ms(self.limit)}"
        return self._ease(state, spare) or self.told("Steady", f"{waiting:.0f} requests wait and {spare}", state)

    def next_without_tpot(self, state: State) -> Decision:
        """Too few requests ended to say how quick answers are; who waits is known all the same."""
        if self.many_wait:
            return self._let_in(state)
        return self._ease(state, "too few requests ended to say more") or self.told(
            "NotEnoughRequests", f"held; {'; '.join(self.unknown)}", state
        )

    def _ease(self, state: State, beside: str) -> Decision | None:
        calm = state.calm_since is not None and self.now - state.calm_since >= self.observed.settings.calm_after
        step = next(self._steps(state, LOOSEN, False, calm=True), None) if calm else None
        words = f"nobody has waited for {self.observed.settings.calm_after:.0f} s, and {beside}"
        return self._change(state, step, False, "Eased", words)

    def _let_in(self, state: State) -> Decision:
        """Requests wait too long: a knob that lets fewer in than it may is loosened, and nothing is tightened.

        With time to spare it is judged afterwards. Without, TPOT is known to suffer; then it is not tightened again
        before the pause is over.
        """
        tpot = "TPOT is not known" if self.only_too_few else f"TPOT is {_ms(self._of('tpot'))} of {_ms(self.limit)}"
        words = f"{self.wait}, and {tpot}"
        step = next(self._steps(state, LOOSEN, False, urgent=True), None)
        spare = self.spare and not self.only_too_few
        if step is None:
            if spare:
                return self.told("AtMax", f"{words}; no knob has a step left that would help", state)
            words = f"held: {words}; no knob lets more in, and none is tightened: more replicas are needed"
            return self.told("Overloaded", words, state)
        until = self.now + self.observed.settings.again_after
        state = replace(state, barred=MappingProxyType({**state.barred, (step[0], True): until}))
        if spare:
            return self._made(state, step, False, "Loosened", words)
        knob, value = step
        moved = self._moved(state, knob, value, False)
        told = f"{knob} {self.values[knob]} → {value}: {words}; who waits behind it loses more than the others gain"
        return replace(self, values=moved.values).told("Loosened", told, moved)

    def _change(
        self, state: State, step: tuple[Knob, int] | None, tighter: Direction, reason: str, why: str
    ) -> Decision | None:
        return None if step is None else self._made(state, step, tighter, reason, why)

    def _made(self, state: State, step: tuple[Knob, int], tighter: Direction, reason: str, why: str) -> Decision:
        """A step on trial."""
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
        self, state: State, order: tuple[Knob, ...], tighter: Direction, *, calm: bool = False, urgent: bool = False
    ) -> Iterator[tuple[Knob, int]]:
        """Knobs that may take a step now and where that could help, each with its new value."""
        for knob in order:
            if knob not in self.observed.ranges or state.barred.get((knob, tighter), -math.inf) > self.now:
                continue
            lately = self.now - state.tightened.get(knob, -math.inf) < self.observed.settings.again_after
            if not tighter and lately and not urgent:
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
            # Places that nobody takes are no step. Those taken over the minute follow from its tokens (Little's law).
            taken = max(self._of("running"), self._of("decode") * self._of("tpot"))
            base = min(base, max(1.0, taken / self.observed.replicas))
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
