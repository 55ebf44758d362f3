"""The recorder's own counters at `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping

from paceline_crds import metrics as catalogue

from .recorder import Recorder


def exposition(recorder: Recorder) -> str:
    """The text format 0.0.4."""
    records, size = recorder.store.size()
    lines = [
        *_counter(catalogue.RECORDER_PAIRS, recorder.received),
        *_counter(catalogue.RECORDER_REPLAYS, recorder.replayer.outcomes),
        *_gauge(catalogue.RECORDER_WAITING, recorder.waiting),
        *_gauge(catalogue.RECORDER_RECORDS, records),
        *_gauge(catalogue.RECORDER_STORED, size),
    ]
    scores = catalogue.RECORDER_PLUGIN_SCORES
    lines += _head(scores)
    for plugin in recorder.plugins:
        for outcome, count in plugin.outcomes.items():
            lines.append(f'{scores.name}{{comparison="{_escape(plugin.name)}",outcome="{outcome}"}} {count}')
    return "\n".join(lines) + "\n"


def _counter(metric: catalogue.Metric, counts: Mapping[str, int]) -> list[str]:
    return _head(metric) + [f'{metric.name}{{outcome="{label}"}} {count}' for label, count in counts.items()]


def _gauge(metric: catalogue.Metric, value: int) -> list[str]:
    return [*_head(metric), f"{metric.name} {value}"]


def _head(metric: catalogue.Metric) -> list[str]:
    return [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
