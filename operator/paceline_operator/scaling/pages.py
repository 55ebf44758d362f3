"""What a replica's `/metrics` page says of its load. Pure.

Only the few lines that are wanted are parsed, by the client library's own parser: a page has a thousand lines, and a
fleet is asked every few seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

from paceline_crds import metrics

GAUGES = (
    metrics.RUNTIME_REQUESTS_WAITING.name,
    metrics.RUNTIME_REQUESTS_RUNNING.name,
    metrics.RUNTIME_PREFILL_TOKENS.name,
    metrics.RUNTIME_KV_CACHE_USAGE.name,
)
COUNTERS = (
    metrics.RUNTIME_REQUESTS_RECEIVED.name,
    metrics.RUNTIME_PREFILL_TOKENS_COMPUTED.name,
    metrics.RUNTIME_GENERATION_TOKENS.name,
    metrics.RUNTIME_ENGINE_STEPS.name,
    metrics.RUNTIME_STEP_PHASE.name,
)
WANTED = (*GAUGES, *COUNTERS)


def values_of(page: str, wanted: Sequence[str] = WANTED) -> Mapping[str, str]:
    """By name, the sum over a page's series of it, as text; one that is no count stands for all. Absent: not there.

    Args:
        wanted: names of samples.

    Raises:
        ValueError: a wanted line is not of the format.
    """
    starts = tuple(f"{name}{after}" for name in wanted for after in ("{", " "))
    lines = "\n".join(line for line in page.splitlines() if line.startswith(starts))
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(lines + "\n"):
        for one in family.samples:
            before = sums.get(one.name, 0.0)
            # Neither a negative count nor a NaN may vanish in a sum.
            wrong = next((v for v in (before, one.value) if not (math.isfinite(v) and v >= 0.0)), None)
            sums[one.name] = before + one.value if wrong is None else wrong
    return {name: repr(value) for name, value in sums.items()}
