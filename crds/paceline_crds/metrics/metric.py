"""What a metric family is, and the labels that several of them share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]
Component = Literal["runtime", "router", "operator", "recorder"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    Attributes:
        name: as after `# TYPE`: a counter's ends in `_total`, a histogram's is without `_bucket`, `_sum` and `_count`.
        kind: the Prometheus type.
        help: one line without line breaks.
        labels: names that the component itself sets, in the order in which it passes values; without `le`.
        unit: what is counted or measured, in the plural; empty for a flag or a constant 1.
        made_by: the component that exposes it.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    made_by: Component = field(kw_only=True)


SCRAPE_LABELS: Final = ("namespace", "service", "pool", "revision", "pod")
"""Labels that scraping adds to a replica's series. The engine never sets them: it does not know them."""

SERVICE_LABELS: Final = ("namespace", "service")
"""How the router names a service; first of the labels where there are more."""
