"""One replica with the engine's own scheduler and block manager; only the time that a step takes is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from paceline_crds.runtime_config import RuntimeParameters
from paceline_runtime.engine.block_manager import BlockManager
from paceline_runtime.engine.knobs import tuned
from paceline_runtime.engine.limits import limits_of, rules_of
from paceline_runtime.engine.scheduler import Batch, Refused, Scheduler
from paceline_runtime.messages import AddRequest, SamplingParams

from .engine import BLOCK_TOKENS, Event, Model, Report, Request

TOKEN = 7
"""What every answer is made of."""

FIRST_OWN = 1_000_000_000
"""Token of the first request's own text; a trace's blocks have lower names."""

LARGEST_BLOCK = 128
MOST_QUEUED = 1_000_000

StepCost = Callable[[Batch], float]
"""Seconds that a step takes."""


def model_cost(model: Model) -> StepCost:
    """Of a model whose layers were timed: weights by tokens, attention by what each token looks back on."""

    def cost(batch: Batch) -> float:
        attention = 0.0
        for seq in batch.seqs:
            before = seq.request.num_computed
            if before >= seq.request.prompt_len:
                attention += model.decode_context * before
            else:
                attention += seq.count * (model.chunk_token + model.chunk_context * before)
        return (model.weights(batch.num_tokens) + attention) / 1000.0

    return cost


def scheduler_of(parameters: RuntimeParameters, num_blocks: int) -> Scheduler:
    """The scheduler as a replica makes it.

    Args:
        num_blocks: of the KV cache, each of `parameters.block_size` tokens.
    """
    blocks = BlockManager(
        num_blocks,
        parameters.block_size,
        prefix_caching=parameters.prefix_caching,
        watermark_percent=parameters.eviction_watermark_percent,
    )
    return Scheduler(limits_of(parameters, num_blocks), blocks, frozenset(), rules_of(parameters))


def replica_of(model: Model) -> EngineReplica:
    """A replica of a model whose layers were timed, whose queue has no end."""
    parameters = RuntimeParameters(
        max_model_len=model.kv_tokens,
        max_num_seqs=model.max_seqs,
        max_batched_tokens=model.step_tokens,
        prefill_chunk_tokens=model.step_tokens,
        block_size=LARGEST_BLOCK,
        max_queued_requests=MOST_QUEUED,
    )
    return EngineReplica(scheduler_of(parameters, model.kv_tokens // LARGEST_BLOCK), model_cost(model))


class EngineReplica:
    """`advance(until)` runs it up to a time; `offer` gives it a request then.

    Attributes:
        busy: seconds spent in steps.
        refused: requests that it would not take.
    """

    def __init__(self, scheduler: Scheduler, cost: StepCost) -> None:
        self.now = 0.0
        self.busy = 0.0
        self.events: deque[Event] = deque()
        self.refused: list[Request] = []
        self._scheduler = scheduler
        self._cost = cost
        self._open: dict[str, Request] = {}
        self._reports = 0

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return self._scheduler.num_running

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._scheduler.num_waiting

    @property
    def ahead(self) -> int:
        """Prompt tokens not yet computed, of running and waiting requests."""
        return self._scheduler.prefill_tokens

    @property
    def worked(self) -> tuple[int, int]:
        """Prompt tokens computed and answer tokens made so far."""
        return self._scheduler.totals.prompt_tokens, self._scheduler.totals.generation_tokens

    @property
    def preemptions(self) -> int:
        """Requests that lost their blocks so far."""
        return self._scheduler.totals.preemptions

    def tune(self, started: RuntimeParameters, knobs: Mapping[str, int]) -> None:
        """Change limits from the next step on, as `PUT /v1/paceline/tuning` does.

        Args:
            started: what the scheduler was made with.
            knobs: by camelCase name.
        """
        self._scheduler.limit(tuned(started, self._scheduler.limits, knobs))

    def report(self) -> Report:
        """Its load now."""
        self._reports += 1
        blocks = self._scheduler.blocks
        percent = 100 * blocks.num_used // blocks.num_blocks
        return self.running, self.queued, percent, self.ahead, self._scheduler.decode_tokens, self._reports

    def unfinished(self) -> list[Request]:
        """The requests that have no end yet, in no order."""
        return list(self._open.values())

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self._scheduler.idle

    def offer(self, request: Request) -> None:
        """A request arrives; one that the engine refuses gets no answer."""
        name = str(request.number)
        try:
            self._scheduler.add(
                AddRequest(
                    request_id=name,
                    prompt_token_ids=prompt_of(request),
                    sampling=SamplingParams(max_tokens=request.output_tokens, ignore_eos=True),
                    arrival_time=request.arrival,
                ),
                seed=request.number,
                now=max(self.now, request.arrival),
            )
        except Refused:
            self.refused.append(request)
        else:
            self._open[name] = request

    def advance(self, until: float) -> None:
        """Compute steps until the clock has reached a time. A step that has begun is finished."""
        scheduler = self._scheduler
        while self.now < until:
            batch = scheduler.schedule(self.now)
            if batch is None:
                self.now = until
                return
            seconds = self._cost(batch)
            self.now += seconds
            self.busy += seconds
            sampled = {choice.request_id: TOKEN for seq in batch.seqs for choice in seq.choices}
            for answer, tokens, ended in scheduler.update(batch, sampled, self.now):
                request = self._open[answer.request_id]
                if tokens and request.first_token < 0:
                    request.first_token = self.now
                    self.events.append((self.now, request, self.report()))
                if ended is not None:
                    request.done = self.now
                    del self._open[answer.request_id]
                    self.events.append((self.now, request, None))
            scheduler.observe(seconds, batch)
            scheduler.take_ended()
            scheduler.take_events()


def prompt_of(request: Request) -> list[int]:
    """Tokens whose common beginnings with other prompts are those of the blocks' names, and no others."""
    whole = [name for name in request.blocks for _ in range(BLOCK_TOKENS)][: request.prompt_tokens]
    own = FIRST_OWN + request.number
    return whole + [own] * (request.prompt_tokens - len(whole))
