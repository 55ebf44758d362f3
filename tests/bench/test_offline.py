"""Systems in processes of their own, in turns: real ones, on a model that loads in milliseconds."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from paceline_bench import offline
from paceline_bench.models import gguf_file
from paceline_bench.offline import Setup
from paceline_bench.processes import ProcessGroup
from paceline_bench.systems import SYSTEMS
from paceline_bench.worker import Worker, WorkerError

LOAD = {"dtype": "float32", "max_batch": 2, "max_len": 32}


@pytest.fixture(autouse=True)
def _small_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "TOKEN_RANGE", (3, 512))
    # No job is repeated, however fast the machine is: the tests count answers.
    monkeypatch.setattr(offline, "TURN_SECONDS", 0.0)


@pytest.mark.model
def test_systems_take_turns_on_the_same_prompts_and_their_tokens_are_compared(cache: Path, tmp_path: Path) -> None:
    systems = [(SYSTEMS[name], sys.executable) for name in ("paceline", "hf-generate")]
    setup = Setup(batches=(1, 3), prompt_tokens=9, new_tokens=6, rounds=2, threads=1)
    said: list[str] = []
    outcome = offline.run("tiny", "float32", systems, setup, cache, tmp_path, said.append)
    assert outcome.failures == {}
    assert [case.params["batch"] for case in outcome.cases] == [1, 3]
    for case in outcome.cases:
        assert set(case.samples) == {"paceline", "hf-generate"}
        assert all(len(samples) == 2 for samples in case.samples.values())
        same, total = case.same_answers("hf-generate") or (0, 0)
        assert same == total == 2 * case.params["batch"]
        assert case.median("paceline", "tokens_per_s") > 0
    assert len(outcome.weather) == 4
    assert all(reading.memory_gb_s > 0 and reading.gemm_gflop_s > 0 for reading in outcome.weather)
    assert set(outcome.versions) == {"paceline", "hf-generate"}
    assert any("round 2 of 2" in line for line in said)


@pytest.mark.model
def test_a_system_that_fails_is_left_out_and_the_others_go_on(cache: Path, tmp_path: Path) -> None:
    # This Python has no vLLM; that is found out when it is loaded.
    systems = [(SYSTEMS[name], sys.executable) for name in ("vllm", "paceline")]
    setup = Setup(batches=(1,), prompt_tokens=9, new_tokens=4, rounds=1, threads=1)
    outcome = offline.run("tiny", "float32", systems, setup, cache, tmp_path, lambda text: None)
    assert "No module named 'vllm'" in outcome.failures["vllm"]
    assert set(outcome.cases[0].samples) == {"paceline"}


@pytest.mark.model
def test_the_gguf_holds_the_folder_s_weights(cache: Path, tiny: Path, tmp_path: Path) -> None:
    prompts, made = [[5, 9, 300, 41]], []
    for model in (tiny, gguf_file(tiny, "float32")):
        with Worker("paceline", sys.executable, "paceline", {}, tmp_path / "log") as worker:
            worker.ask("load", 120, model=str(model), **LOAD)
            made.append(worker.ask("generate", 60, prompts=prompts, new_tokens=12).value)
    assert made[0] == made[1]


def test_a_worker_that_cannot_do_it_says_why_and_one_that_ended_what_it_printed(tmp_path: Path) -> None:
    with Worker("probe", sys.executable, "probe", {}, tmp_path / "log") as worker:
        with pytest.raises(WorkerError, match="probe: AttributeError"):
            worker.ask("load", 60, dtype="float9")
        worker.ask("load", 60, dtype="float32")
        worker.pause()
        with pytest.raises(WorkerError, match=r"did not answer 'rates' in 0\.2 s"):
            worker.ask("rates", 0.2)
        worker.resume()
    with (
        Worker("none", sys.executable, "no_such_backend_\n", {}, tmp_path / "log") as worker,
        pytest.raises(WorkerError, match="No module named"),
    ):
        worker.ask("load", 60)


def test_all_that_a_process_started_ends_with_it(tmp_path: Path) -> None:
    script = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE).wait()"
    with ProcessGroup([sys.executable, "-c", script], environment={}, log=tmp_path / "log") as group:
        while len(list(group.members())) < 2:
            assert group.ended() is None
        group.pause()
    while list(group.members()):  # the kernel takes a moment; a process that lives on is found by the test's timeout
        time.sleep(0.01)
