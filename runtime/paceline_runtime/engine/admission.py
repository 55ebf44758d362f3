"""What is refused before it is queued, and with which words."""

from __future__ import annotations

from paceline_crds.runtime_config import QueuePolicy
from paceline_runtime.messages import AddRequest, RejectCode

from .books import Books
from .limits import SchedulerLimits, SchedulingRules
from .policy import urgency
from .request import Request

LEAST_RETRY, MOST_RETRY = 1.0, 600.0


class Refused(Exception):
    """A request that is not queued; the message is fit for the client.

    Attributes:
        retry_after: seconds after which it is worth trying again; `None` where that is not known or of no use.
    """

    def __init__(self, code: RejectCode, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after = retry_after


def most_tokens(message: AddRequest, limits: SchedulerLimits, capacity: int) -> int:
    """Test a request against an empty engine.

    Args:
        capacity: tokens that the whole KV cache holds.

    Returns:
        The most tokens that each of its answers can come to, prompt included.

    Raises:
        Refused: if it could never be served.
    """
    prompt_len, max_tokens = len(message.prompt_token_ids), message.sampling.max_tokens
    limit = limits.max_model_len
    if prompt_len < 1:
        raise Refused(RejectCode.INVALID, "the prompt is empty; it needs at least one token")
    if max_tokens is not None and max_tokens < (message.sampling.prompt_logprobs is None):
        raise Refused(
            RejectCode.INVALID,
            f"max_tokens is {max_tokens}; it has to be at least 1, or 0 where only the prompt's log-probabilities are "
            "wanted",
        )
    if message.probe and message.fork_ids:
        raise Refused(RejectCode.INVALID, "a probe has one answer; leave fork_ids empty")
    slots = 1 + len(message.fork_ids)
    if slots > limits.max_num_seqs:
        raise Refused(
            RejectCode.INVALID,
            f"{slots} answers are asked for; this replica runs at most {limits.max_num_seqs} at once: ask for fewer, "
            "in several requests",
        )
    if prompt_len > limit or (prompt_len == limit and max_tokens != 0):
        raise Refused(
            RejectCode.CONTEXT_LENGTH,
            f"the prompt has {prompt_len} tokens; this model takes at most {limit} tokens of prompt and answer "
            f"together, so a prompt has to have at most {limit - 1}",
        )
    if max_tokens is not None and prompt_len + max_tokens > limit:
        raise Refused(
            RejectCode.CONTEXT_LENGTH,
            f"the prompt has {prompt_len} tokens and max_tokens is {max_tokens}, together "
            f"{prompt_len + max_tokens}; this model takes at most {limit}: ask for at most "
            f"{limit - prompt_len}, or shorten the prompt",
        )
    # The last token made is never read back, so it needs no place in the cache.
    max_len = min(limit, capacity + 1) if max_tokens is None else prompt_len + max_tokens
    if max(max_len - 1, prompt_len) > capacity:
        raise Refused(
            RejectCode.CONTEXT_LENGTH,
            f"prompt and answer may come to {max(max_len, prompt_len + 1)} tokens, but the whole KV cache of this "
            f"replica holds {capacity}; ask for fewer tokens or shorten the prompt",
        )
    return max_len


def retry_after(waiting: int, per_second: float | None) -> float | None:
    """Seconds until half of the queue is gone at the rate at which it empties; `None` where that is not known."""
    if per_second is None or per_second <= 0:
        return None
    return min(max(waiting / 2 / per_second, LEAST_RETRY), MOST_RETRY)


def check_queue(request: Request, books: Books, limits: SchedulerLimits, rules: SchedulingRules, now: float) -> None:
    """Test whether the queue has room for a request, and whether it can be in time.

    Raises:
        Refused: if not.
    """
    waiting, slots = books.waiting_slots, request.num_slots
    rate = books.rates.admissions_per_second(now)
    if waiting and waiting + slots > limits.max_waiting:
        raise Refused(
            RejectCode.QUEUE_FULL,
            f"{waiting} requests wait already, of the {limits.max_waiting} that this replica queues; try again later",
            retry_after(waiting, rate),
        )
    mine = books.tenants.waiting(request.tenant)
    if limits.tenant_max_waiting and mine and mine + slots > limits.tenant_max_waiting:
        raise Refused(
            RejectCode.TENANT_LIMIT,
            f"{mine} requests of this tenant wait already, of the {limits.tenant_max_waiting} that one tenant may have "
            "in this replica's queue; try again later",
            retry_after(mine, rate),
        )
    if request.deadline is not None:
        _check_deadline(request, request.deadline, books, rules, now)


def _check_deadline(request: Request, deadline: float, books: Books, rules: SchedulingRules, now: float) -> None:
    left = deadline - now
    if left <= 0:
        raise Refused(RejectCode.DEADLINE, f"the deadline passed {-left:.3f} s ago")
    blocks, totals = books.blocks, books.totals
    own = books.rates.own_seconds(len(request.tokens) - len(blocks.match(request).found) * blocks.block_size, 1)
    ahead_tokens = 0
    if not rules.fair_share and books.rates.prefill_token_seconds is not None:
        # Of a prompt ahead only what the prefix cache does not give is computed: by the share found so far.
        first_come = rules.policy is QueuePolicy.FCFS
        ahead_tokens = books.waiting_tokens if first_come else books.queue.tokens_ahead(request)
        if totals.prefix_query_tokens:
            ahead_tokens -= ahead_tokens * totals.prefix_hit_tokens // totals.prefix_query_tokens
    mine = urgency(request, rules)
    ahead_tokens += sum(
        other.num_new for other in books.running.values() if other.num_new > 1 and urgency(other, rules) <= mine
    )
    ahead = books.rates.own_seconds(ahead_tokens, 0)
    if own + ahead > left:
        raise Refused(
            RejectCode.DEADLINE,
            f"{left:.3f} s remain until the deadline; the first token takes at least {own + ahead:.3f} s: "
            f"{ahead:.3f} s for {ahead_tokens} prompt tokens ahead and {own:.3f} s for its own",
        )
