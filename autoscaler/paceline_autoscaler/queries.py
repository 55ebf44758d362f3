"""The questions to Prometheus about one pool, always with its namespace, service and pool: a fleet has many of them."""

from __future__ import annotations

import math

from paceline_crds import metrics

from .source import Pool

ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def matchers(**labels: str) -> str:
    """`{name="value",…}` with what PromQL wants escaped."""
    return "{" + ",".join(f'{name}="{value.translate(ESCAPES)}"' for name, value in labels.items()) + "}"


def raw(name: str, labels: str, window: float) -> str:
    """The points of a window as they were scraped, with their own times."""
    return f"{name}{labels}[{math.ceil(window)}s]"


def quantile(name: str, labels: str, window: float, share: float) -> str:
    """A quantile of a histogram over all replicas; NaN where nothing was observed."""
    return f"histogram_quantile({share:g}, sum by (le) (rate({name}_bucket{labels}[{math.ceil(window)}s])))"


def attainment(labels: str, window: float) -> str:
    """The share of requests that kept all their objectives; NaN where there were none."""
    span = f"[{math.ceil(window)}s]"
    kept, judged = labels[:-1] + ',slo="goodput",result="met"}', labels[:-1] + ',slo="goodput"}'
    name = metrics.ROUTER_SLO_REQUESTS.name
    return f"sum(rate({name}{kept}{span})) / sum(rate({name}{judged}{span}))"


def of_pool(pool: Pool) -> str:
    """Matchers of the replicas' series."""
    return matchers(namespace=pool.namespace, service=pool.service, pool=pool.pool)


def of_service(pool: Pool) -> str:
    """Matchers of the routers' series: they know services."""
    return matchers(namespace=pool.namespace, service=pool.service)
