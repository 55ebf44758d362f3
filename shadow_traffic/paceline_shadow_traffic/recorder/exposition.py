"""The recorder's own counters at `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping

from .recorder import Recorder


def exposition(recorder: Recorder) -> str:
    """The text format 0.0.4."""
    records, size = recorder.store.size()
    lines = [
        *_counter("paceline_recorder_pairs_total", "Pairs from routers by what became of them.", recorder.received),
        *_counter("paceline_recorder_replays_total", "Requests asked again, greedy.", recorder.replayer.outcomes),
        *_gauge("paceline_recorder_pairs_waiting", "Pairs that are not compared yet.", recorder.waiting),
        *_gauge("paceline_recorder_records", "Comparisons that are kept.", records),
        *_gauge("paceline_recorder_stored_bytes", "Bytes in use of the file that they are in.", size),
    ]
    name = "paceline_recorder_plugin_scores_total"
    lines += _head(name, "counter", "Calls of users' own comparisons by how they ended.")
    for plugin in recorder.plugins:
        for outcome, count in plugin.outcomes.items():
            lines.append(f'{name}{{comparison="{_escape(plugin.name)}",outcome="{outcome}"}} {count}')
    return "\n".join(lines) + "\n"


def _counter(name: str, words: str, counts: Mapping[str, int]) -> list[str]:
    return _head(name, "counter", words) + [f'{name}{{outcome="{label}"}} {count}' for label, count in counts.items()]


def _gauge(name: str, words: str, value: int) -> list[str]:
    return [*_head(name, "gauge", words), f"{name} {value}"]


def _head(name: str, kind: str, words: str) -> list[str]:
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
