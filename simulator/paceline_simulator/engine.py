"""One replica: continuous batching, prompts in chunks, a prefix cache of finite size, and the time of each step.

Step time, in ms, from the layer times of Llama 3.1 8B (bf16) on one RTX PRO 6000 that LLMServingSim profiled, over 32
layers:

* the weights' part, for T tokens in the step: max(10.3 + 0.014 T, 3.2 + 0.0358 T) + 0.9 for head and sampling + 1 of
  the host. (Measured sums over the layers: 10.1 at 1 token, 13.9 at 256, 22.2 at 512, 39.5 at 1024, 76.6 at 2048.)
* attention of a chunk of c prompt tokens after p earlier ones: c (0.0027 + 0.000001875 p). (Measured for c = 2048:
  172 us a layer at p = 0, 1152 at 8192, 2138 at 16384.)
* attention of decodes: 0.00009 for each token of context. (Measured: 64 x 4096 tokens in 754 us a layer.)

Left out: preemption (a request is admitted when all of it fits, so that none is ever needed), speculation, transfers.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

BLOCK_TOKENS = 512
"""Of the trace: its `hash_ids` name blocks of so many tokens."""


@dataclass(frozen=True, slots=True)
class Model:
    """How long a step takes (ms) and what fits.

    Attributes:
        kv_tokens: of the KV cache: 96 GB x 0.9 less 16 GB of weights, 128 KiB a token.
        step_tokens: prompt and decode tokens in one step.
        max_seqs: requests in one batch.
    """

    kv_tokens: int = 537_000
    step_tokens: int = 2048
    max_seqs: int = 128
    floor: float = 10.3
    floor_token: float = 0.014
    dense: float = 3.2
    dense_token: float = 0.0358
    other: float = 1.9
    chunk_token: float = 0.0027
    chunk_context: float = 1.875e-6
    decode_context: float = 9e-5

    def times(self, factor: float, kv_tokens: int) -> Model:
        """A model whose steps take `factor` times as long, with room for so many tokens."""
        return replace(
            self,
            kv_tokens=kv_tokens,
            floor=self.floor * factor,
            floor_token=self.floor_token * factor,
            dense=self.dense * factor,
            dense_token=self.dense_token * factor,
            chunk_token=self.chunk_token * factor,
            chunk_context=self.chunk_context * factor,
            decode_context=self.decode_context * factor,
        )

    def weights(self, tokens: int) -> float:
        """The part of a step that does not depend on context."""
        return max(self.floor + self.floor_token * tokens, self.dense + self.dense_token * tokens) + self.other


@dataclass(slots=True, eq=False)
class Request:
    """One request: what is asked, and what became of it (seconds; -1 while it has not happened).

    Attributes:
        blocks: names of the prompt's whole blocks of `BLOCK_TOKENS`.
        text: makes what a router sees; not kept, since a trace's prompts together are larger than memory.
        expected_output: what a router believes about the answer's length.
    """

    number: int
    arrival: float
    prompt_tokens: int
    output_tokens: int
    blocks: Sequence[int]
    text: Callable[[], bytes]
    session: bytes | None = None
    expected_output: int = 0
    replica: int = -1
    router: int = 0
    cached_tokens: int = 0
    first_token: float = -1.0
    done: float = -1.0
    left: int = 0
    estimate: int = 0
    mark: int = 0


Report: TypeAlias = tuple[int, int, int, int, int, int]
"""running, waiting, kv percent, ptok, dtok, seq, as in `x-paceline-load`."""

Event: TypeAlias = tuple[float, Request, Report | None]
"""When; whose first token (with the report sent along) or end (None)."""


class Serving(Protocol):
    """What a fleet asks of one of its replicas, however it is computed.

    Attributes:
        now: up to when it is computed.
        events: what has happened, in order; whoever reads takes out what lies before the time that matters to him.
    """

    now: float
    events: deque[Event]

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""

    @property
    def running(self) -> int:
        """Requests in the batch."""

    @property
    def queued(self) -> int:
        """Requests that wait."""

    @property
    def ahead(self) -> int:
        """Prompt tokens not yet computed, of running and waiting requests."""

    @property
    def worked(self) -> tuple[int, int]:
        """Prompt tokens computed and answer tokens made so far."""

    def report(self) -> Report:
        """Its load now."""

    def advance(self, until: float) -> None:
        """Compute steps until the clock has reached a time. A step that has begun is finished."""

    def offer(self, request: Request) -> None:
        """A request arrives."""

    def unfinished(self) -> list[Request]:
        """The requests that have no end yet, in no order."""


class Replica:
    """`advance(until)` runs it up to a time; `offer` gives it a request then.

    Attributes:
        events: what has happened, in order; whoever reads takes out what lies before the time that matters to him.
        busy: seconds spent in steps.
        computed, hits: prompt tokens computed or about to be, and found in the cache.
        generated: answer tokens made.
        ahead: prompt tokens not yet computed, of running and waiting requests.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.now = 0.0
        self.waiting: deque[Request] = deque()
        self.prefilling: deque[Request] = deque()
        # Step at which each running request is complete.
        self._finish: list[tuple[int, int, Request]] = []
        self._steps = 0
        self._held = 0  # tokens reserved by admitted requests
        self.ahead = 0
        self._beside = 0  # of them, those that no cached block stands for
        self._context = 0  # tokens of context of decoding requests
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._cache_blocks = model.kv_tokens // BLOCK_TOKENS
        self.busy = 0.0
        self.computed = 0
        self.hits = 0
        self.generated = 0
        self.events: deque[Event] = deque()
        self._reports = 0

    # What it says of itself

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._finish) + len(self.prefilling)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self.waiting)

    @property
    def worked(self) -> tuple[int, int]:
        """Prompt tokens computed and answer tokens made so far."""
        return self.computed - sum(request.left for request in self.prefilling), self.generated

    def report(self) -> Report:
        """Its load now."""
        self._reports += 1
        percent = 100 * self._held // self.model.kv_tokens
        return self.running, len(self.waiting), percent, self.ahead, self._context, self._reports

    # What it does

    def offer(self, request: Request) -> None:
        """A request arrives."""
        self.waiting.append(request)
        self.ahead += request.prompt_tokens

    def unfinished(self) -> list[Request]:
        """The requests that have no end yet, in no order."""
        return [*self.waiting, *self.prefilling, *(request for _, _, request in self._finish)]

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.waiting or self.prefilling or self._finish)

    def advance(self, until: float) -> None:
        """Compute steps until the clock has reached a time. A step that has begun is finished."""
        while self.now < until and not self.idle:
            self._admit()
            if self.prefilling:
                self._mixed_step()
            else:
                self._decode_steps(until)
        if self.now < until:
            self.now = until

    def _admit(self) -> None:
        model = self.model
        while self.waiting and self.running < model.max_seqs:
            request = self.waiting[0]
            if self._held + request.prompt_tokens + request.output_tokens > model.kv_tokens and self.running:
                return
            self.waiting.popleft()
            cached = 0
            for block in request.blocks[: (request.prompt_tokens - 1) // BLOCK_TOKENS]:
                if block not in self._cache:
                    break
                cached += 1
            request.cached_tokens = cached * BLOCK_TOKENS
            request.left = request.prompt_tokens - request.cached_tokens
            self.ahead -= request.cached_tokens
            self._held += request.prompt_tokens + request.output_tokens
            self._beside += request.left + request.output_tokens
            self._keep(request.blocks[:cached])
            self.prefilling.append(request)
            self.hits += request.cached_tokens
            self.computed += request.left

    def _keep(self, blocks: Sequence[int]) -> None:
        """Blocks are in use: the last of them the first to go."""
        cache = self._cache
        for block in reversed(blocks):
            cache[block] = None
            cache.move_to_end(block)
        room = max(0, self._cache_blocks - self._beside // BLOCK_TOKENS)
        while len(cache) > room:
            cache.popitem(last=False)

    def _mixed_step(self) -> None:
        """One step: all decodes, and prompts in order as far as the step's tokens go."""
        model = self.model
        decodes = len(self._finish)
        budget = model.step_tokens - decodes
        attention = model.decode_context * self._context
        tokens = decodes
        complete: list[Request] = []
        for request in self.prefilling:
            if budget <= 0:
                break
            chunk = min(budget, request.left)
            before = request.prompt_tokens - request.left
            attention += chunk * (model.chunk_token + model.chunk_context * before)
            request.left -= chunk
            self.ahead -= chunk
            budget -= chunk
            tokens += chunk
            if request.left == 0:
                complete.append(request)
        self._spend(model.weights(tokens) + attention)
        self._steps += 1
        self._context += decodes
        self.generated += decodes + len(complete)
        self._complete_decodes()
        for request in complete:
            self.prefilling.popleft()
            whole = request.prompt_tokens // BLOCK_TOKENS
            self._beside -= whole * BLOCK_TOKENS - request.cached_tokens
            self._keep(request.blocks[:whole])
            request.first_token = self.now
            self.events.append((self.now, request, self.report()))
            if request.output_tokens <= 1:
                self._end(request)
            else:
                self._context += request.prompt_tokens
                heapq.heappush(self._finish, (self._steps + request.output_tokens - 1, request.number, request))

    def _decode_steps(self, until: float) -> None:
        """As many steps of decodes alone as there are until one is complete or the time has come, at once."""
        model = self.model
        decodes = len(self._finish)
        steps = self._finish[0][0] - self._steps
        first = model.weights(decodes) + model.decode_context * self._context
        growth = model.decode_context * decodes
        if steps > 1:
            # steps x first + growth x steps (steps - 1) / 2 reaches the time left.
            left = (until - self.now) * 1000.0
            half = growth / 2.0
            root = ((first - half) ** 2 + 4.0 * half * left) ** 0.5
            steps = max(1, min(steps, int((root - (first - half)) / (2.0 * half)) + 1))
        self._spend(steps * first + growth * steps * (steps - 1) / 2.0)
        self._steps += steps
        self._context += decodes * steps
        self.generated += decodes * steps
        self._complete_decodes()

    def _spend(self, ms: float) -> None:
        self.now += ms / 1000.0
        self.busy += ms / 1000.0

    def _complete_decodes(self) -> None:
        while self._finish and self._finish[0][0] <= self._steps:
            request = heapq.heappop(self._finish)[2]
            self._context -= request.prompt_tokens + request.output_tokens - 1
            self._end(request)

    def _end(self, request: Request) -> None:
        request.done = self.now
        self._held -= request.prompt_tokens + request.output_tokens
        self._beside -= request.prompt_tokens % BLOCK_TOKENS + request.output_tokens
        self.events.append((self.now, request, None))
