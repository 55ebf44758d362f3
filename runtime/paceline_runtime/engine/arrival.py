"""From a message to requests."""

from __future__ import annotations

import hashlib

from paceline_crds.runtime_config import Isolation
from paceline_runtime.messages import AddRequest

from .block_manager import BlockManager
from .hashing import salted_root
from .limits import SchedulingRules
from .request import Request, RequestState


def make_answers(
    message: AddRequest, seed: int, max_len: int, sequence: int, blocks: BlockManager, rules: SchedulingRules
) -> list[Request]:
    """One request for each answer that is asked for; the first leads, and the others join once the prompt is computed.

    Args:
        seed: of the first answer's random stream; those of the others are derived from it.
        max_len: the most tokens of each, prompt included.
        sequence: number of the first in the order of arrival.
    """
    if blocks.prefix_caching:
        tenant = message.tenant if rules.isolation is Isolation.PER_TENANT else None
        root = salted_root(blocks.seed, tenant=tenant, salt=message.cache_salt)
    else:
        # Blocks are still found by hash where they went to lower memory: each request finds its own only.
        root = salted_root(blocks.seed, private=str(sequence))
    answers = [
        Request(
            request_id=request_id,
            tokens=list(message.prompt_token_ids),
            prompt_len=len(message.prompt_token_ids),
            max_len=max_len,
            sampling=message.sampling,
            seed=answer_seed(seed, index),
            arrival_time=message.arrival_time,
            hash_root=root,
            tenant=message.tenant,
            priority=message.priority,
            deadline=message.deadline,
            session=message.session,
            probe=message.probe,
            counted=message.counted and not message.probe,
            sequence=sequence + index,
        )
        for index, request_id in enumerate((message.request_id, *message.fork_ids))
    ]
    leader, *forks = answers
    leader.forks = forks
    for fork in forks:
        fork.leader, fork.state = leader, RequestState.FORKED
    return answers


def answer_seed(seed: int, index: int) -> int:
    """Seed of one of several answers (signed 64 bits): the first has the request's own."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
