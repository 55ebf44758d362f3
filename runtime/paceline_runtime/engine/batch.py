"""One step's work, and how its tokens are shared out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .limits import SchedulerLimits
from .request import Request
from .tiers.transfer import Transfer


class BlockCopy(NamedTuple):
    """Copy a block of the KV cache to another before the step, over all layers: the source is shared and stays."""

    source: int
    target: int


@dataclass(slots=True)
class ScheduledSeq:
    """`count` tokens of a request, from `request.num_computed` on.

    Attributes:
        choices: the requests that take a new token each from the logits of the last position, every one with its own
            random stream; `len(choices)` tokens are sampled from that one row. Usually the request alone; also the
            further answers to the same prompt (`AddRequest.fork_ids`) in the step that completes it; none where the
            prompt goes on, or no token is wanted (`max_tokens` 0).
    """

    request: Request
    count: int
    choices: tuple[Request, ...] = ()

    @property
    def samples(self) -> bool:
        """Whether this step's last position yields new tokens."""
        return bool(self.choices)


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work, decodes first. `seqs` may be empty where there are only blocks to move.

    Attributes:
        transfers: blocks to move between memories first (`BlockMover.execute`), then `Scheduler.transferred` is told.
        copies: blocks to copy within the cache, after the transfers and before the forward. No block is the source of
            one and the target of another, so their order does not matter.
    """

    seqs: tuple[ScheduledSeq, ...]
    copies: tuple[BlockCopy, ...] = ()
    transfers: tuple[Transfer, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens over all sequences."""
        return sum(seq.count for seq in self.seqs)


def piece(wanted: int, room: int, decodes: int, alone: bool, limits: SchedulerLimits) -> int:
    """Tokens of a prompt that are computed in this step.

    Args:
        wanted: tokens that the request still has to compute.
        room: tokens left in this step.
        decodes: tokens that decodes took of it.
        alone: nobody else wants tokens, in this step or the queue: all that is left may be taken.

    Returns:
        0 where it should rather wait for a step with more room. It does not wait where decodes alone leave less than
        the least piece, since then the next step is no better.
    """
    if alone:
        return min(wanted, room)
    share = max(limits.max_batched_tokens * limits.max_step_share_percent // 100, 1)
    count = min(wanted, room, limits.prefill_chunk_tokens, max(share, limits.prefill_min_chunk_tokens))
    least = min(limits.prefill_min_chunk_tokens, limits.max_batched_tokens - decodes)
    return count if count >= min(least, wanted) else 0


class StepPlan:
    """A batch in the making, of `room` tokens at the most."""

    def __init__(self, limits: SchedulerLimits, room: int) -> None:
        self.room = room
        self._limits = limits
        self._decodes: dict[str, ScheduledSeq] = {}
        self._prompts: dict[str, ScheduledSeq] = {}

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._decodes or request.request_id in self._prompts

    def piece(self, wanted: int, *, alone: bool) -> int:
        """Tokens of a prompt that would be computed in this step; 0 where it should wait."""
        return piece(wanted, self.room, len(self._decodes), alone, self._limits)

    def add(self, request: Request, count: int) -> None:
        """Compute `count` tokens of a request."""
        total = len(request.tokens)
        choices: tuple[Request, ...] = ()
        if request.num_computed + count == total and total < request.max_len:
            choices = (request, *request.forks) if request.forks else (request,)
        decodes = count == 1 and request.num_computed >= request.prompt_len
        where = self._decodes if decodes else self._prompts
        where[request.request_id] = ScheduledSeq(request, count, choices)
        self.room -= count

    def drop(self, request: Request) -> None:
        """A request that was planned lost its blocks."""
        seq = self._decodes.pop(request.request_id, None) or self._prompts.pop(request.request_id, None)
        if seq is not None:
            self.room += seq.count

    def batch(self, copies: tuple[BlockCopy, ...], transfers: tuple[Transfer, ...]) -> Batch | None:
        """The step; `None` if there is nothing to do in it."""
        seqs = (*self._decodes.values(), *self._prompts.values())
        return Batch(seqs, copies, transfers) if seqs or copies or transfers else None
