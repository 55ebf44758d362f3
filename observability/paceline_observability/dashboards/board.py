"""What a board and a panel are, and the JSON that Grafana reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from paceline_observability.catalogue import BY_SERIES, Metric

COLUMNS: Final = 24
"""Of Grafana's grid."""
HEIGHT: Final = 8
STAT_HEIGHT: Final = 4

_SERIES = re.compile(r"(?:vllm:|paceline_)[a-z0-9_]+")
_UNITS: Final[Mapping[str, str]] = {"seconds": "s", "ratio": "percentunit", "bytes": "bytes"}
_PER_SECOND: Final[Mapping[str, str]] = {"requests": "reqps", "seconds": "percentunit", "bytes": "Bps"}
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and how its lines are called."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        unit: Grafana's word; left out, it is that of the first metric, per second where a rate of it is taken.
        width: of `COLUMNS`.
        only: when there is anything to see, where that is not always.
    """

    title: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat"] = "timeseries"
    unit: str | None = None
    width: int = 8
    only: str | None = None

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What the queries read, each once.

        Raises:
            KeyError: no component makes it.
        """
        names = [name for query in self.queries for name in _SERIES.findall(query.expr)]
        return tuple(dict.fromkeys(BY_SERIES[name] for name in names))

    @property
    def shown_unit(self) -> str:
        """The unit of the axis."""
        if self.unit is not None:
            return self.unit
        first, expr = self.metrics[0], self.queries[0].expr
        if "histogram_quantile" not in expr and re.search(r"\brate\(", expr):
            return _PER_SECOND.get(first.unit, "short")
        return _UNITS.get(first.unit, "short")

    def json(self, number: int, x: int, y: int) -> dict[str, Any]:
        """The panel at a place of the grid."""
        words = [f"{metric.name}: {metric.help}" for metric in self.metrics]
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": "\n".join([*words, f"Only {self.only}."] if self.only else words),
            "datasource": _SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": HEIGHT if self.kind == "timeseries" else STAT_HEIGHT},
            "fieldConfig": {"defaults": {"unit": self.shown_unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + n), "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend}
                for n, query in enumerate(self.queries)
            ],
        }


@dataclass(frozen=True, slots=True)
class Board:
    """One board.

    Attributes:
        name: its file and its address, `paceline-NAME`.
        of_one_service: whether it has the variables `namespace` and `service`.
        rows: titles with their panels.
    """

    name: str
    title: str
    of_one_service: bool
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All of them."""
        return tuple(panel for _, panels in self.rows for panel in panels)

    def json(self) -> dict[str, Any]:
        """The board as Grafana imports it."""
        placed: list[dict[str, Any]] = []
        y = 0
        for title, panels in self.rows:
            placed.append(
                {
                    "id": len(placed) + 1,
                    "type": "row",
                    "title": title,
                    "collapsed": False,
                    "panels": [],
                    "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
                }
            )
            y += 1
            x = height = 0
            for panel in panels:
                if x + panel.width > COLUMNS:
                    x, y, height = 0, y + height, 0
                made = panel.json(len(placed) + 1, x, y)
                placed.append(made)
                x, height = x + panel.width, max(height, made["gridPos"]["h"])
            y += height
        return {
            "uid": f"paceline-{self.name}",
            "title": self.title,
            "tags": ["paceline"],
            "schemaVersion": 39,
            "editable": True,
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "templating": {"list": _variables(self.of_one_service)},
            "panels": placed,
        }


def _variables(of_one_service: bool) -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    if not of_one_service:
        return [source]
    available = "paceline_router_service_available"
    queries = {
        "namespace": f"label_values({available}, namespace)",
        "service": f'label_values({available}{{namespace="$namespace"}}, service)',
    }
    return [
        source,
        *(
            {"name": name, "type": "query", "datasource": _SOURCE, "query": query, "refresh": 2, "sort": 1}
            for name, query in queries.items()
        ),
    ]


def concrete(expr: str, *, namespace: str, service: str, interval: str) -> str:
    """A panel's query with Grafana's variables filled in, as Prometheus is asked.

    Args:
        interval: in place of `$__rate_interval`, for example `1m`.
    """
    values = {"$__rate_interval": interval, "$namespace": namespace, "$service": service}
    for variable, value in values.items():
        expr = expr.replace(variable, value)
    return expr
