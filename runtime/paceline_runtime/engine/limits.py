"""What bounds and rules the scheduler keeps to."""

from __future__ import annotations

from dataclasses import dataclass

from paceline_crds.runtime_config import Isolation, PressurePolicy, QueuePolicy, RuntimeParameters

RESERVE_PERCENT = 1
"""Share of the cache that a new request leaves to those that run already."""

CUSHION_PERCENT = 25
"""Most of the cache that is kept free for growth after preemptions."""

FEW_WAITING = 8
"""A queue of so many places or fewer is not shared out among tenants: the shares would be less than a request."""

MAX_PREEMPTIONS = 3
"""A request that lost its blocks this often is admitted only with room for all of its answer, and keeps it."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds in tokens and requests.

    Attributes:
        max_model_len: prompt and answer together.
        max_num_seqs: answers running at once (one probe may be beyond it).
        max_batched_tokens: tokens of one step.
        prefill_chunk_tokens: tokens of one request in one step, while others want tokens too.
        max_waiting: requests queued; more are refused.
        reserve_blocks: blocks that a new request leaves free while others run, for these to grow into, and for probes.
        prefill_min_chunk_tokens: a smaller piece of a prompt waits, unless it is the rest of it.
        max_step_share_percent: of `max_batched_tokens`, for one request while others want tokens too.
        tenant_max_seqs: answers of one tenant running at once, where its requests do not say; 0 is no bound.
        tenant_max_waiting: requests of one tenant queued; 0 is no bound.
        cushion_percent: share of the cache that the reserve may come to where requests had to be preempted.
    """

    max_model_len: int
    max_num_seqs: int
    max_batched_tokens: int
    prefill_chunk_tokens: int
    max_waiting: int
    reserve_blocks: int = 0
    prefill_min_chunk_tokens: int = 1
    max_step_share_percent: int = 100
    tenant_max_seqs: int = 0
    tenant_max_waiting: int = 0
    cushion_percent: int = 0


@dataclass(frozen=True, slots=True)
class SchedulingRules:
    """In which order the queue is taken. At most two are on at once (`RuntimeParameters` sees to that)."""

    policy: QueuePolicy = QueuePolicy.FCFS
    fair_share: bool = False
    under_pressure: PressurePolicy = PressurePolicy.NONE
    isolation: Isolation = Isolation.NONE


def default_max_waiting(max_num_seqs: int) -> int:
    """Requests that may queue: some batches' worth; who waits longer is better served by another replica."""
    return max(256, 8 * max_num_seqs)


def limits_of(parameters: RuntimeParameters, num_blocks: int, *, max_waiting: int | None = None) -> SchedulerLimits:
    """The limits that a configuration asks for, in a cache of `num_blocks`.

    Where tenants share the queue, none may fill more than half of it (a queue of a few places is anyone's).
    """
    if max_waiting is None:
        max_waiting = parameters.max_queued_requests or default_max_waiting(parameters.max_num_seqs)
    shared = parameters.scheduling_fair_share or parameters.tenant_max_seqs > 0
    return SchedulerLimits(
        max_model_len=parameters.max_model_len,
        max_num_seqs=parameters.max_num_seqs,
        max_batched_tokens=parameters.max_batched_tokens,
        prefill_chunk_tokens=parameters.prefill_chunk_tokens,
        max_waiting=max_waiting,
        reserve_blocks=num_blocks * RESERVE_PERCENT // 100,
        prefill_min_chunk_tokens=parameters.prefill_min_chunk_tokens,
        max_step_share_percent=parameters.max_step_share_percent,
        tenant_max_seqs=parameters.tenant_max_seqs,
        tenant_max_waiting=max(max_waiting // 2, min(max_waiting, FEW_WAITING)) if shared else 0,
        cushion_percent=CUSHION_PERCENT,
    )


def rules_of(parameters: RuntimeParameters) -> SchedulingRules:
    """The rules that a configuration asks for."""
    return SchedulingRules(
        policy=parameters.scheduling_policy,
        fair_share=parameters.scheduling_fair_share,
        under_pressure=parameters.scheduling_under_pressure,
        isolation=parameters.prefix_isolation,
    )
