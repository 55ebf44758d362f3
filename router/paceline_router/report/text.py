"""The text forms of metrics for Prometheus: 0.0.4, and OpenMetrics, which has exemplars."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from paceline_crds import metrics as catalogue

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, int | float]
"""Name, labels, value: of a counter all digits, so it stays the whole number that it is, also in compiled code."""

Place = tuple[str, Labels]
"""One series, by name and labels."""
Exemplar = tuple[str, float]
"""Id of a request, and its value."""

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

BREATH = 100
"""Series after which the interpreter is offered to the thread of the data path, which may not wait for a whole page."""

FAMILIES: Mapping[str, catalogue.Metric] = {metric.name: metric for metric in catalogue.ROUTER}
"""All that may be shown, by name."""


def service_labels(key: str) -> Labels:
    """Labels of a service from its `namespace/name`."""
    namespace, _, name = key.partition("/")
    return tuple(zip(catalogue.SERVICE_LABELS, (namespace, name), strict=True))


def sample(metric: catalogue.Metric, labels: Labels, *rest: str, value: int | float) -> Sample:
    """One series of a metric: its first labels as given, the others by their values in the catalogue's order."""
    return metric.name, (*labels, *zip(metric.labels[len(labels) :], rest, strict=True)), value


def accepts_openmetrics(accept: str) -> bool:
    """Whether who asks with this `Accept` would take OpenMetrics; who only takes anything gets text."""
    return any(part.split(";")[0].strip().lower() == "application/openmetrics-text" for part in accept.split(","))


def exposition(samples: Iterable[Sample], exemplars: Mapping[Place, Exemplar] | None = None) -> str:
    """Samples in any order as text 0.0.4; or, with exemplars (there may be none), as OpenMetrics 1.0.0.

    Raises:
        KeyError: a metric that is not in `FAMILIES`.
    """
    families: dict[str, list[str]] = {}
    seen: dict[str, list[str]] = {}
    begun: dict[Labels, str] = {}
    for number, (name, labels, value) in enumerate(samples):
        if not number % BREATH:
            time.sleep(0)
        lines = seen.get(name)
        if lines is None:
            # A histogram's series have a suffix that its family has not.
            family = FAMILIES[name if name in FAMILIES else name.rsplit("_", 1)[0]].name
            lines = seen[name] = families.setdefault(family, [])
        # All digits: a rounded counter stands still for long and then leaps.
        if not labels:
            lines.append(f"{name} {value!r}")
            continue
        # Neighbours differ in their last label only.
        first = labels[:-1]
        text = begun.get(first)
        if text is None:
            text = begun[first] = "".join([f'{label}="{_escape(content)}",' for label, content in first])
        last, content = labels[-1]
        line = f'{name}{{{text}{last}="{_escape(content)}"}} {value!r}'
        if exemplars and (who := exemplars.get((name, labels))):
            line += f' # {{request_id="{_escape(who[0])}"}} {who[1]!r}'
        lines.append(line)
    out: list[str] = []
    for name, lines in families.items():
        kind = FAMILIES[name].kind
        # OpenMetrics names a family of counters without what its samples end in.
        family = name.removesuffix("_total") if exemplars is not None and kind == "counter" else name
        out += [f"# HELP {family} {FAMILIES[name].help}", f"# TYPE {family} {kind}", *lines]
    if exemplars is not None:
        out.append("# EOF")
    return "\n".join(out) + "\n"


def _escape(value: str) -> str:
    if value.isalnum():
        return value
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
