from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline_bench import shapes
from paceline_bench.__main__ import app
from paceline_bench.shape_traces import TEXTS_EACH, TraceError, lines_of, read_traces, texts, together


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Traces in the form of the real ones, with lengths made up for the test."""
    azure = tmp_path / "azure2023"
    azure.mkdir()
    for name, output in (("code", 20), ("conv", 200)):
        lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
        lines += [f"2023-11-16 18:{n // 6:02}:{n % 6}0.9799600,{100 + n},{output + n % 5}" for n in range(120)]
        (azure / f"AzureLLMInferenceTrace_{name}.csv").write_bytes("\r\n".join(lines).encode())
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "conversation_trace.jsonl").write_text(
        "".join(
            json.dumps({"timestamp": 10_000 * n, "input_length": 5000, "output_length": 350, "hash_ids": []}) + "\n"
            for n in range(80)
        )
    )
    folder = tmp_path / "llmservingsim" / "workloads"
    folder.mkdir(parents=True)
    (folder / "sharegpt-llama-3.1-8b-300-sps10.jsonl").write_text(
        "".join(
            json.dumps({"arrival_time_ns": int(3e10) * n, "input_toks": 300, "output_toks": 700}) + "\n"
            for n in range(80)
        )
    )
    return tmp_path


def test_every_form_of_trace_is_read_in_order_of_arrival(traces: Path) -> None:
    found = read_traces(traces, 1)
    assert {name: len(lines) for name, lines in found.items()} == {
        "azure-code": 120,
        "azure-conv": 120,
        "mooncake-conv": 80,
        "sharegpt": 80,
    }
    first, second = found["azure-code"][:2]
    assert (first.at, first.prompt_tokens, first.output_tokens) == (0.0, 100, 20)
    assert second.at == pytest.approx(10.0)
    assert found["mooncake-conv"][0].text_bytes == pytest.approx(5000 * 4.2, rel=0.6)
    everything = together(found, tenants=False)
    assert [line.at for line in everything] == sorted(line.at for line in everything)
    assert {line.tenant for line in everything} == {""}


def test_a_missing_trace_and_one_of_another_form_are_named(traces: Path) -> None:
    path = traces / "mooncake" / "conversation_trace.jsonl"
    path.write_text('{"other": 1}\n')
    with pytest.raises(TraceError, match="does not have the form of mooncake-conv"):
        read_traces(traces, 1)
    path.unlink()
    result = CliRunner().invoke(app, ["shapes", "--traces", str(traces)])
    assert result.exit_code == 2
    assert "--traces names the folder" in result.output


def test_what_was_learned_comes_before_the_prior(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "prompt_errors", dict)
    result = CliRunner().invoke(app, ["shapes", "--traces", str(traces), "--out", str(tmp_path), "-o", "json"])
    assert result.exit_code == 0
    document = json.loads((tmp_path / "results.json").read_text())
    figures: dict[tuple[Any, ...], float] = {
        (row["params"]["trace"], row["params"]["estimate"], row["metric"]): row["value"]
        for row in document["rows"]
        if "decided" not in row["params"]
    }
    assert document["schema"] == "paceline.results/v1"
    assert figures["sharegpt", "learned", "shape_right"] > figures["sharegpt", "prior", "shape_right"]
    assert figures["azure-code", "learned", "length_error_median"] < 0.2
    assert figures["azure-code", "prior", "length_error_median"] > 5
    assert figures["together", "learned", "length_error_median"] < figures["nobody's", "learned", "length_error_median"]
    assert figures["sharegpt", "learned", "length_known"] > 50


def test_a_replay_is_the_same_each_time(traces: Path) -> None:
    lines = read_traces(traces, 1)["sharegpt"]
    assert shapes.replay(lines, learn=True) == shapes.replay(lines, learn=True)


def test_a_replay_that_fails_says_why() -> None:
    broken = lines_of([(0.0, 1, 1)], "a", 1)[0]
    object.__setattr__(broken, "at", "soon")
    with pytest.raises(RuntimeError, match="Expected `float`"):
        shapes.replay([broken], learn=True)


def test_texts_are_of_many_kinds_and_lengths() -> None:
    found = texts(1)
    assert {len(contents) for contents in found.values()} == {TEXTS_EACH}
    assert found == texts(1)
    assert min(map(len, found["English"])) < 300
    assert max(map(len, found["English"])) > 6000
    assert not "".join(found["Chinese"]).isascii()


@pytest.mark.model
def test_learning_brings_the_prompts_estimate_closer(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {kind: contents[:40] for kind, contents in texts(1).items() if kind in ("Chinese", "JSON")}
    monkeypatch.setattr(shapes, "texts", lambda seed: kinds)
    errors = shapes.prompt_errors()
    assert set(errors) == {("Chinese", "alone"), ("Chinese, escaped", "alone"), ("JSON", "alone"), ("all", "mixed")}
    for before, after in errors.values():
        assert after < before
        assert after < 0.2
