"""What happens to requests: queued, admitted, preempted, joined by further answers, ended. Each change in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .block_manager import BlockManager, IntegrityError, Match
from .limits import SchedulingRules
from .rates import Rates
from .request import Request, RequestState
from .story import Numbers, Story
from .tenants import Tenants
from .waiting import WaitingQueue


@dataclass(slots=True)
class Totals:
    """Counts since start."""

    preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    recomputed_tokens: int = 0


class Books:
    """All unfinished requests, where each of them is, and what they hold together."""

    def __init__(self, blocks: BlockManager, rules: SchedulingRules) -> None:
        self.blocks = blocks
        self.totals = Totals()
        self.rates = Rates()
        self.tenants = Tenants()
        self.story = Story()
        self.queue = WaitingQueue(rules, self.rates, self.tenants)
        self.requests: dict[str, Request] = {}
        self.running: dict[str, Request] = {}  # in the order they were admitted
        self.preemptions: Counter[tuple[str, str, str]] = Counter()
        self.unexplained: list[Request] = []  # joined the queue since reasons were last told
        self.waiting_tokens = 0
        self.waiting_slots = 0
        self.running_slots = 0

    @property
    def alone(self) -> bool:
        """There is one request only, with its further answers."""
        return len(self.running) + len(self.queue) == 1

    # --- in ---

    def enqueue(self, request: Request) -> None:
        """A request waits from now on."""
        self.queue.push(request)
        self.unexplained.append(request)
        self.waiting_tokens += len(request.tokens)
        self.waiting_slots += request.num_slots
        self.tenants[request.tenant].waiting += request.num_slots

    def admit(self, request: Request, match: Match, *, reserve: int, promise: int, rule: str, now: float) -> bool:
        """A waiting request runs from now on, if there are blocks for it."""
        first = request.admitted_at is None
        looked_up = self.blocks.prefix_caching and request.may_look_up and request.counted
        if not self.blocks.admit(request, match, reserve=reserve, promise=promise):
            return False
        self.queue.admitted(request)
        self._left_queue(request)
        self.story.admitted(request, rule, now)
        self.rates.admitted(now)
        request.state = RequestState.RUNNING
        self._joined_batch(request)
        if first:
            request.admitted_at = now
            request.num_cached = request.num_computed
            # All of the prompt at once: else one tenant could take every place before anything of it is computed. What
            # is computed again after a preemption is nobody's fault and costs nothing.
            self.tenants.serve(request.tenant, request.num_new)
            if looked_up:
                self.totals.prefix_query_tokens += request.prompt_len
                self.totals.prefix_hit_tokens += request.num_computed
        return True

    def undo_hits(self, request: Request) -> None:
        """What was found for a request when it was first admitted turned out not to be there."""
        if request.most_computed or request.admitted_at is None:
            return
        if self.blocks.prefix_caching and request.may_look_up and request.counted:
            self.totals.prefix_query_tokens -= request.prompt_len
            self.totals.prefix_hit_tokens -= request.num_cached
        request.admitted_at, request.num_cached = None, 0

    def join(self, request: Request) -> list[Request]:
        """The answers that waited for a request's prompt run beside it; all of them, itself first."""
        answers = [request, *request.forks]
        request.forks = []
        for fork in answers[1:]:
            self.blocks.fork(request, fork)
            fork.leader = None
            fork.state = RequestState.RUNNING
            fork.admitted_at, fork.num_cached = request.admitted_at, request.num_cached
            self.running[fork.request_id] = fork
        return answers

    # --- out ---

    def preempt(self, request: Request, reason: str, words: str, numbers: Numbers, now: float, *, swap: bool) -> None:
        """A running request loses its blocks and waits again."""
        context, held = request.num_computed, len(request.blocks)
        kept = self.blocks.swap_out(request) * self.blocks.block_size if swap else 0
        way = "swap" if kept else "recompute"
        self._left_batch(request)
        self.blocks.release(request)
        request.num_preemptions += 1
        self.totals.preemptions += 1
        self.preemptions[reason, way, _class_label(request.priority)] += 1
        where = (
            f"{kept} of {context} tokens are kept in lower memory" if kept else f"{context} computed tokens were let go"
        )
        times = "once" if request.num_preemptions == 1 else f"{request.num_preemptions} times"
        self.story.preempted(
            request,
            reason,
            f"{words}; {where}, with {request.num_output} tokens of its answer made; it lost its blocks {times} so far",
            {
                **numbers,
                "contextTokens": context,
                "keptTokens": kept,
                "outputTokens": request.num_output,
                "blocks": held,
                "preemptions": request.num_preemptions,
            },
            now,
        )
        self.enqueue(request)

    def remove(self, request: Request) -> None:
        """A request ends, whatever it was doing. The first of the answers that wait for its prompt takes it over."""
        if request.leader is not None:
            self._leave_leader(request)
        elif request.forks:
            self._hand_over(request)
        else:
            if request.state is RequestState.WAITING:
                self.queue.remove(request)
                self._left_queue(request)
                self.story.no_longer_waits(request)
            else:
                self._left_batch(request)
            self.blocks.release(request)
            self.blocks.unpin(request)
        request.state = RequestState.FINISHED
        del self.requests[request.request_id]
        self.tenants.rest(request.tenant)

    # --- inside ---

    def _left_queue(self, request: Request) -> None:
        self.waiting_tokens -= len(request.tokens)
        self.waiting_slots -= request.num_slots
        self.tenants[request.tenant].waiting -= request.num_slots

    def _joined_batch(self, request: Request) -> None:
        self.running[request.request_id] = request
        self.running_slots += request.num_slots
        self.tenants[request.tenant].running += request.num_slots

    def _left_batch(self, request: Request) -> None:
        del self.running[request.request_id]
        self._free_slots(request, request.num_slots)

    def _free_slots(self, request: Request, count: int) -> None:
        self.running_slots -= count
        self.tenants[request.tenant].running -= count
        self.queue.slot_free(request.tenant)

    def _leave_leader(self, request: Request) -> None:
        leader = request.leader
        if leader is None:
            raise IntegrityError(f"request {request.request_id} has no leader to leave")
        leader.forks.remove(request)
        request.leader = None
        if leader.state is RequestState.WAITING:
            self.waiting_slots -= 1
            self.tenants[request.tenant].waiting -= 1
        else:
            self._free_slots(request, 1)

    def _hand_over(self, request: Request) -> None:
        """Put the first fork in the place of a request that goes: same blocks, same place."""
        heir, *forks = request.forks
        if request.state is RequestState.WAITING:
            self.queue.remove(request)
            self._left_queue(request)
            self.story.no_longer_waits(request)
        else:
            self._left_batch(request)
        request.forks = []
        heir.leader, heir.forks = None, forks
        for fork in forks:
            fork.leader = heir
        heir.sequence, heir.num_preemptions = request.sequence, request.num_preemptions
        if request.sampling.prompt_logprobs is not None:
            # What was told of the prompt so far was told of the one that goes: the heir begins anew.
            self.blocks.release(request)
            self.blocks.unpin(request)
            self.enqueue(heir)
            return
        heir.admitted_at, heir.num_cached = request.admitted_at, request.num_cached
        heir.pinned, request.pinned = request.pinned, []
        heir.most_computed = request.most_computed
        if request.state is RequestState.WAITING:
            self.enqueue(heir)
            return
        self.blocks.hand_over(request, heir)
        heir.state = RequestState.RUNNING
        self._joined_batch(heir)

    # --- checks ---

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests.values())

    def check(self) -> None:
        """Compare blocks, requests, tenants and queue.

        Raises:
            IntegrityError: if they do not add up.
        """
        self.blocks.check(self)
        waiting = [r for r in self if r.state is RequestState.WAITING]
        running = [r for r in self if r.state is RequestState.RUNNING]
        if {r.request_id for r in waiting} != {r.request_id for r in self.queue}:
            raise IntegrityError("the queue has other requests than those that wait")
        if {r.request_id for r in running} != set(self.running):
            raise IntegrityError("the batch has other requests than those that run")
        if sum(len(r.tokens) for r in waiting) != self.waiting_tokens:
            raise IntegrityError("the waiting tokens are miscounted")
        for what, requests, count in (
            ("wait", waiting, self.waiting_slots),
            ("run", running, self.running_slots),
        ):
            if sum(r.num_slots for r in requests) != count:
                raise IntegrityError(f"{count} answers are counted as those that {what}")
            by_tenant: Counter[str] = Counter()
            for request in requests:
                by_tenant[request.tenant] += request.num_slots
            for name in {r.tenant for r in self}:
                tenant = self.tenants[name]
                if by_tenant[name] != (tenant.waiting if what == "wait" else tenant.running):
                    raise IntegrityError(f"answers of tenant {name!r} that {what} are miscounted")
        if sum(self.story.waiting.values()) != sum(1 for r in waiting if r.wait_reason is not None):
            raise IntegrityError("reasons to wait are miscounted")


def _class_label(priority: int) -> str:
    """A label with few values, whatever clients send."""
    return str(priority) if -9 <= priority <= 9 else "other"
