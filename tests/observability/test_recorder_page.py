"""The recorder's page against the catalogue."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from paceline_crds import metrics as catalogue
from paceline_shadow_traffic.recorder.exposition import exposition
from paceline_shadow_traffic.recorder.plugins import Plugin
from paceline_shadow_traffic.recorder.recorder import Recorder
from paceline_shadow_traffic.recorder.store import Limits, Store


def test_metrics_are_exactly_those_of_the_catalogue(tmp_path: Path) -> None:
    recorder = Recorder(Store(tmp_path / "records", Limits()), [Plugin('quoted "name"', 1.0)])
    shown = {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            family.documentation,
            {frozenset(sample.labels) for sample in family.samples},
        )
        for family in text_string_to_metric_families(exposition(recorder))
    }
    assert shown == {m.name: (m.kind, m.help, {frozenset(m.labels)}) for m in catalogue.RECORDER}
