"""What is computed in the next step.

One rule: `num_computed` of each running request catches up with its tokens, under one budget of tokens per step. A
decode is a request that is one token behind; a prompt, a prompt after a prefix hit and a preempted request are further
behind and catch up in chunks. Decodes go first, so that a long prompt never holds up those that stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline_runtime.messages import AddRequest, FinishReason, Preemptions, RejectCode, RequestEvent, TierStats

from .admission import Refused, check_queue, most_tokens
from .admitter import Admitter
from .arrival import make_answers
from .batch import Batch, ScheduledSeq, StepPlan
from .block_manager import BlockManager
from .books import Books, Totals
from .deadlines import Deadlines
from .ending import Finished, ending
from .limits import SchedulerLimits, SchedulingRules
from .policy import urgency
from .preemption import Preempter
from .request import Request, RequestState
from .story import PreemptionReason
from .tiers import Memory, MoveReport
from .victim import ChooseVictim, choose_victim

__all__ = ["Batch", "Finished", "Refused", "ScheduledSeq", "Scheduler", "SchedulerLimits", "SchedulingRules"]

MOST_FOLLOWING = 8
"""Steps in a row that are not chosen anew while somebody waits: a lesser request gives its place up, or its turn comes,
so much later."""

Result = tuple[Request, list[int], Finished | None]


class Scheduler:
    """Queues requests and makes batches of them. Not thread-safe: called between steps only.

    A step is `schedule`, the batch's transfers (if any; then `transferred`), its copies, the forward, `update` (or its
    two halves), `observe`. After it there may be news in `take_ended` and `take_events`.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: BlockManager,
        eos_token_ids: frozenset[int],
        rules: SchedulingRules | None = None,
        *,
        victim: ChooseVictim = choose_victim,
    ) -> None:
        self.limits = limits
        self._started = limits
        self.rules = rules or SchedulingRules()
        self.blocks = blocks
        self._eos = eos_token_ids
        self._books = Books(blocks, self.rules)
        self._preempter = Preempter(self._books, limits, self.rules, victim)
        self._admitter = Admitter(self._books, self._preempter, limits, self.rules)
        self._ended: list[tuple[Request, Finished]] = []
        self._deadlines = Deadlines(self._books)
        self._arrivals = 0
        self._asked: dict[str, bool] = {}
        self._followed = 0  # steps since the last that was chosen
        self._now = 0.0

    # --- state ---

    @property
    def totals(self) -> Totals:
        """Counts since start."""
        return self._books.totals

    @property
    def num_waiting(self) -> int:
        """Answers queued, preempted ones among them."""
        return self._books.waiting_slots

    @property
    def num_running(self) -> int:
        """Answers in the batch, those among them whose prompt is still being computed for another one."""
        return self._books.running_slots

    @property
    def idle(self) -> bool:
        """Nothing to do."""
        return not self._books.requests

    @property
    def prefill_tokens(self) -> int:
        """Tokens that have to be computed before every request decodes."""
        return self._books.waiting_tokens + sum(r.num_new for r in self._books.running.values() if r.num_new > 1)

    @property
    def decode_tokens(self) -> int:
        """Computed tokens of running requests."""
        return sum(r.num_computed for r in self._books.running.values())

    def requests(self) -> Iterator[Request]:
        """All unfinished requests."""
        return iter(self._books)

    def preemptions(self) -> list[Preemptions]:
        """Preemptions since start, told apart."""
        return [Preemptions(*key, count) for key, count in sorted(self._books.preemptions.items())]

    def waiting_by_reason(self) -> dict[str, int]:
        """Requests waiting, by the reason last told."""
        return dict(self._books.story.waiting)

    def tier_stats(self) -> list[TierStats]:
        """Memories below the cache."""
        return self.blocks.tiers.stats() if self.blocks.tiers is not None else []

    def take_events(self) -> list[RequestEvent]:
        """What happened to requests since the last call."""
        return self._books.story.take()

    def take_ended(self) -> list[tuple[Request, Finished]]:
        """Requests that ended outside `update` since the last call: they could not be in time."""
        ended, self._ended = self._ended, []
        return ended

    # --- arrivals and departures ---

    def add(self, message: AddRequest, seed: int, *, now: float | None = None) -> None:
        """Queue a request, with further answers to its prompt where asked for.

        Args:
            seed: of the first answer's random stream; those of the others are derived from it.
            now: the time; `None` is the latest that was heard of.

        Raises:
            Refused: if it could never be served, the queue is full, or it cannot be in time.
        """
        now = max(self._now, message.arrival_time) if now is None else now
        ids = (message.request_id, *message.fork_ids)
        for request_id in ids:
            if request_id in self._books.requests or ids.count(request_id) > 1:
                raise Refused(RejectCode.INVALID, f"request id {request_id!r} is in use by a running request")
        # How much one request may ask for does not follow load: whoever asks the same gets the same word.
        max_len = most_tokens(message, self._started, self.blocks.num_blocks * self.blocks.block_size)
        answers = make_answers(message, seed, max_len, self._arrivals + 1, self.blocks, self.rules)
        request = answers[0]
        if not message.probe:
            check_queue(request, self._books, self.limits, self.rules, now)
        self._arrivals += len(answers)
        self._books.tenants.arrive(
            message.tenant, message.tenant_weight, message.tenant_slots or self.limits.tenant_max_seqs
        )
        for answer in answers:
            self._books.requests[answer.request_id] = answer
            self._deadlines.watch(answer)
        self._books.enqueue(request)

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its blocks at once. False if there is none of that id (it may just have finished).

        Further answers to its prompt go on.
        """
        request = self._books.requests.get(request_id)
        if request is None:
            return False
        self._books.remove(request)
        return True

    def preempt(self, request_id: str, *, swap: bool = False) -> None:
        """Take a request's blocks at the begin of the next step, as a lack of blocks would; its answer stays the same.

        Nothing happens to one that does not run, or was preempted so often that it is spared.

        Args:
            swap: to lower memory, if there is any.
        """
        self._asked[request_id] = swap and self.blocks.tiers is not None

    def limit(self, limits: SchedulerLimits) -> None:
        """Keep to other limits from the next step on. Between two steps only, after `enter`.

        What runs goes on: where fewer may run than do, nobody is let in until enough have ended.

        Raises:
            ValueError: a step may be larger than at the start, which is what memory was taken for.
        """
        for name in ("max_num_seqs", "max_batched_tokens"):
            if getattr(limits, name) > getattr(self._started, name):
                raise ValueError(
                    f"{name} {getattr(limits, name)} is more than the {getattr(self._started, name)} of the start"
                )
        self.limits = self._preempter.limits = self._admitter.limits = limits

    # --- one step ---

    def schedule(self, now: float) -> Batch | None:
        """Choose the next step's work; `None` if there is nothing to do."""
        self._now, self._followed = now, 0
        self.blocks.commit()
        self._ended += self._deadlines.drop(now)
        # More may run than the limits let in by now; each of them still gets its token.
        plan = StepPlan(self.limits, max(self.limits.max_batched_tokens, self.num_running))
        room = plan.room
        self._preempter.begin(plan, now)
        for request_id, swap in self._asked.items():
            self._preempter.preempt_asked(request_id, swap=swap)
        self._asked.clear()
        self._plan_decodes(plan)
        self._plan_prompts(plan)
        self._admitter.admit_waiting(plan, now)
        self._admitter.explain(now)
        self.blocks.trim(room - plan.room)
        self.blocks.pass_down()
        return plan.batch(*self.blocks.take_moves())

    def follow(self, batch: Batch) -> Batch | None:
        """The step after one that was begun and has yet to give its tokens, for as many of its requests as go on.

        To be given to the device at once; `adopt` then takes the place of `schedule`. A request may turn out to have
        ended by then: what was computed of it is nobody's, and was written where nobody reads.

        Args:
            batch: after `advance`.

        Returns:
            `None` where something else has to be decided first: a prompt is being computed, answers are told apart,
            blocks are lacking, or somebody waits for a place that may be free.
        """
        running, waiting = self._books.running, len(self._books.queue)
        if self._asked or len(batch.seqs) != len(running):
            return None
        if waiting and (self.num_running < self.limits.max_num_seqs or self._followed == MOST_FOLLOWING):
            return None
        if any(seq.count != 1 or seq.choices != (seq.request,) for seq in batch.seqs):
            return None
        going = [seq.request for seq in batch.seqs if len(seq.request.tokens) + 1 < seq.request.max_len]
        if not going or not all(self.blocks.grow_ahead(request) for request in going):
            return None
        self._followed += 1
        return Batch(tuple(ScheduledSeq(request, 1, (request,)) for request in going))

    def adopt(self, batch: Batch, now: float) -> Batch | None:
        """What is left of a step that `follow` gave, now that the tokens before it are entered; `None`: nothing."""
        self._now = now
        self._ended += self._deadlines.drop(now)
        seqs = tuple(seq for seq in batch.seqs if seq.request.state is RequestState.RUNNING)
        return Batch(seqs) if seqs else None

    def transferred(self, batch: Batch, report: MoveReport, now: float) -> Batch:
        """Enter what the batch's transfers came to, before its forward.

        A request that was to read a damaged block loses its blocks and waits again; what it needs of that block is then
        computed.

        Returns:
            The batch without such requests.
        """
        if self.blocks.tiers is not None:
            self.blocks.tiers.moved(batch.transfers, report, self._books.rates.prefill_token_seconds, now)
        bad = {transfer.target.number for transfer in report.failed if transfer.target.memory is Memory.DEVICE}
        if not bad:
            return batch
        words = "a block of its context came back damaged from lower memory, so it is computed again"
        for request in [r for r in self._books.running.values() if not bad.isdisjoint(r.blocks)]:
            self._books.preempt(request, PreemptionReason.TIER_FAULT, words, {}, now, swap=False)
            self._books.undo_hits(request)
        seqs = tuple(seq for seq in batch.seqs if seq.request.state is RequestState.RUNNING)
        return Batch(seqs, batch.copies, batch.transfers)

    def update(self, batch: Batch, sampled: Mapping[str, int | None], now: float | None = None) -> list[Result]:
        """Enter what a step computed: `advance`, then `enter`."""
        self.advance(batch)
        return self.enter(batch, sampled, now)

    def advance(self, batch: Batch) -> None:
        """Enter that a step's tokens are in the cache, once the device was given it: this does not need its results.

        Until `enter` nothing else may be called.

        Args:
            batch: as `schedule` (or `transferred`) returned it.
        """
        self.blocks.commit()
        books, totals = self._books, self.totals
        for seq in batch.seqs:
            request, count = seq.request, seq.count
            before = request.num_computed
            after = request.num_computed = before + count
            if request.counted and (count > 1 or before < request.prompt_len):
                totals.prompt_tokens += count
            if before < request.most_computed:
                totals.recomputed_tokens += min(after, request.most_computed) - before
            self.blocks.register(request)
            made = after - max(request.most_computed, request.prompt_len)
            if made > 0:
                books.tenants.serve(request.tenant, made)
            request.most_computed = max(request.most_computed, after)

    def enter(self, batch: Batch, sampled: Mapping[str, int | None], now: float | None = None) -> list[Result]:
        """Enter a step's new tokens, after `advance`.

        Args:
            batch: the same.
            sampled: request id → new token, for each request in the `choices` of each sequence; `None` where the logits
                were no numbers.

        Returns:
            For each answer that was to get a token or ended: the request, its new tokens, and how it ended, if it did.
        """
        self._now = self._now if now is None else now
        results: list[Result] = []
        books = self._books
        for seq in batch.seqs:
            request, choices = seq.request, seq.choices
            if not choices and request.num_computed == request.max_len:  # no token is wanted
                results += [(answer, [], Finished(FinishReason.LENGTH)) for answer in books.join(request)]
            if choices and request.forks:
                books.join(request)
            for choice in choices:
                results.append(self._enter(choice, sampled[choice.request_id]))
        for request, _, ended in results:
            if ended is not None:
                books.remove(request)
        return results

    def observe(self, step_seconds: float, batch: Batch) -> None:
        """Tell how long a batch's forward and sampling took: estimates rest on it."""
        decodes = sum(1 for seq in batch.seqs if seq.count == 1)
        self._books.rates.observe(step_seconds, batch.num_tokens - decodes, decodes)
        if self.blocks.tiers is not None:
            self.blocks.tiers.retry(self._now)

    def check_integrity(self) -> None:
        """Compare the books of blocks, requests, tenants and queue.

        Raises:
            IntegrityError: if they do not add up.
        """
        self._books.check()

    # --- planning ---

    def _plan_decodes(self, plan: StepPlan) -> None:
        running = self._books.running
        probe = self._books.queue.probe()
        wanted = sum(r.num_new for r in running.values() if r.probe) + (probe.num_new if probe is not None else 0)
        # A probe's prompt is short. What it needs of the step is kept from the decodes, but never much of it.
        kept = min(wanted, max(plan.room // 4, 1))
        ready = [r for r in running.values() if r.num_new == 1]
        stuck: list[Request] = []
        preempted = self.totals.preemptions
        for request in ready:
            # One may have been preempted for another just before.
            still_runs = request.state is RequestState.RUNNING
            if still_runs and not self.blocks.grow(request) and not self._preempter.make_room(request):
                stuck.append(request)
        if stuck or self.totals.preemptions > preempted:
            self._admitter.blocks_lack()
        for request in ready:
            if request.state is RequestState.RUNNING and (plan.room > kept or request.probe):
                plan.add(request, 1)
        for request in stuck:
            plan.drop(request)

    def _plan_prompts(self, plan: StepPlan) -> None:
        prompts = [r for r in self._books.running.values() if r.num_new > 1]
        if len(prompts) > 1:
            tenants, fair = self._books.tenants, self.rules.fair_share
            prompts.sort(
                key=lambda r: (
                    not r.probe,
                    urgency(r, self.rules),
                    tenants[r.tenant].virtual if fair else 0,
                    r.sequence,
                )
            )
        for request in prompts:
            count = plan.piece(request.num_new, alone=self._books.alone)
            if count:
                plan.add(request, count)

    # --- inside ---

    def _enter(self, request: Request, token: int | None) -> Result:
        if token is None:
            message = "the model gave no usable probabilities for the next token"
            return request, [], Finished(FinishReason.ERROR, message=message)
        request.tokens.append(token)
        if request.counted:
            self.totals.generation_tokens += 1
        return request, [token], ending(request, token, self._eos)
