"""The load of other engines, read from their /metrics pages. The pages are composed after those the engines write."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_router.engines import load
from paceline_router.engines.load import EngineLoad, load_from_metrics

HISTOGRAM = "".join(
    f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{edge}",model_name="org/model-7b"}} {edge * 10:.1f}\n'
    for edge in range(2000)
)

VLLM = """\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 9871.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/model-7b"} 12.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="org/model-7b"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="org/model-7b",reason="capacity"} 3.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="org/model-7b"} 0.7312
"""

SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 24.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 5.0
sglang:num_used_tokens{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 123859.0
sglang:token_usage{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 0.28
"""

LLAMA = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 96641
llamacpp:predicted_tokens_seconds nan
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 46
"""


def read(page: str) -> EngineLoad | None:
    return load_from_metrics(page.encode())


def test_vllm_of_today() -> None:
    assert read(HISTOGRAM + VLLM) == EngineLoad("vllm", running=12, waiting=3, kv_percent=73)


def test_vllm_before_the_cache_gauge_was_renamed() -> None:
    old = VLLM.replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    assert read(old) == read(VLLM)


def test_where_both_names_of_the_cache_gauge_are_shown_only_the_new_one_counts() -> None:
    both = VLLM + 'vllm:gpu_cache_usage_perc{engine="0",model_name="org/model-7b"} 0.1\n'
    assert read(both) == read(VLLM)


def test_data_parallel_ranks_and_models_add_up() -> None:
    page = VLLM + (
        'vllm:num_requests_running{engine="1",model_name="org/model-7b"} 8.0\n'
        'vllm:num_requests_waiting{engine="1",model_name="org/model-7b"} 0.0\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="org/model-7b"} 0.2688\n'
        'vllm:num_requests_running{engine="0",model_name="adapter"} 1.0\n'
    )
    assert read(page) == EngineLoad("vllm", running=21, waiting=3, kv_percent=50)


def test_sglang() -> None:
    assert read(SGLANG) == EngineLoad("sglang", running=24, waiting=5, kv_percent=28, context_tokens=123859)


def test_tensor_parallel_ranks_report_the_same_requests_and_count_once() -> None:
    assert read(SGLANG + SGLANG.replace('tp_rank="0"', 'tp_rank="1"')) == read(SGLANG)


def test_sglang_data_parallel_ranks_add_up() -> None:
    first = SGLANG.replace("{", '{dp_rank="0",')
    second = SGLANG.replace("{", '{dp_rank="1",').replace('tp_rank="0"', 'tp_rank="4"')
    assert read(first + second) == EngineLoad("sglang", running=48, waiting=10, kv_percent=28, context_tokens=247718)


def test_queues_by_priority_are_parts_of_the_whole() -> None:
    page = SGLANG.replace("{", '{priority="",') + 'sglang:num_queue_reqs{model_name="m",priority="7"} 5.0\n'
    assert read(page) == read(SGLANG)


def test_requests_that_wait_for_a_grammar_wait_too() -> None:
    loaded = read(SGLANG + 'sglang:num_grammar_queue_reqs{model_name="m"} 2.0\n')
    assert loaded is not None
    assert loaded.waiting == 7


def test_llama_cpp_of_today_does_not_tell_of_its_cache() -> None:
    loaded = read(LLAMA)
    assert loaded == EngineLoad("llama.cpp", running=4, waiting=46)
    assert loaded is not None
    assert loaded.requests == 50


def test_what_idle_slots_of_an_old_llama_cpp_keep_is_no_load() -> None:
    page = LLAMA + "llamacpp:kv_cache_usage_ratio 0.63\nllamacpp:kv_cache_tokens 1234\n"
    assert read(page) == read(LLAMA)


def test_absent_is_not_zero() -> None:
    loaded = read('vllm:num_requests_running{model_name="m"} 0.0\n')
    assert loaded == EngineLoad("vllm", running=0)
    assert loaded is not None
    assert loaded.requests is None


@pytest.mark.parametrize("value", ["NaN", "nan", "-1", "+Inf", "1e300", "twelve", '"4"', "0x10"])
def test_what_is_no_count_is_not_known(value: str) -> None:
    loaded = read(VLLM.replace(" 12.0\n", f" {value}\n"))
    assert loaded == EngineLoad("vllm", running=None, waiting=3, kv_percent=73)


def test_one_rank_that_is_not_known_makes_the_sum_not_known() -> None:
    page = VLLM + 'vllm:num_requests_running{engine="1",model_name="org/model-7b"} NaN\n'
    loaded = read(page)
    assert loaded is not None
    assert loaded.running is None
    assert loaded.waiting == 3


def test_a_cache_that_is_fuller_than_full_is_not_believed() -> None:
    loaded = read(VLLM.replace("0.7312", "73.12"))
    assert loaded is not None
    assert loaded.kv_percent is None


def test_a_line_that_was_cut_does_not_count() -> None:
    cut = VLLM.index(" 12.0\n") + len(" 1")
    assert read(VLLM[:cut]) is None


def test_label_values_may_hold_anything() -> None:
    name = 'model_name="a } \\" \\\\ , priority=\\"9\\" {"'
    loaded = read(VLLM.replace('model_name="org/model-7b"', name))
    assert loaded == read(VLLM)


def test_timestamps_carriage_returns_and_tabs_do_not_disturb() -> None:
    page = re.sub(r"(?m)^(vllm:.*) ([0-9.]+)$", "\\1\t\\2 1712345678901\r", VLLM)
    assert read(page) == read(VLLM)


@pytest.mark.parametrize(
    "page",
    ["", "\n", "<html>not found</html>", "# HELP vllm:num_requests_running words\n", "process_cpu_seconds_total 1\n"],
)
def test_other_pages_are_of_no_engine(page: str) -> None:
    assert read(page) is None


def test_pages_without_end_are_not_read() -> None:
    assert load_from_metrics(VLLM.encode() + b"#" * load.MAX_PAGE) is None


def test_a_gauge_with_too_many_series_is_not_known() -> None:
    page = "".join(f'vllm:num_requests_running{{model_name="m{n}"}} 1\n' for n in range(load.MAX_SERIES + 1))
    assert read(page) == EngineLoad("vllm")


@given(st.lists(st.one_of(st.sampled_from((VLLM + SGLANG + LLAMA).splitlines()), st.text(max_size=40)), max_size=30))
def test_no_page_breaks_the_reading(lines: list[str]) -> None:
    loaded = load_from_metrics("\n".join(lines).encode())
    if loaded is not None:
        assert all(value is None or value >= 0 for value in (loaded.running, loaded.waiting, loaded.kv_percent))


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=20))
def test_sums_over_ranks_are_exact(counts: list[int]) -> None:
    page = "".join(f'vllm:num_requests_running{{engine="{n}"}} {count}.0\n' for n, count in enumerate(counts))
    loaded = read(page)
    assert loaded is not None
    assert loaded.running == math.fsum(counts)
