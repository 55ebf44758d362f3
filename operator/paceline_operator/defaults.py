"""Values that a revision gets where the spec is silent, by hash version.

A release that wants other defaults adds a table under a new `HASH_VERSION` and leaves the old ones alone: a
service that was rendered with an older table keeps it (see `render.carried_from`), so that an upgrade of the
operator restarts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Defaults:
    """One table. Counts of tokens are tokens, periods and grace seconds.

    Attributes:
        max_batched_tokens: raised to a larger `maxNumSeqs` or `prefillChunkTokens` of the spec.
        max_num_seqs, prefill_chunk_tokens: lowered to a smaller `maxBatchedTokens`.
        startup_failures: probes, one each second, before a replica that loads its model is given up.
        spread: pods of a pool are spread over nodes and zones, as far as they go.
        pre_stop_seconds: a replica that is asked to end takes requests for so long, since senders learn of it late.
        ledger: sizes that the spec leaves out are counted, where model and accelerator are known (see `sizing`).
        grace_margin: seconds that a replica has beyond the longest request; 0: it has the grace period above, always.
    """

    max_model_len: int = 2048
    max_num_seqs: int = 32
    max_batched_tokens: int = 2048
    prefill_chunk_tokens: int = 512
    block_size: int = 16
    kv_cache_memory: str = "1Gi"
    prefix_caching: bool = True
    termination_grace_period_seconds: int = 630
    startup_failures: int = 3600
    readiness_period: int = 2
    liveness_period: int = 10
    spread: bool = True
    pre_stop_seconds: int = 2
    grace_margin: int = 30
    ledger: bool = True


TABLES: Mapping[int, Defaults] = MappingProxyType(
    {
        1: Defaults(spread=False, pre_stop_seconds=0, grace_margin=0, ledger=False),
        2: Defaults(ledger=False),
        3: Defaults(),
    }
)
