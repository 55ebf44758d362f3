"""The simulated replica with the engine's own scheduler, and what its times are compared with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_autoscaler.capacity import Rates
from paceline_crds.runtime_config import RuntimeParameters
from paceline_simulator.engine import Request
from paceline_simulator.exact import EngineReplica, prompt_of, scheduler_of
from paceline_simulator.trace import TraceError
from paceline_simulator.validation.command import compare, cost_of, percentile, simulate, times
from paceline_simulator.validation.real import poisson
from paceline_simulator.validation.recorded import read_run

RATES = Rates(prefill=1000.0, decode=100.0, floor=0.01)
PARAMETERS = RuntimeParameters(max_num_seqs=4, max_batched_tokens=256, prefill_chunk_tokens=128, max_model_len=4096)


def request(number: int, at: float, prompt: int, output: int, blocks: tuple[int, ...] = ()) -> Request:
    return Request(number, at, prompt, output, blocks, bytes)


def test_one_request_alone_takes_its_prompt_in_full_steps_and_then_a_step_a_token() -> None:
    [one] = simulate([request(0, 2.0, 600, 11)], PARAMETERS, 512, cost_of(RATES))
    assert one.first_token - one.arrival == pytest.approx(3 * 0.01 + 0.6), "nobody else wants anything: 256 at a time"
    assert one.done - one.first_token == pytest.approx(10 * (0.01 + 0.01))


def test_a_prompt_that_was_seen_before_is_not_computed_again() -> None:
    first = request(0, 0.0, 1025, 2, (7, 8))
    again = request(1, 10.0, 1025, 2, (7, 8))
    other = request(2, 20.0, 1025, 2, (7, 9))
    made = simulate([first, again, other], PARAMETERS, 512, cost_of(RATES))
    took = [one.first_token - one.arrival for one in made]
    assert took[1] < 0.1 * took[0]
    assert 0.4 * took[0] < took[2] < 0.6 * took[0], "half of it is known"
    assert prompt_of(first)[:1024] == prompt_of(again)[:1024]


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(1, 900), st.integers(1, 60)), min_size=1, max_size=25))
@settings(max_examples=25, deadline=None)
def test_every_request_is_answered_after_it_came_and_never_more_run_than_there_are_places(
    given_: list[tuple[float, int, int]],
) -> None:
    replica = EngineReplica(scheduler_of(PARAMETERS, 200), cost_of(RATES))
    made = [request(number, *one) for number, one in enumerate(sorted(given_))]
    for one in made:
        replica.advance(one.arrival)
        replica.offer(one)
    while not replica.idle:
        replica.advance(replica.now + 1.0)
    assert replica.refused == []
    for one in made:
        assert one.arrival < one.first_token <= one.done
    assert replica.busy <= replica.now + 1e-9
    for one in made:
        together = sum(other.first_token < one.first_token < other.done for other in made)
        assert together <= PARAMETERS.max_num_seqs


def test_percentiles_are_compared_in_milliseconds_for_both() -> None:
    assert [percentile([3.0, 1.0, 2.0], percent) for percent in (50, 90, 99)] == [2.0, 3.0, 3.0]
    real = [Request(0, 1.0, 10, 5, (), bytes, first_token=1.5, done=2.5)]
    assert (times(real, "TTFT"), times(real, "TPOT")) == ([0.5], [0.25])
    found = {(row.system, row.metric): row.value for row in compare("a run", "paceline", real, real, {})}
    assert found["paceline", "ttft_ms_p50"] == found["simulated", "ttft_ms_p50"] == 500.0
    assert found["simulated", "tpot_ms_p99"] == 250.0


def test_a_run_that_others_recorded_is_read_from_the_times_of_the_engine(tmp_path: Path) -> None:
    entry = {"request_id": "a", "input_toks": 9, "output_toks": 3, "arrival_time": 5e9, "queued_ts": 100.0}
    later = {**entry, "queued_ts": 102.0, "first_token_ts": 103.0, "last_token_ts": 103.5}
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps(later) + "\n" + json.dumps({**entry, "first_token_ts": 101.0, "last_token_ts": 101.5}))
    assert [(one.arrival, one.first_token, one.done) for one in read_run(path)] == [(0.0, 1.0, 1.5), (2.0, 3.0, 3.5)]
    path.write_text(json.dumps(entry))
    with pytest.raises(TraceError, match="not a run in LLMServingSim's form"):
        read_run(path)


def test_arrivals_are_at_random_times_and_prompts_of_two_runs_differ() -> None:
    first = poisson(5.0, 100.0, (10, 20), (1, 4), seed=0)
    assert 350 < len(first) < 650
    assert all(10 <= one.prompt_tokens <= 20 and 1 <= one.output_tokens <= 4 for one in first)
    second = poisson(5.0, 100.0, (10, 20), (1, 4), seed=1, first=len(first))
    assert not {one.number for one in first} & {one.number for one in second}
