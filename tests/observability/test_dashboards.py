"""The boards: on metrics that exist, and as committed. That each panel is answered by a fleet is in e2e/."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from promtool import run

from paceline_observability.catalogue import BY_SERIES, stored_labels
from paceline_observability.dashboards import BOARDS, Board, Panel, concrete
from paceline_observability.dashboards.__main__ import FOLDER, text

ROOT = Path(__file__).parents[2]

every_board = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
every_panel = pytest.mark.parametrize(
    ("board", "panel"),
    [pytest.param(board, panel, id=f"{board.name}: {panel.title}") for board in BOARDS for panel in board.panels],
)

SELECTOR = re.compile(r"((?:vllm:|paceline_)[a-z0-9_]+)(?:\{([^}]*)\})?")
BY = re.compile(r"\bby \(([^)]*)\)")


@every_board
def test_the_committed_board_is_the_one_that_is_generated(board: Board) -> None:
    assert (ROOT / FOLDER / f"{board.name}.json").read_text(encoding="utf-8") == text(board), "run `make crds`"
    assert len(list((ROOT / FOLDER).iterdir())) == len(BOARDS)


@every_panel
def test_a_panel_reads_and_groups_by_what_some_component_makes(board: Board, panel: Panel) -> None:
    for query in panel.queries:
        found = SELECTOR.findall(query.expr)
        assert found
        grouped = {label.strip() for labels in BY.findall(query.expr) for label in labels.split(",")}
        for name, labels in found:
            chosen = set(re.findall(r"(\w+)\s*[=!]~?", labels))
            assert chosen | grouped <= stored_labels(name)
            assert ({"namespace", "service"} <= chosen) == board.of_one_service
            if BY_SERIES[name].kind == "counter" or name.endswith("_bucket"):
                assert f"rate({name}" in query.expr
        assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= grouped


@every_board
def test_panels_lie_beside_each_other_and_inside_the_grid(board: Board) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board.json()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_units_are_the_catalogues_and_per_second_where_a_rate_is_taken() -> None:
    units = {panel.title: panel.shown_unit for board in BOARDS for panel in board.panels}
    assert units["Time to first token"] == "s"
    assert units["Requests that failed"] == "reqps"
    assert units["Steps by phase"] == "percentunit"
    assert units["Goodput"] == units["KV cache held"] == "percentunit"


@pytest.mark.cluster
def test_prometheus_can_read_every_query(tmp_path: Path) -> None:
    rules = [
        {
            "record": f"panel:{board.name}:{number}_{part}",
            "expr": concrete(query.expr, namespace="demo", service="chat", interval="1m"),
        }
        for board in BOARDS
        for number, panel in enumerate(board.panels)
        for part, query in enumerate(panel.queries)
    ]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in run("check", "rules", "rules.yaml", folder=tmp_path)
    assert "$" not in json.dumps(rules)
