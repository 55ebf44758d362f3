"""Takes requests from the queue into the batch, and tells those that stay why."""

from __future__ import annotations

from paceline_crds.runtime_config import QueuePolicy

from .batch import StepPlan
from .books import Books
from .limits import MAX_PREEMPTIONS, SchedulerLimits, SchedulingRules
from .preemption import Preempter
from .request import Request, RequestState
from .story import Numbers, WaitReason

PRESSURE_PERCENT = 10
"""Share of blocks that can be handed out below which the cache counts as nearly full."""

Blocker = tuple[WaitReason, str, Numbers]
"""Why a request is not admitted."""


class Admitter:
    """Admits requests, one step at a time.

    A request that fits in no way keeps those behind it waiting: were they let past, it would wait for ever.
    """

    def __init__(self, books: Books, preempter: Preempter, limits: SchedulerLimits, rules: SchedulingRules) -> None:
        self._books = books
        self._preempter = preempter
        self.limits = limits
        self._rules = rules
        self._short = False  # blocks were lacking since the last step

    def blocks_lack(self) -> None:
        """A running request found no block in this step."""
        self._short = True

    def admit_waiting(self, plan: StepPlan, now: float) -> None:
        """Fill what is left of a step."""
        queue, story = self._books.queue, self._books.story
        while (probe := queue.probe()) is not None:
            blocker = self._admit(probe, "Probe", plan, now)
            if blocker is not None:
                story.waits(probe, *blocker, now)
                return
        pressure = self._short or self._books.blocks.num_free * 100 < self._books.blocks.num_blocks * PRESSURE_PERCENT
        self._short = False
        while len(queue):
            first, rule, aside = queue.first(pressure)
            for request in aside:
                story.waits(request, *self._tenant_full(request), now)
            turn = queue.turn()
            chosen = turn or first
            if chosen is None:
                return
            blocker = self._admit(chosen, "Quota" if turn else rule, plan, now)
            if blocker is None:
                continue
            story.waits(chosen, *blocker, now)
            # Whoever preempts takes nothing from the one whose turn it is.
            if first is None or not self._admit_by_force(first, rule, plan, now):
                return

    def _admit(self, request: Request, rule: str, plan: StepPlan, now: float) -> Blocker | None:
        """Admit a request, or say why not."""
        books, blocks, limits = self._books, self._books.blocks, self.limits
        # A request that is wider than the limit has become runs alone.
        if books.running_slots and books.running_slots + request.num_slots > limits.max_num_seqs + request.probe:
            return (
                WaitReason.BATCH_FULL,
                f"{books.running_slots} of {limits.max_num_seqs} places in the batch are taken and it needs "
                f"{request.num_slots}",
                {"running": books.running_slots, "places": limits.max_num_seqs, "needed": request.num_slots},
            )
        match = blocks.match(request)
        new = len(request.tokens) - len(match.found) * blocks.block_size
        count = plan.piece(new, alone=self._books.alone)
        if not count:
            return (
                WaitReason.STEP_FULL,
                f"{plan.room} tokens are left in this step of {limits.max_batched_tokens}, and it has {new} to compute",
                {"left": plan.room, "step": limits.max_batched_tokens, "needed": new},
            )
        reserve = self._preempter.reserve if books.running and not request.probe else 0
        promise = 0
        if request.probe or request.num_preemptions >= MAX_PREEMPTIONS:
            # The last token made is never read back; where answers fork, a shared block is copied.
            promise = blocks.blocks_for(request.max_len - 1) - blocks.blocks_for(len(request.tokens))
            promise = max(promise, 0) + bool(request.forks)
        if not books.admit(request, match, reserve=reserve, promise=promise, rule=rule, now=now):
            self._short = True
            needed, free = blocks.needed(request, match) + promise, blocks.num_free - blocks.num_promised
            return (
                WaitReason.NO_BLOCKS,
                f"{needed} blocks are needed and {free} are free, of which {reserve} are kept for requests that run",
                {"needed": needed, "free": free, "reserved": reserve},
            )
        plan.add(request, count)
        self._preempter.admitted(request)
        return None

    def _admit_by_force(self, request: Request, rule: str, plan: StepPlan, now: float) -> bool:
        """Admit a request of an urgent class in the place of running ones of lesser classes."""
        if self._rules.policy is not QueuePolicy.PRIORITY or request.state is not RequestState.WAITING:
            return False
        blocks = self._books.blocks
        new = len(request.tokens) - len(blocks.match(request).found) * blocks.block_size
        if not plan.piece(new, alone=False):
            return False  # tokens of the step are what it lacks
        return any(self._admit(request, rule, plan, now) is None for _ in self._preempter.clear_the_way(request))

    def _tenant_full(self, request: Request) -> Blocker:
        tenant = self._books.tenants[request.tenant]
        return (
            WaitReason.TENANT_SLOTS,
            f"its tenant has {tenant.running} requests in the batch of the {tenant.slots} that it may have, and "
            f"{tenant.waiting} waiting",
            {"running": tenant.running, "slots": tenant.slots, "waiting": tenant.waiting},
        )

    def explain(self, now: float) -> None:
        """Tell those that joined the queue and are not at its head why they wait."""
        books = self._books
        for request in books.unexplained:
            if request.state is RequestState.WAITING and request.wait_reason is None:
                others = books.waiting_slots - request.num_slots
                message = (
                    f"others are ahead: {others} requests wait besides it, {books.waiting_tokens} tokens in all, and "
                    f"{books.running_slots} run"
                )
                numbers: Numbers = {
                    "waiting": others,
                    "waitingTokens": books.waiting_tokens,
                    "running": books.running_slots,
                }
                books.story.waits(request, WaitReason.QUEUED, message, numbers, now)
        books.unexplained.clear()
