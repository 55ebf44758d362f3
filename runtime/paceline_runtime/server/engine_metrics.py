"""What the engine core counts, as it last reported it; nothing at all before its first report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline_crds import metrics as catalogue
from paceline_runtime.messages import EngineStats, StepPhases

PHASES: Final = StepPhases.__struct_fields__
MOST_SERIES: Final = 64
"""Of one family. Reasons are the engine's own words and few; a fault there must not flood whoever scrapes."""

_FAMILY: Final[dict[str, type[GaugeMetricFamily] | type[CounterMetricFamily]]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
}


def class_name(priority: str) -> str:
    """`high`, `normal` or `low` for a priority, of which lower is sooner; the engine's words for others stay."""
    sign, digits = priority[:1] == "-", priority.lstrip("-")
    if not digits.isdigit():
        return priority
    return "normal" if int(digits) == 0 else "high" if sign else "low"


Rows = Iterable[tuple[tuple[str, ...], float]]


class EngineCollector(Collector):
    """The engine's series, made when they are read."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.stats: EngineStats | None = None
        self._reasons: dict[str, None] = {}
        self.phases = dict.fromkeys(PHASES, 0.0)

    def collect(self) -> Iterator[Metric]:
        stats = self.stats
        if stats is None:
            return
        total = stats.kv_blocks_total
        for metric, value in (
            (catalogue.RUNTIME_REQUESTS_RUNNING, stats.running),
            (catalogue.RUNTIME_REQUESTS_WAITING, stats.waiting),
            (catalogue.RUNTIME_KV_CACHE_USAGE, stats.kv_blocks_used / total if total else 0.0),
            (catalogue.RUNTIME_KV_BLOCKS, total),
            (catalogue.RUNTIME_KV_BLOCKS_EVICTED, stats.evicted_blocks_total),
            (catalogue.RUNTIME_PREFILL_TOKENS, stats.prefill_tokens),
            (catalogue.RUNTIME_DECODE_TOKENS, stats.decode_tokens),
            (catalogue.RUNTIME_PREEMPTIONS, stats.preemptions_total),
            (catalogue.RUNTIME_RECOMPUTED_TOKENS, stats.recomputed_tokens_total),
            (catalogue.RUNTIME_PREFIX_CACHE_QUERIES, stats.prefix_query_tokens_total),
            (catalogue.RUNTIME_PREFIX_CACHE_HITS, stats.prefix_hit_tokens_total),
            (catalogue.RUNTIME_GENERATION_TOKENS, stats.generation_tokens_total),
            (catalogue.RUNTIME_PREFILL_TOKENS_COMPUTED, stats.prompt_tokens_total),
            (catalogue.RUNTIME_ENGINE_STEPS, stats.step),
        ):
            yield self._family(metric, [((), value)])
        cached = stats.kv_blocks_cached
        free = max(0, total - stats.kv_blocks_used - cached)
        yield self._family(
            catalogue.RUNTIME_KV_BLOCKS_BY_STATE,
            [(("active",), stats.kv_blocks_used), (("cached",), cached), (("free",), free)],
        )
        # A reason that nobody waits for any more is zero, not gone: it is known.
        self._reasons.update(dict.fromkeys(sorted(stats.waiting_by_reason)))
        waiting = [((reason,), float(stats.waiting_by_reason.get(reason, 0))) for reason in self._reasons]
        yield self._family(catalogue.RUNTIME_WAITING_BY_REASON, waiting)
        lost: Counter[tuple[str, ...]] = Counter()
        for item in stats.preemptions:
            lost[item.reason, item.way, class_name(item.priority_class)] += item.count
        yield self._family(catalogue.RUNTIME_PREEMPTIONS_BY, lost.items())
        yield self._family(
            catalogue.RUNTIME_STEP_PHASE, [((phase,), seconds) for phase, seconds in self.phases.items()]
        )
        yield from self._tiers(stats)

    def _tiers(self, stats: EngineStats) -> Iterator[Metric]:
        for metric, attribute in (
            (catalogue.RUNTIME_TIER_ACTIVE, "active"),
            (catalogue.RUNTIME_TIER_BLOCKS, "blocks_total"),
            (catalogue.RUNTIME_TIER_BLOCKS_USED, "blocks_used"),
            (catalogue.RUNTIME_TIER_STORED, "stored_blocks_total"),
            (catalogue.RUNTIME_TIER_LOADED, "loaded_blocks_total"),
            (catalogue.RUNTIME_TIER_HITS, "hit_tokens_total"),
            (catalogue.RUNTIME_TIER_SAVED, "saved_seconds_total"),
            (catalogue.RUNTIME_TIER_COST, "cost_seconds_total"),
        ):
            yield self._family(metric, [((tier.name,), float(getattr(tier, attribute))) for tier in stats.tiers])

    def _family(self, metric: catalogue.Metric, rows: Rows) -> Metric:
        family = _FAMILY[metric.kind](metric.name, metric.help, labels=metric.labels)
        for n, (labels, value) in enumerate(rows):
            if n == MOST_SERIES:
                break
            family.add_metric([self._model_name, *labels], value)
        return family
