"""The prepared check of a GPU: its parts end in time, what they knew is kept, and a dry run claims no figure."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline_bench.gpu.command import NOT_MEASURED, main, table
from paceline_bench.gpu.kernels import Verdict, _cases, judge
from paceline_bench.gpu.pack import pinned
from paceline_bench.gpu.parts import (
    GRACE_SECONDS,
    PARTS,
    SHORTEST_SECONDS,
    TOTAL_SECONDS,
    Outcome,
    Part,
    run_part,
    run_parts,
)
from paceline_bench.gpu.record import Record, read

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 360

WRITES = """
import sys, time
from pathlib import Path
from paceline_bench.gpu.record import Record
name, _, lines, _, seconds = sys.argv[1:]
record = Record(name, Path(lines), measuring=True, seconds=float(seconds))
record.check("sum", name != "wrong", "1 + 1")
record.figure("rate", 2.5, "tokens/s", batch=8)
if name == "hangs":
    with Path(lines).open("a") as file:
        file.write('{"row": {"work": ')  # cut off in the middle of a line
    time.sleep(3600)
if name == "breaks":
    raise RuntimeError("an illegal memory access")
"""


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    script = tmp_path / "part.py"
    script.write_text(WRITES)
    return (sys.executable, str(script))


def test_all_parts_together_keep_to_six_minutes() -> None:
    # Beside them: the script's own beginning, and the last part's grace.
    assert TOTAL_SECONDS + 15 <= LIMIT_SECONDS
    assert f"--seconds $(({TOTAL_SECONDS:.0f} - SECONDS))" in (ROOT / "bench/gpu-check.sh").read_text()
    assert sum(part.seconds + GRACE_SECONDS for part in PARTS) <= TOTAL_SECONDS + SHORTEST_SECONDS, (
        "all have their time"
    )


def test_parts_for_which_there_is_too_little_time_are_left_off_and_said_to_be(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    # As if the first part had taken 70 s of 100, and the second all that was left.
    now = iter((0.0, 0.0, 70.0, 99.0, 120.0))
    parts = [Part("a", 60), Part("b", 60), Part("c", 60), Part("d", 60)]
    outcomes = run_parts(parts, tmp_path, lambda outcome: None, command, seconds=100, clock=lambda: next(now))
    assert [outcome.part.seconds for outcome in outcomes] == [60, 100 - 70 - GRACE_SECONDS, 60, 60]
    assert [outcome.ended for outcome in outcomes] == [True, True, False, False]
    assert all("left off: no time" in table(outcome) for outcome in outcomes[2:])


def test_kernels_of_which_some_cases_are_not_known_are_judged_by_the_others(tmp_path: Path) -> None:
    record = Record("kernels", tmp_path / "lines", measuring=True, seconds=60)
    verdicts = [
        Verdict("rotate", "float32", True, ""),
        Verdict("rotate", "float32", False, "differs"),
        Verdict("rotate", "float16", True, ""),
    ]
    judge(record, verdicts, 5)
    found = read(tmp_path / "lines")
    assert {(check.name, check.good): check.words for check in found.checks} == {
        ("rotate float16", True): "1 of 1 cases within rounding",
        ("rotate float32", False): "1 of 2 cases within rounding; first: differs",
    }
    assert found.notes == ["kernels: 2 of 5 cases did not come to their end: no time"]


@pytest.mark.model
def test_a_check_of_kernels_that_is_cut_short_has_told_of_every_kernel() -> None:
    # The first of each kernel come before the second of any.
    kernels = [case.kernel for case in _cases(measuring=True)]
    assert set(kernels[: len(set(kernels))]) == set(kernels)


def test_a_part_that_breaks_has_told_what_it_knew_and_the_next_ones_run(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    told: list[str] = []
    parts = [Part("breaks", 60), Part("fine", 60), Part("wrong", 60)]
    outcomes = run_parts(parts, tmp_path / "out", lambda outcome: told.append(outcome.part.name), command)
    assert told == ["breaks", "fine", "wrong"]
    assert [outcome.ended for outcome in outcomes] == [False, True, True]
    assert "an illegal memory access" in outcomes[0].why
    assert [len(outcome.wrong) for outcome in outcomes] == [0, 0, 1]
    for outcome in outcomes:
        assert [(row.work, row.value, row.params) for row in outcome.found.rows] == [
            (f"gpu-{outcome.part.name}", 2.5, {"batch": 8})
        ]
    assert "NOT TO ITS END" in table(outcomes[0])
    assert "WRONG sum" in table(outcomes[2])


def test_a_part_that_hangs_is_ended_and_its_lines_are_kept(tmp_path: Path, command: tuple[str, ...]) -> None:
    # Long enough for a busy machine to have come to the point where it hangs.
    outcome = run_part(Part("hangs", 40), tmp_path, command, grace=0)
    assert not outcome.ended
    assert outcome.why == "it was ended after 40 s"
    assert [row.value for row in outcome.found.rows] == [2.5]


def test_a_part_does_not_outlive_the_check_that_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[subprocess.Popen[bytes]] = []

    class Ended(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None:
                parts.append(self)
                raise SystemExit(143)
            return super().wait()

    monkeypatch.setattr(subprocess, "Popen", Ended)
    with pytest.raises(SystemExit):
        run_part(Part("hangs", 60), tmp_path, (sys.executable, "-c", "import time; time.sleep(3600)"))
    assert [part.returncode for part in parts] == [-signal.SIGKILL]


def test_a_dry_run_keeps_what_was_checked_and_drops_figures(tmp_path: Path) -> None:
    now = 100.0
    record = Record("decode", tmp_path / "lines", measuring=False, seconds=30, clock=lambda: now)
    record.figure("tokens_per_s", 1e6, "tokens/s")
    record.check("tokens", True, "4 of 4")
    record.note("no time")
    now = 110.0
    assert record.left == 20
    found = read(tmp_path / "lines")
    assert found.rows == []
    assert [(check.part, check.good) for check in found.checks] == [("decode", True)]
    assert found.notes == ["decode: no time"]


def test_a_part_that_wrote_nothing_has_found_nothing(tmp_path: Path) -> None:
    found = read(tmp_path / "none")
    assert (found.checks, found.rows, found.notes) == ([], [], [])
    assert "it said nothing" in table(Outcome(Part("x", 1), 0.1, False, "it said nothing", found))


def test_wheels_come_in_the_locked_versions() -> None:
    lines = pinned((ROOT / "requirements/runtime.txt").read_text())
    assert all("==" in line and line.count("=") == 2 for line in lines)
    with pytest.raises(ValueError, match="does not pin torch"):
        pinned("numpy==2.0 \\\n  --hash=sha256:0\n", ("numpy", "torch"))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_dry_run_goes_through_every_part_and_measures_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here: `make gpu-check` measures")
    assert main(["check", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert NOT_MEASURED in printed
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["rows"] == []
    device, *parts = written["machine"]["probes"]
    assert device == {"device": "none: nothing was measured"}
    assert [part["part"] for part in parts] == [part.name for part in PARTS]
    assert all(part["ended"] for part in parts)
    assert {"engine", "logits", "kernels", "attention"} <= {part["part"] for part in parts if part["checks"]}


def test_memory_that_was_measured_stands_beside_what_the_ledger_counts(tmp_path: Path) -> None:
    from paceline_bench.gpu.decode import _compare
    from paceline_bench.gpu.models import BILLION
    from paceline_planner.accelerators import find
    from paceline_planner.ledger import Setup, ledger
    from paceline_planner.shapes import shape_of
    from paceline_runtime.model.device.memory import MemoryProfile

    planned = ledger(shape_of(BILLION), Setup(find("H200")))
    assert planned.model.parameters == pytest.approx(1.236e9, rel=0.01)
    for number, (share, step, good) in enumerate(((1.0, 2 << 30, True), (1.2, 40 << 30, False))):
        profile = MemoryProfile(planned.memory, 1 << 30, int(planned.weights * share), step, 1 << 29)
        lines = tmp_path / str(number)
        _compare(Record("decode", lines, measuring=True, seconds=60), profile, planned)
        found = read(lines)
        assert {check.name: check.good for check in found.checks} == {
            "weights beside the ledger": good,
            "the ledger's cache fits": good,
        }
        room = {row.system: row.value for row in found.rows if row.params["of"] == "room for the cache"}
        assert room == {"paceline": profile.kv_room / 2**30, "ledger": planned.kv_room / 2**30}
