"""The text form of metrics for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from paceline_crds import metrics as catalogue

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, int | float]
"""Name, labels, value: of a counter all digits, so it stays the whole number that it is, also in compiled code."""

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


def exposition(samples: Iterable[Sample]) -> str:
    """The text format 0.0.4 of samples in any order.

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
        lines.append(f'{name}{{{text}{last}="{_escape(content)}"}} {value!r}')
    out: list[str] = []
    for name, lines in families.items():
        out += [f"# HELP {name} {FAMILIES[name].help}", f"# TYPE {name} {FAMILIES[name].kind}", *lines]
    return "\n".join(out) + "\n"


def _escape(value: str) -> str:
    if value.isalnum():
        return value
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
