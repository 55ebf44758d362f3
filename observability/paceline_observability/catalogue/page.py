"""The reference page of the catalogue."""

from __future__ import annotations

from paceline_crds.metrics import OPERATOR, RECORDER, ROUTER, RUNTIME, SCRAPE_LABELS
from paceline_crds.names import OPERATOR_METRICS_PORT, REPLICA_PORT, REPLICA_PORT_NAME, ROUTER_ADMIN_PORT

_REPLICAS = (
    f"Port {REPLICA_PORT}, named `{REPLICA_PORT_NAME}`. Names that begin with `vllm:` have vLLM's meaning. "
    "Scraping adds the labels " + ", ".join(f"`{label}`" for label in SCRAPE_LABELS) + "; `revision` is the hash of "
    "the pool's configuration there, and the name of the InferenceRevision on the routers' series."
)
_ROUTER = (
    f"The admin port, {ROUTER_ADMIN_PORT}. What the times are and how goodput counts: "
    "[what a link costs](../concepts/link-cost.md)."
)
_OPERATOR = (
    f"Port {OPERATOR_METRICS_PORT}. `process_*` (Linux only) and `python_info` are of the operator's own process."
)
_RECORDER = "Only where copies of requests are recorded. The port of its API, 8082."
_SECTIONS = (
    ("Replicas", _REPLICAS, RUNTIME),
    ("Router", _ROUTER, ROUTER),
    ("Operator", _OPERATOR, OPERATOR),
    ("Recorder", _RECORDER, RECORDER),
)


def markdown() -> str:
    """The page: a table per component."""
    out = [
        "# Metrics",
        "",
        "Made from `crds/paceline_crds/metrics/` by `make crds`; edit that. A value that is not known is an absent "
        "series, never zero. A histogram has the series `_bucket` (with the label `le`), `_sum` and `_count`.",
    ]
    for title, text, metrics in _SECTIONS:
        out += ["", f"## {title}", "", text, "", "| name | type | unit | labels | meaning |", "|---|---|---|---|---|"]
        for metric in metrics:
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            out.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.help} |")
    return "\n".join(out) + "\n"
