"""The alerts as texts: few, on metrics that exist, with a page each whose commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml
from runbooks import PAGES, RUNBOOKS, runbook_commands, runbook_queries

from paceline_observability.alerts import Windows, alerts, rule_file
from paceline_observability.alerts.file import routing_file
from paceline_observability.catalogue import BY_SERIES, stored_labels

ROOT = Path(__file__).parents[2]
CHART_FILES = ROOT / "charts/paceline/files/alerts"
ALERTS = alerts(Windows())

every_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)

SELECTOR = re.compile(r"\b((?:vllm:|paceline_|up\b)[a-z0-9_]*)(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring) \(([^)]*)\)")


def selectors(query: str) -> list[tuple[str, set[str]]]:
    """Each series that a query reads, with the labels it is chosen by."""
    return [(name, set(re.findall(r"(\w+)\s*[=!]~?", labels))) for name, labels in SELECTOR.findall(query)]


def unknown(query: str) -> list[str]:
    """What a query reads that nobody makes."""
    found = []
    for name, labels in selectors(query):
        if name == "up":
            continue
        if name not in BY_SERIES:
            found.append(name)
        elif strange := labels - stored_labels(name):
            found.append(f"{name}{{{', '.join(sorted(strange))}}}")
    return found


def test_there_are_at_most_nine() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS) <= 9


def test_the_committed_files_are_the_ones_that_are_generated() -> None:
    say = "run `make crds`"
    assert (CHART_FILES / "rules.yaml").read_text(encoding="utf-8") == rule_file(Windows()), say
    assert (CHART_FILES / "alertmanager.yaml").read_text(encoding="utf-8") == routing_file(), say
    shipped = {page.name: page.read_bytes() for page in (CHART_FILES.parent / "runbooks").iterdir()}
    assert shipped == {page.name: page.read_bytes() for page in PAGES}, say


@every_alert
def test_an_alert_reads_only_what_some_component_makes(alert: object) -> None:
    assert isinstance(alert, type(ALERTS[0]))
    assert selectors(alert.expr)
    assert unknown(alert.expr) == []


def test_the_accepted_length_is_counted_and_watched_exactly_where_there_is_speculation() -> None:
    """The engine has none yet, so there is nothing to promise; whoever brings it brings the rest."""
    crd = (ROOT / "charts/paceline/files/crds/paceline.io_inferenceservices.yaml").read_text(encoding="utf-8")
    asked_for = re.search(r"^\s+speculation:$", crd, re.MULTILINE) is not None
    assert re.search(r"^\s+prefixCaching:$", crd, re.MULTILINE), "fields are looked for as they are written"
    accepted = re.compile(r"accepted|spec_decode|draft")
    assert any(accepted.search(name) for name in BY_SERIES) is asked_for
    assert any(accepted.search(alert.expr) for alert in ALERTS) is asked_for


@every_alert
def test_an_alert_says_whom_it_concerns_in_its_words(alert: object) -> None:
    assert isinstance(alert, type(ALERTS[0]))
    for label in re.findall(r"\$labels\.(\w+)", alert.summary + alert.severity):
        made = label in alert.expr and (
            label in " ".join(GROUPING.findall(alert.expr)) or f'"{label}", "' in alert.expr
        )
        assert made, label


def test_durations_are_divided_and_nothing_else() -> None:
    shipped, short = rule_file(Windows()), rule_file(Windows(shorten=10))
    lengths = re.compile(r"\b\d+(?:ms|s|m|h)\b")
    # Words for people and the rest stay; `ten minutes` in a summary is about the rules as shipped.
    assert lengths.sub("_", shipped) == lengths.sub("_", short)
    assert "[6m]" in short
    assert Windows(shorten=10)("5m") == "30s"
    assert Windows(shorten=4)("1m30s") == "22500ms"
    with pytest.raises(ValueError, match="leaves nothing"):
        Windows(shorten=1e9)("1s")


def test_the_command_prints_the_rules_and_writes_nothing_outside_a_checkout(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline_observability.alerts"]
    said = subprocess.run([*command, "--shorten", "10"], check=True, capture_output=True, text=True, timeout=60).stdout
    assert said == rule_file(Windows(shorten=10))
    refused = subprocess.run([*command, "--write", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert list(tmp_path.iterdir()) == []


# --- runbooks


def test_every_alert_has_its_page_and_no_page_is_left_over() -> None:
    assert {page.stem for page in PAGES} == {alert.name for alert in ALERTS}
    index = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[(\w+)\]\(\1\.md\)", index, re.MULTILINE) == [alert.name for alert in ALERTS]
    for alert in ALERTS:
        assert (ROOT / alert.rule()["annotations"]["runbook_url"]).is_file()


@every_page
def test_a_page_answers_what_somebody_asks_at_night(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    heads = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert heads == ["What it means for users", "First", "Then", "What to tell them", "Silence it"]
    first = text.split("## First")[1].split("## Then")[0]
    assert re.search(r"^\$ |```promql", first, re.MULTILINE), "the first thing to do is a command"
    assert f"alertname={page.stem}" in text.split("## Silence it")[1]


@cache
def help_of(*command: str) -> str:
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("line", runbook_commands("paceline"), ids=" ".join)
def test_paceline_commands_of_the_pages_exist_with_their_options(line: list[str]) -> None:
    words = line[1:]
    # A subcommand is a word that its command's help lists.
    depth = (
        2 if len(words) > 1 and re.search(rf"^  {re.escape(words[1])} ", help_of(*_paceline(), words[0]), re.M) else 1
    )
    text = help_of(*_paceline(), *words[:depth])
    for word in words[depth:]:
        if word.startswith("-"):
            assert re.search(rf"(^|[\s,/]){re.escape(word.split('=')[0])}\b", text), f"{word} of {' '.join(line)}"


def _paceline() -> tuple[str, ...]:
    return (sys.executable, "-m", "paceline_cli")


@pytest.mark.parametrize("query", runbook_queries())
def test_a_query_of_the_pages_reads_what_some_component_makes(query: str) -> None:
    assert selectors(query)
    assert unknown(query) == []


def test_metrics_named_on_the_pages_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:vllm:|paceline_)[a-z0-9_]+)`", page.read_text(encoding="utf-8")):
            assert name in {*BY_SERIES, *(metric.name for metric in BY_SERIES.values())}, f"{name} in {page.name}"


def test_what_alertmanager_is_told_goes_by_labels_that_alerts_have() -> None:
    routing = yaml.safe_load(routing_file())
    assert routing["route"]["group_by"] == ["namespace", "service"]
    named = re.findall(r'alertname="(\w+)"', routing_file())
    assert set(named) <= {alert.name for alert in ALERTS}
