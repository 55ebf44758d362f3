"""The metric of what replicas say to the fixed question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline_crds import metrics as catalogue
from paceline_kube import Key

from .judge import Failed, Fault, Outcome

FAILED = "failed"
RESULTS = ("agrees", *(fault.value.lower() for fault in Fault), FAILED, "unknown")


class CanaryCollector(Collector):
    """Replicas by result, of every service that was asked; of others nothing, which is not zero."""

    def __init__(self, outcomes: Callable[[], Mapping[Key, Mapping[str, Outcome]]]) -> None:
        self._outcomes = outcomes

    def collect(self) -> Iterable[Metric]:
        metric = catalogue.OPERATOR_CANARY_REPLICAS
        family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        for key, outcomes in self._outcomes().items():
            counts = Counter(dict.fromkeys(RESULTS, 0))
            for one in outcomes.values():
                counts["agrees"] += len(one.agree)
                failed = sum(isinstance(why, Failed) for why in one.unknown.values())
                counts[FAILED] += failed
                counts["unknown"] += len(one.unknown) - failed + len(one.split)
                counts.update(fault.value.lower() for fault in one.faults.values())
            for result, count in counts.items():
                family.add_metric([*key, result], count)
        yield family
