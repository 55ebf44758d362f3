"""Every metric of every component: name, type, unit, labels, meaning, and who makes it.

The definitions are in `paceline_crds.metrics`, since components may import nothing else; this room is for whoever reads
metrics: pages, alerts and dashboards take names and labels from here and are checked against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from paceline_crds.metrics import CATALOGUE as CATALOGUE
from paceline_crds.metrics import SCRAPE_LABELS
from paceline_crds.metrics import Metric as Metric

BY_NAME: Final[Mapping[str, Metric]] = {metric.name: metric for metric in CATALOGUE}

TARGET_LABELS: Final = ("job", "instance", "component")
"""What scraping adds to every series; `component` is `operator`, `router`, `recorder`, or absent for replicas."""

_SUFFIXES: Final = ("_bucket", "_sum", "_count")


def series(metric: Metric) -> tuple[str, ...]:
    """Names under which Prometheus keeps a metric: a histogram's are three."""
    return tuple(metric.name + suffix for suffix in _SUFFIXES) if metric.kind == "histogram" else (metric.name,)


BY_SERIES: Final[Mapping[str, Metric]] = {name: metric for metric in CATALOGUE for name in series(metric)}
"""By the name of a series, as queries have it."""


def stored_labels(name: str) -> frozenset[str]:
    """Labels that a series may have once it is scraped as the chart says, `le` of buckets among them.

    Args:
        name: of a series, as in `BY_SERIES`.

    Raises:
        KeyError: no component makes it.
    """
    metric = BY_SERIES[name]
    own = {*metric.labels, *(("le",) if name != metric.name and name.endswith("_bucket") else ())}
    # The namespace and pod of a router or operator are added too, beneath what it says itself.
    added = SCRAPE_LABELS if metric.made_by == "runtime" else ("namespace", "pod")
    return frozenset({*own, *added, *TARGET_LABELS})
