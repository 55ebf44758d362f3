"""Blocks and places for those that need them, taken from those that lose least by it."""

from __future__ import annotations

from collections.abc import Iterator

from .batch import StepPlan
from .books import Books
from .cushion import Cushion
from .limits import MAX_PREEMPTIONS, SchedulerLimits, SchedulingRules
from .policy import urgency
from .request import Request, RequestState
from .story import Numbers, PreemptionReason
from .victim import Candidate, ChooseVictim, choose_victim


class Preempter:
    """Preempts within one step at a time.

    A request that lost its blocks `MAX_PREEMPTIONS` times is admitted with all it may ever need and spared from then
    on. So whoever lacks a block may still be preempted itself, and something always gives way: there is no deadlock,
    and no request is preempted more often.
    """

    def __init__(
        self, books: Books, limits: SchedulerLimits, rules: SchedulingRules, choose: ChooseVictim = choose_victim
    ) -> None:
        self._books = books
        self.limits = limits
        self._cushion = Cushion(books.blocks.num_blocks, limits.cushion_percent)
        self._choose = choose
        self._rules = rules
        self._plan: StepPlan | None = None
        self._now = 0.0
        self._admitted: set[str] = set()

    def begin(self, plan: StepPlan, now: float) -> None:
        """A new step."""
        self._plan, self._now = plan, now
        self._admitted.clear()
        self._cushion.narrow()

    @property
    def reserve(self) -> int:
        """Blocks that a new request leaves to those that run."""
        return self.limits.reserve_blocks + self._cushion.blocks

    def admitted(self, request: Request) -> None:
        """This request was admitted in this step: it is not preempted in the same one."""
        self._admitted.add(request.request_id)

    def preempt_asked(self, request_id: str, *, swap: bool) -> None:
        """Somebody wants this request preempted."""
        request = self._books.running.get(request_id)
        if request is not None and may_preempt(request):
            words = "somebody asked for it"
            self._books.preempt(request, PreemptionReason.ASKED, words, {}, self._now, swap=swap)

    def make_room(self, request: Request) -> bool:
        """Blocks for the next token of a running request.

        False if there are none in this step: then the request was preempted itself, or blocks let go in this step can
        be used in the next (nobody else is preempted until then).
        """
        blocks = self._books.blocks
        while request.state is RequestState.RUNNING:
            if blocks.grow(request):
                return True
            if blocks.num_parked:
                return False
            mine = urgency(request, self._rules)
            need = max(1 - (blocks.num_free - blocks.num_promised), 1)
            victim = self._choose(self._candidates(mine), need)
            if victim is None:
                return False
            free = max(blocks.num_free - blocks.num_promised, 0)
            itself = victim.request is request
            words = (
                f"it needs {need} more blocks, {free} are free, and no other request would lose less by giving way"
                if itself
                else f"request {request.request_id} needs {need} more blocks to go on and {free} are free; this one "
                f"loses least by giving way"
            )
            self._cushion.widen()
            self._preempt(victim, PreemptionReason.NO_BLOCKS, words, {"needed": need, "free": free})
        return False

    def clear_the_way(self, request: Request) -> Iterator[None]:
        """Preempt requests of lesser classes, one for each item taken, for as long as that may let this one in."""
        books, blocks = self._books, self._books.blocks
        mine = urgency(request, self._rules)
        lesser = [c for c in self._candidates(mine + 1) if c.request.request_id not in self._admitted]
        if not lesser:
            return
        slots = sum(c.request.num_slots for c in lesser)
        freed = sum(c.freed for c in lesser)
        reserve = self.reserve if len(books.running) > len(lesser) else 0
        needed = blocks.needed(request, blocks.match(request)) + reserve + blocks.num_promised
        places = self.limits.max_num_seqs - (books.running_slots - slots)
        if request.num_slots > places or needed > blocks.num_free + freed:
            return
        while lesser and not blocks.num_parked:
            lacking = max(needed - blocks.num_free, 0)
            victim = self._choose(lesser, lacking)
            if victim is None:
                return
            words = (
                f"request {request.request_id} of class {request.priority} needs its place, and this one of class "
                f"{victim.request.priority} loses least by giving way"
            )
            numbers: Numbers = {"urgentClass": request.priority, "ownClass": victim.request.priority}
            self._preempt(victim, PreemptionReason.PRIORITY, words, numbers)
            lesser.remove(victim)
            yield

    def _preempt(self, victim: Candidate, reason: PreemptionReason, words: str, numbers: Numbers) -> None:
        if self._plan is not None:
            self._plan.drop(victim.request)
        numbers = {**numbers, "lostTokens": round(victim.lost, 1)}
        self._books.preempt(victim.request, reason, words, numbers, self._now, swap=victim.swaps)

    def _candidates(self, least: int) -> list[Candidate]:
        """Running requests that may be preempted, of this class or a lesser one (a higher number)."""
        return [
            self._candidate(request)
            for request in self._books.running.values()
            if may_preempt(request) and urgency(request, self._rules) >= least
        ]

    def _candidate(self, request: Request) -> Candidate:
        blocks = self._books.blocks
        kept = blocks.would_keep(request) * blocks.block_size
        lost, swaps = float(request.num_computed - min(kept, request.num_computed)), False
        if blocks.tiers is not None:
            full = request.num_computed // blocks.block_size - kept // blocks.block_size
            rates = self._books.rates
            copy, compute = blocks.tiers.block_seconds(), rates.prefill_token_seconds
            # In tokens that could be computed meanwhile. What is not known yet is found out by trying.
            copied = full * copy / compute if copy is not None and compute else 0.0
            by_swap = copied + request.num_computed % blocks.block_size
            if full > 0 and blocks.tiers.room() >= full and by_swap < lost:
                lost, swaps = by_swap, True
        return Candidate(request, blocks.exclusive(request), lost, urgency(request, self._rules), swaps)


def may_preempt(request: Request) -> bool:
    """Whether a running request may lose its blocks; the others were admitted with all they may ever need."""
    return not request.probe and request.num_preemptions < MAX_PREEMPTIONS
