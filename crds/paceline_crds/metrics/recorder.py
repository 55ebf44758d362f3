"""What the recorder of copied requests shows."""

from __future__ import annotations

from functools import partial

from .metric import Metric

_metric = partial(Metric, made_by="recorder")

RECORDER_PAIRS = _metric(
    "paceline_recorder_pairs_total",
    "counter",
    "Pairs from routers by what became of them: kept, known (told before), not_comparable, base_unreadable, failed "
    "(comparing raised an error), dropped (the queue was full).",
    ("outcome",),
    unit="pairs",
)
RECORDER_REPLAYS = _metric(
    "paceline_recorder_replays_total",
    "counter",
    "Requests asked again, greedy: replayed, dropped, base_failed, candidate_failed.",
    ("outcome",),
    unit="requests",
)
RECORDER_WAITING = _metric("paceline_recorder_pairs_waiting", "gauge", "Pairs that are not compared yet.", unit="pairs")
RECORDER_RECORDS = _metric("paceline_recorder_records", "gauge", "Comparisons that are kept.", unit="comparisons")
RECORDER_STORED = _metric(
    "paceline_recorder_stored_bytes", "gauge", "Bytes in use of the file that they are in.", unit="bytes"
)
RECORDER_PLUGIN_SCORES = _metric(
    "paceline_recorder_plugin_scores_total",
    "counter",
    "Calls of users' own comparisons by how they ended.",
    ("comparison", "outcome"),
    unit="calls",
)
