"""One request as the engine sees it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from paceline_runtime.messages import SamplingParams


class RequestState(enum.Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FORKED = "forked"
    """Another answer to a prompt that its leader still computes: it has no blocks and is in no queue of its own."""
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """A request and what has been computed of it.

    There is no prefill or decode phase: `num_computed` catches up with `len(tokens)`, and whenever it has, the step's
    last position yields the next token.

    Attributes:
        tokens: prompt and made tokens.
        prompt_len: how many of `tokens` are the prompt.
        max_len: `tokens` never grows beyond this.
        seed: of the request's own random stream; drawn at arrival where the client gave none.
        num_computed: leading tokens whose keys and values are in the cache.
        blocks: cache blocks that hold them, in order; owned by the block manager.
        block_hashes: hashes of the leading whole blocks of `tokens`, as far as they were needed.
        hash_root: what the first of these hashes is chained to; empty is the block manager's own seed.
        num_registered: leading blocks that the prefix cache knows.
        num_cached: prompt tokens taken from the prefix cache when the request was first admitted.
        most_computed: the most that `num_computed` ever was; what is computed below it is computed again.
        promised: blocks set aside for its growth, so that it never gives way again.
        pinned: hashes of blocks that a lower memory keeps for it while it is preempted.
        admitted_at: when it first ran; `None` before.
        sequence: order of arrival; lower is more senior.
        forks: further answers to the same prompt that join when it is computed.
        leader: the request that computes the prompt, while this one is `FORKED`.
        ticket: marks its present place in the queue; 0 while it is in none.
        wait_reason: of its last `waits` event; `None` before the first and while it runs.
        num_waits: `waits` events told of it.
        sampling_state: the sampler's own; the scheduler never looks at it.
    """

    request_id: str
    tokens: list[int]
    prompt_len: int
    max_len: int
    sampling: SamplingParams
    seed: int
    arrival_time: float
    state: RequestState = RequestState.WAITING
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    hash_root: bytes = b""
    num_registered: int = 0
    num_cached: int = 0
    num_preemptions: int = 0
    most_computed: int = 0
    promised: int = 0
    pinned: list[bytes] = field(default_factory=list)
    admitted_at: float | None = None
    tenant: str = ""
    priority: int = 0
    deadline: float | None = None
    session: str = ""
    probe: bool = False
    counted: bool = True
    sequence: int = 0
    forks: list[Request] = field(default_factory=list)
    leader: Request | None = None
    ticket: int = 0
    wait_reason: str | None = None
    num_waits: int = 0
    sampling_state: object | None = None

    @property
    def num_new(self) -> int:
        """Tokens not yet computed: 1 while decoding, more while a prompt (or a preempted request) is computed."""
        return len(self.tokens) - self.num_computed

    @property
    def num_output(self) -> int:
        """Tokens made so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def num_slots(self) -> int:
        """Places in the batch that it takes: its own, and those of the answers that will join it."""
        return 1 + len(self.forks)

    @property
    def may_look_up(self) -> bool:
        """Whether cached blocks serve it: not where the log-probabilities of a prompt never computed are asked for."""
        return self.sampling.prompt_logprobs is None or self.most_computed >= self.prompt_len
