"""Servers over HTTP, in turns: a real replica of ours on a model that loads in milliseconds."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from paceline_bench import serving
from paceline_bench.serving import Setup, make_prompts, requests_of_turn
from paceline_bench.systems import SYSTEMS


@pytest.mark.model
def test_streams_of_a_real_server_are_timed_and_one_that_fails_is_left_out(cache: Path, tmp_path: Path) -> None:
    # This Python has no vLLM: its server ends at once.
    systems = [(SYSTEMS[name], sys.executable) for name in ("vllm", "paceline", "hf-generate")]
    setup = Setup(streams=(1, 4), prompt_tokens=12, new_tokens=5, rounds=2, threads=1)
    outcome = serving.run("server-tiny", "float32", systems, setup, cache, tmp_path, lambda text: None)
    assert "the server ended with 1" in outcome.failures["vllm"]
    assert [case.params["streams"] for case in outcome.cases] == [1, 4]
    for case in outcome.cases:
        assert set(case.samples) == {"paceline"}
        assert len(case.samples["paceline"]) == 2
        assert case.median("paceline", "tokens_per_s") > 0
        # The first token is waited for longer than each further one, and neither took no time.
        assert case.median("paceline", "ttft_ms_p50") > case.median("paceline", "tpot_ms_p50") > 0
        answers = case.samples["paceline"][0].answers
        assert answers is not None
        assert len(answers) == requests_of_turn(case.params["streams"])


def test_prompts_have_exactly_the_tokens_asked_for(tiny: Path) -> None:
    draw = make_prompts(tiny, 20)
    prompts = [draw(random.Random(n)) for n in range(5)]
    assert {len(prompt) for prompt in prompts} == {20}
    assert len({tuple(prompt) for prompt in prompts}) == 5


def test_a_turn_has_a_request_for_each_stream_and_enough_for_a_median() -> None:
    assert [requests_of_turn(streams) for streams in (1, 8, 32, 128, 200)] == [4, 16, 64, 128, 200]
