"""Traces, fleets and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline_router.choice.policies import POLICIES
from paceline_router.choice.ring import conversation_key
from paceline_simulator.commands import app
from paceline_simulator.fleet import Fleet
from paceline_simulator.routing import figures, quantile
from paceline_simulator.trace import TraceError, first_answers, read_mooncake, shared_prompt, text_of


def write_trace(folder: Path, count: int = 60) -> Path:
    """Conversations of three turns that share a first block."""
    lines = []
    for number in range(count):
        talk, turn = number % (count // 3), number // (count // 3)
        blocks = [0, *(1 + talk * 50 + part for part in range(8 + 6 * turn))]
        lines.append(
            {"timestamp": number * 400, "input_length": len(blocks) * 512 - 30, "output_length": 60, "hash_ids": blocks}
        )
    path = folder / "talks.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def test_texts_share_a_beginning_exactly_where_their_blocks_do() -> None:
    one, other = text_of((1, 2, 3))(), text_of((1, 2, 4))()
    assert len(one) == len(other) == 6145
    assert one[:4096] == other[:4096]
    assert one[4096:4352] != other[4096:4352]


def test_turns_of_a_conversation_have_its_opening_in_common() -> None:
    first, later, last, other = (0, 1, 2), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5), (0, 1, 6, 7)
    answers = first_answers([first, other, later, last])
    assert answers == {3}
    keys = [conversation_key(text_of(blocks, answers)(), None) for blocks in (first, later, last, other)]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_a_trace_is_read_in_order_of_its_shifted_arrivals(tmp_path: Path) -> None:
    path = write_trace(tmp_path)
    one, two = (read_mooncake(path, 3.0, seed, speed=2.0) for seed in (0, 1))
    assert [request.arrival for request in one] == sorted(request.arrival for request in one)
    assert [request.arrival for request in one] != [request.arrival for request in two]
    assert max(request.arrival for request in one) <= (59 * 0.4 + 3.0) / 2
    assert len(read_mooncake(path, 0.0, 0, limit=7)) == 7


def test_a_trace_of_another_form_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n{"prompt": "x"}\n')
    with pytest.raises(TraceError, match="line 2: not a request of a Mooncake trace"):
        read_mooncake(path, 0.0, 0)
    with pytest.raises(TraceError, match="No such file"):
        read_mooncake(tmp_path / "none.jsonl", 0.0, 0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("routers", [1, 3])
def test_every_request_is_answered_under_every_policy(policy: str, routers: int, tmp_path: Path) -> None:
    requests = read_mooncake(write_trace(tmp_path), 3.0, 0)
    outcome = Fleet(policy, 3, routers).run(requests)
    assert all(request.arrival < request.first_token <= request.done for request in outcome.requests)
    assert sum(outcome.sent) == len(requests)


def test_a_run_can_be_repeated(tmp_path: Path) -> None:
    path = write_trace(tmp_path)
    runs = [figures(Fleet("cost", 4).run(read_mooncake(path, 3.0, 5))) for _ in range(2)]
    assert runs[0] == runs[1]


def test_conversations_keep_their_blocks_and_a_shared_prompt_makes_no_hot_spot(tmp_path: Path) -> None:
    found = {policy: Fleet(policy, 4).run(read_mooncake(write_trace(tmp_path), 3.0, 0)) for policy in POLICIES}
    assert found["cost"].hit_rate > 1.5 * found["round-robin"].hit_rate
    for rate in (1.0, 8.0, 40.0):
        sent = Fleet("cost", 4).run(shared_prompt(0, rate=rate)).sent
        assert max(sent) * 4 / sum(sent) <= 1.5


def test_several_routers_agree_on_conversations_they_have_not_seen(tmp_path: Path) -> None:
    outcome = Fleet("cost", 4, routers=8).run(read_mooncake(write_trace(tmp_path), 3.0, 0))
    alone = Fleet("round-robin", 4, routers=8).run(read_mooncake(write_trace(tmp_path), 3.0, 0))
    assert outcome.hit_rate > 1.5 * alone.hit_rate


def test_quantiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [quantile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert quantile([3.0], 0.99) == 3.0


def test_the_command_writes_results_in_the_common_form(tmp_path: Path) -> None:
    trace, out = write_trace(tmp_path), tmp_path / "out"
    arguments = ["routing", str(trace), "--replicas", "3", "--seeds", "2", "--speed", "1", "--speed", "2"]
    result = CliRunner().invoke(app, [*arguments, "--policy", "cost", "--policy", "round-robin", "--out", str(out)])
    assert result.exit_code == 0, result.output
    written = json.loads((out / "results.json").read_text())
    assert written["schema"] == "paceline.results/v1"
    assert {row["system"] for row in written["rows"]} == {"paceline", "round-robin"}
    assert {row["params"]["speed"] for row in written["rows"]} == {1.0, 2.0}
    assert {row["metric"] for row in written["rows"]} >= {"ttft_ms_p99", "hit_rate", "imbalance"}


def test_wrong_use_is_said_in_words(tmp_path: Path) -> None:
    runner = CliRunner()
    result = runner.invoke(app, ["routing", "--policy", "best"])
    assert result.exit_code == 2
    assert "round-robin" in result.output
    result = runner.invoke(app, ["routing", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "cannot read" in result.output
