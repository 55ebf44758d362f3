"""Each alert, by the real promtool, on series written down: fires, does not; absence, restarts, deletions.

Every scenario holds the whole of what fires, so an alert that one fault should not raise is seen too. Values are
every 15 s: `0+4x20` is 4 more each time, for 5 minutes.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from promtool import firing, run, told
from runbooks import runbook_commands, runbook_queries

from paceline_local import build
from paceline_observability.alerts import Windows, rule_file

pytestmark = pytest.mark.cluster

CHAT = 'namespace="demo", service="chat"'
POD = f'{CHAT}, pool="default", pod="chat-0"'
MODEL = f'{POD}, model_name="m"'

# A Paceline that is there and quiet; without it PacelineMetricsMissing tells of that.
WELL = {
    'paceline_router_table_synced{pod="router-0"}': "1x400",
    'paceline_operator_leader{pod="operator-0"}': "1x400",
}


MINUTE = "1m"
"""Between values that are about hours."""


def goodput(met: str, missed: str) -> dict[str, str]:
    name = f'paceline_slo_requests_total{{{CHAT}, slo="goodput", pod="router-0"'
    return {f'{name}, result="met"}}': met, f'{name}, result="missed"}}': missed}


def test_promtool_finds_nothing_wrong_with_the_rules_at_any_length(tmp_path: Path) -> None:
    for name, windows in (("rules.yaml", Windows()), ("short.yaml", Windows(shorten=12))):
        (tmp_path / name).write_text(rule_file(windows), encoding="utf-8")
        assert "SUCCESS: 9 rules found" in run("check", "rules", "--lint=all", "--lint-fatal", name, folder=tmp_path)


def test_promql_and_kubectl_commands_of_the_runbooks_are_understood(tmp_path: Path) -> None:
    rules = [{"record": f"page:query:{number}", "expr": query} for number, query in enumerate(runbook_queries())]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "pages", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in run("check", "rules", "rules.yaml", folder=tmp_path)
    kubectl = build.control_plane_tools()["kubectl"]

    def asked(*words: str) -> str:
        return subprocess.run([kubectl, *words], capture_output=True, text=True, timeout=60, check=True).stdout

    lines, everywhere, texts = runbook_commands("kubectl"), asked("options"), {}
    assert lines
    for _, verb, *words in lines:
        if verb not in texts:
            texts[verb] = asked(verb, "--help") + everywhere
        ours = words[: words.index("--")] if "--" in words else words
        for flag in (word.split("=")[0] for word in ours if word.startswith("-")):
            assert re.search(rf"(^|[\s,]){re.escape(flag)}[=,:\s]", texts[verb]), f"{flag} of kubectl {verb}"


# --- PacelineBudgetBurning


def test_half_of_the_requests_missing_the_promise_wakes_somebody_and_stops_with_the_fault() -> None:
    series = WELL | goodput("0+4x300", "0+6x120 720x200")
    burning = {"PacelineBudgetBurning": [CHAT]}
    # Ten misses are there within a minute. After 30 minutes of it the lesser rate goes on until its half hour is clean.
    firing(series, {"15s": {}, "10m": burning, "30m": burning, "50m": burning, "62m": {}})


def test_the_words_of_a_burning_budget_have_the_share() -> None:
    labels = {"namespace": "demo", "service": "chat", "severity": "critical"}
    summary = "demo/chat: 60% of requests miss what is promised to users; 10% may"
    told(WELL | goodput("0+4x300", "0+6x300"), "30m", "PacelineBudgetBurning", labels, summary)


def test_a_smaller_share_wakes_only_when_it_lasts() -> None:
    # A quarter: under half, over a fifth. A burst of ten minutes is gone from the half hour before it counts.
    firing(WELL | goodput("0+48x120", "0+16x120"), {"2h": {"PacelineBudgetBurning": [CHAT]}}, MINUTE)
    firing(WELL | goodput("0+48x380", "0x300 0+16x10 160x70"), {"305m": {}, "310m": {}, "330m": {}}, MINUTE)


def test_what_the_promise_allows_is_silent() -> None:
    firing(WELL | goodput("0+76x120", "0+4x120"), {"1h": {}, "2h": {}}, MINUTE)


def test_few_requests_are_no_evidence() -> None:
    firing(WELL | goodput("0x300", "0x40 1x40 2x40 3x180"), {"15m": {}, "25m": {}, "40m": {}})


def test_no_traffic_is_silent_and_no_number_at_all() -> None:
    firing(WELL | goodput("50x300", "80x300"), {"10m": {}, "1h": {}})


def test_a_router_that_restarts_is_not_taken_for_missed_requests() -> None:
    reset = goodput("0+19x40 0+19x200", "0+1x40 0+1x200")
    firing(WELL | reset, {"10m": {}, "11m": {}, "15m": {}})
    # Nor does it hide them.
    firing(WELL | goodput("0+4x40 0+4x200", "0+6x40 0+6x200"), {"12m": {"PacelineBudgetBurning": [CHAT]}})


def test_a_deleted_service_stops_burning() -> None:
    firing(WELL | goodput("0+4x80 stale", "0+6x80 stale"), {"20m": {"PacelineBudgetBurning": [CHAT]}, "27m": {}})


def test_the_first_misses_count_since_both_results_are_there_from_the_start() -> None:
    # Without the zero the step from nothing to 30 would be no increase.
    firing(WELL | goodput("0x100", "0x20 30x80"), {"6m": {"PacelineBudgetBurning": [CHAT]}})


# --- PacelineNoAnswers


def router(outcome: str, available: str, in_flight: str = "0x400", other: str = "0x400") -> dict[str, str]:
    where = f'{CHAT}, pod="router-0"'
    return {
        f'paceline_router_requests_total{{{where}, outcome="5xx"}}': outcome,
        f'paceline_router_requests_total{{{where}, outcome="2xx"}}': other,
        f"paceline_router_service_available{{{where}}}": available,
        f"paceline_router_requests_in_flight{{{where}}}": in_flight,
    }


UNAVAILABLE = {"PacelineNoAnswers": [f'{CHAT}, how="unavailable"']}
HANGING = {"PacelineNoAnswers": [f'{CHAT}, how="hanging"']}


def test_requests_that_fail_while_nobody_serves_wake_somebody() -> None:
    series = WELL | router("0x20 0+2x40 80x200", "1x20 0x40 1x200")
    firing(series, {"5m": {}, "6m": {}, "10m": UNAVAILABLE, "15m": UNAVAILABLE, "24m": {}})
    labels = {"namespace": "demo", "service": "chat", "severity": "critical", "how": "unavailable"}
    summary = "demo/chat: no replica answers, 40 requests failed in five minutes"
    told(series, "14m", "PacelineNoAnswers", labels, summary)


def test_a_service_at_zero_that_nobody_asks_is_silent() -> None:
    firing(WELL | router("7x300", "0x300"), {"10m": {}, "1h": {}})


def test_requests_that_a_client_got_wrong_wake_nobody_while_nobody_serves() -> None:
    series = WELL | router("0x300", "0x300")
    series[f'paceline_router_requests_total{{{CHAT}, pod="router-0", outcome="4xx"}}'] = "0+5x300"
    firing(series, {"10m": {}, "1h": {}})


def test_one_router_that_reaches_a_replica_is_enough() -> None:
    series = WELL | router("0+1x300", "0x300")
    series[f'paceline_router_service_available{{{CHAT}, pod="router-1"}}'] = "1x300"
    firing(series, {"20m": {}})


def test_requests_that_go_in_while_nothing_comes_out_wake_somebody() -> None:
    tokens = {f"vllm:generation_tokens_total{{{MODEL}}}": "0+50x20 1000x200"}
    series = WELL | router("0x300", "1x300", "0x20 3x100 0x200", "0+1x20 20x400") | tokens
    firing(series, {"9m": {}, "14m": HANGING, "29m": HANGING, "37m": {}})
    labels = {"namespace": "demo", "service": "chat", "severity": "critical", "how": "hanging"}
    told(series, "20m", "PacelineNoAnswers", labels, "demo/chat: 3 requests are open and no token is made")


def test_a_long_answer_that_still_grows_is_no_hang() -> None:
    tokens = {f"vllm:generation_tokens_total{{{MODEL}}}": "0+50x300"}
    firing(WELL | router("0x300", "1x300", "1x300") | tokens, {"10m": {}, "1h": {}})
    prefill = {f"paceline_prefill_tokens_computed_total{{{MODEL}}}": "0+512x300"}
    firing(WELL | router("0x300", "1x300", "1x300") | prefill, {"10m": {}, "1h": {}})


def test_a_killed_router_leaves_no_hang_behind() -> None:
    series = WELL | router("0+1x40 stale", "1x40 stale", "1x40 stale", "0x40 stale")
    firing(series, {"11m": {}, "13m": {}, "16m": {}})


def test_a_deleted_service_is_asked_for_no_answers() -> None:
    firing(WELL | router("0+2x40 stale", "0x40 stale"), {"9m": UNAVAILABLE, "18m": {}})


# --- PacelineQueueLong


def queue(waiting: str, answered: str, promise: str | None = "0.8x400") -> dict[str, str]:
    series = {
        f"vllm:num_requests_waiting{{{MODEL}}}": waiting,
        f"vllm:time_to_first_token_seconds_count{{{MODEL}}}": answered,
        f'paceline_router_requests_held{{{CHAT}, pod="router-0"}}': "0x400",
    }
    if promise is not None:
        name = f'paceline_slo_threshold_seconds{{{CHAT}, signal="ttft", level="p90", pod="operator-0"}}'
        series[name] = promise
    return series


QUEUE = {"PacelineQueueLong": [CHAT]}


def test_a_queue_longer_than_the_promise_fires_and_clears() -> None:
    # Two answers a second and 0.8 s promised allow 1.6 waiting.
    series = WELL | queue("0x20 12x60 0x200", "0+30x300")
    firing(series, {"5m": {}, "9m": {}, "13m": QUEUE, "20m": QUEUE, "29m": {}})
    summary = "demo/chat: 12 requests wait, longer than the promised first token (P90)"
    labels = {"namespace": "demo", "service": "chat", "severity": "warning"}
    told(series, "15m", "PacelineQueueLong", labels, summary)


def test_a_queue_that_passes_fast_enough_is_silent() -> None:
    firing(WELL | queue("12x300", "0+300x300"), {"30m": {}})


def test_a_queue_that_nothing_leaves_fires() -> None:
    firing(WELL | queue("2x300", "500x300"), {"10m": QUEUE})


def test_requests_held_at_the_router_are_a_queue_too() -> None:
    series = WELL | queue("0x300", "500x300")
    series[f'paceline_router_requests_held{{{CHAT}, pod="router-0"}}'] = "5x300"
    firing(series, {"10m": QUEUE})
    # Also before any replica is there.
    for name in [name for name in series if name.startswith("vllm:")]:
        del series[name]
    firing(series, {"10m": QUEUE})


def test_without_a_promise_no_queue_is_too_long() -> None:
    firing(WELL | queue("50x300", "0+1x300", promise=None), {"30m": {}})


def test_a_lost_scrape_resolves_nothing() -> None:
    series = WELL | queue("50x40 stale _x3 50x200", "0+1x40 stale _x3 44+1x200")
    firing(series, {"9m": QUEUE, "10m15s": QUEUE, "11m": QUEUE, "12m": QUEUE, "14m": QUEUE})


def test_the_death_of_who_exports_the_promise_hides_no_queue() -> None:
    series = queue("50x300", "0+1x300", promise="0.8x40 stale")
    series |= {'paceline_router_table_synced{pod="router-0"}': "1x300"}
    series |= {'paceline_operator_leader{pod="operator-0"}': "1x40 stale"}
    both = QUEUE | {"PacelineMetricsMissing": ['component="operator"']}
    firing(series, {"9m": QUEUE, "20m": both, "50m": both})


def test_a_restarted_replica_or_none_is_no_queue() -> None:
    firing(WELL | queue("0x100", "0+30x40 0+30x60"), {"11m": {}, "20m": {}})
    firing(WELL, {"30m": {}})


def test_a_deleted_service_has_no_queue_though_its_promise_is_remembered() -> None:
    series = WELL | queue("50x40 stale", "0+1x40 stale", "0.8x40 stale")
    series[f'paceline_router_requests_held{{{CHAT}, pod="router-0"}}'] = "0x40 stale"
    firing(series, {"9m": QUEUE, "19m": {}})


# --- PacelineKVCacheFull


def cache(held: str, waiting: str) -> dict[str, str]:
    return {
        f"vllm:kv_cache_usage_perc{{{MODEL}}}": held,
        f'paceline_requests_waiting_by_reason{{{MODEL}, reason="NoBlocks"}}': waiting,
    }


FULL = {"PacelineKVCacheFull": [f'{CHAT}, pool="default"']}


def test_a_full_cache_that_requests_wait_for_fires_and_clears() -> None:
    series = WELL | cache("0.5x20 0.97x80 0.5x200", "0x20 4x80 0x200")
    firing(series, {"5m": {}, "12m": {}, "22m": FULL, "40m": {}})
    labels = {"namespace": "demo", "service": "chat", "pool": "default", "severity": "warning"}
    summary = "demo/chat, pool default: 97% of the KV cache is held and requests wait for room"
    told(series, "23m", "PacelineKVCacheFull", labels, summary)


def test_a_full_cache_that_nobody_waits_for_is_a_good_one() -> None:
    firing(WELL | cache("0.99x300", "0x300"), {"1h": {}})
    firing(WELL | {f"vllm:kv_cache_usage_perc{{{MODEL}}}": "0.99x300"}, {"1h": {}})


def test_an_empty_cache_and_a_lost_replica_are_silent() -> None:
    firing(WELL | cache("0x300", "0x300"), {"1h": {}})
    firing(WELL | cache("0.97x80 stale", "4x80 stale"), {"19m": FULL, "33m": {}})


def test_a_replica_that_restarts_begins_with_an_empty_cache() -> None:
    firing(WELL | cache("0.97x20 0x200", "4x20 0x200"), {"8m": {}, "16m": {}})


# --- PacelinePreemptions


def preemptions(lost: str, ended: str) -> dict[str, str]:
    name = f"vllm:request_success_total{{{MODEL}"
    return {f"vllm:num_preemptions_total{{{MODEL}}}": lost, f'{name}, finished_reason="stop"}}': ended}


LOST = {"PacelinePreemptions": [f'{CHAT}, pool="default"']}


def test_more_than_one_preemption_for_ten_requests_fires_and_clears() -> None:
    series = WELL | preemptions("0x20 0+2x120 240x200", "0+10x400")
    firing(series, {"5m": {}, "12m": {}, "25m": LOST, "50m": {}})
    labels = {"namespace": "demo", "service": "chat", "pool": "default", "severity": "warning"}
    summary = "demo/chat, pool default: 80 preemptions in ten minutes, more than one for ten requests"
    told(series, "30m", "PacelinePreemptions", labels, summary)


def test_few_preemptions_for_many_requests_are_silent() -> None:
    firing(WELL | preemptions("0+1x300", "0+50x300"), {"1h": {}})


def test_requests_that_preempt_each_other_and_never_end_fire() -> None:
    firing(WELL | preemptions("0+2x300", "100x300"), {"30m": LOST})


def test_no_traffic_a_restart_and_absence_are_no_preemptions() -> None:
    firing(WELL | preemptions("500x300", "100x300"), {"30m": {}})
    firing(WELL | preemptions("500x40 0x200", "100x40 0+10x200"), {"11m": {}, "30m": {}})
    firing(WELL | preemptions("0+2x120 stale", "0+10x120 stale"), {"29m": LOST, "36m": {}})


# --- PacelinePrefixHitsDropped


def prefix(hits: str, queries: str) -> dict[str, str]:
    """Tokens each minute, since it is about hours."""
    return {f"vllm:prefix_cache_hits_total{{{MODEL}}}": hits, f"vllm:prefix_cache_queries_total{{{MODEL}}}": queries}


DROPPED = {"PacelinePrefixHitsDropped": [CHAT]}


def test_less_than_half_of_the_hits_of_the_day_before_fires() -> None:
    # Two hours at 80 %, then one at 10 %.
    series = WELL | prefix("0+3200x120 384000+400x60", "0+4000x180")
    firing(series, {"2h": {}, "3h": DROPPED}, MINUTE)
    summary = "demo/chat: 10% of prompt tokens come from the prefix cache, less than half of the day before"
    labels = {"namespace": "demo", "service": "chat", "severity": "warning"}
    told(series, "3h", "PacelinePrefixHitsDropped", labels, summary, MINUTE)


def test_a_service_that_never_had_hits_and_one_that_keeps_them_are_silent() -> None:
    firing(WELL | prefix("0+200x180", "0+4000x180"), {"3h": {}}, MINUTE)
    firing(WELL | prefix("0+3200x120 384000+2400x60", "0+4000x180"), {"3h": {}}, MINUTE)


def test_too_few_prompts_are_no_drop() -> None:
    firing(WELL | prefix("0+3200x120 384000x60", "0+4000x120 480000+40x60"), {"3h": {}}, MINUTE)


def test_no_traffic_since_is_no_drop() -> None:
    firing(WELL | prefix("0+3200x120 384000x60", "0+4000x120 480000x60"), {"2h20m": {}, "3h": {}}, MINUTE)


def test_a_restart_and_a_deletion_are_no_drop() -> None:
    firing(WELL | prefix("0+3200x120 0+3200x60", "0+4000x120 0+4000x60"), {"2h5m": {}, "3h": {}}, MINUTE)
    gone = WELL | prefix("0+3200x120 384000+400x60 stale", "0+4000x180 stale")
    firing(gone, {"3h": DROPPED, "3h8m": {}}, MINUTE)


def test_a_young_service_has_no_day_before() -> None:
    firing(WELL | prefix("0+40x30", "0+4000x30"), {"29m": {}}, MINUTE)


# --- PacelineDrift


def drift(items: str, pod: str = "operator-0") -> dict[str, str]:
    return {f'paceline_drift_items{{{CHAT}, pod="{pod}"}}': items}


DRIFT = {"PacelineDrift": [f'{CHAT}, how="values"']}


def test_drift_that_stays_fires_and_clears() -> None:
    series = WELL | drift("0x20 3x80 0x200")
    firing(series, {"5m": {}, "14m": {}, "17m": DRIFT, "24m": DRIFT, "33m": {}})
    labels = {"namespace": "demo", "service": "chat", "severity": "warning", "how": "values"}
    told(series, "20m", "PacelineDrift", labels, "demo/chat: 3 values are not as its revision has them")


def test_drift_that_is_put_right_is_silent() -> None:
    firing(WELL | drift("0x20 3x20 0x200"), {"9m": {}, "12m": {}, "20m": {}})


def test_a_service_not_looked_at_or_deleted_has_no_drift() -> None:
    firing(WELL, {"30m": {}})
    firing(WELL | drift("3x80 stale"), {"19m": DRIFT, "28m": {}})


def test_a_new_leader_takes_the_drift_over_and_two_count_once() -> None:
    series = WELL | drift("3x60 stale") | drift("_x61 3x200", "operator-1")
    firing(series, {"14m": DRIFT, "16m": DRIFT, "30m": DRIFT})


def answers(result: str, replicas: str) -> dict[str, str]:
    return {f'paceline_output_canary_replicas{{{CHAT}, result="{result}", pod="operator-0"}}': replicas}


def test_replicas_that_answer_otherwise_than_before_fire_and_clear() -> None:
    series = WELL | answers("cache", "0x20 1x60 0x200") | answers("model", "0x20 1x60 0x200")
    series |= answers("agrees", "2x20 0x60 2x200")
    firing(series, {"5m": {}, "16m": {"PacelineDrift": [f'{CHAT}, how="answers"']}, "29m": {}})
    labels = {"namespace": "demo", "service": "chat", "severity": "warning", "how": "answers"}
    words = "demo/chat: 2 replicas answer the fixed question otherwise than before"
    told(series, "18m", "PacelineDrift", labels, words)


def test_answers_that_agree_or_are_not_known_are_no_drift() -> None:
    firing(WELL | answers("agrees", "2x200") | answers("unknown", "1x200"), {"30m": {}})
    firing(WELL | answers("cache", "1x80 stale"), {"19m": {"PacelineDrift": [f'{CHAT}, how="answers"']}, "28m": {}})


# --- PacelineReplicaFailing


def target(up: str) -> dict[str, str]:
    return {f'up{{{POD}, instance="10.0.0.1:8000", job="replicas"}}': up}


def replica(how: str) -> dict[str, list[str]]:
    return {"PacelineReplicaFailing": [f'{POD}, how="{how}"']}


def test_a_replica_that_is_down_fires_and_clears() -> None:
    series = WELL | target("1x40 0x20 1x200")
    firing(series, {"10m": {}, "11m": {}, "14m": replica("down"), "35m": {}})
    labels = {"namespace": "demo", "service": "chat", "pool": "default", "pod": "chat-0", "how": "down"}
    summary = "demo/chat, replica chat-0: answered 50% of the scrapes of ten minutes"
    told(series, "15m", "PacelineReplicaFailing", labels | {"severity": "warning"}, summary)


def test_a_replica_that_is_up_and_down_by_turns_fires() -> None:
    firing(WELL | target(" ".join(["1 1 1 0"] * 40)), {"15m": replica("down")})


def test_a_replica_that_starts_or_fails_one_scrape_is_silent() -> None:
    firing(WELL | target("0 0 1x200"), {"1m": {}, "5m": {}, "10m": {}})
    firing(WELL | target("1x40 0 1x200"), {"10m30s": {}, "12m": {}})


def test_a_replica_that_never_comes_up_fires() -> None:
    firing(WELL | target("0x200"), {"4m": {}, "6m": replica("down")})


def test_a_replica_that_is_gone_is_no_failing_one() -> None:
    firing(WELL | target("1x40 0 0 stale"), {"11m": {}, "15m": {}, "19m": {}})
    firing(WELL | target("1x40 0x20 stale"), {"15m": replica("down"), "22m": {}})


def started(times: str) -> dict[str, str]:
    return {f"paceline_time_to_ready_seconds{{{MODEL}}}": times}


def test_a_replica_that_starts_over_and_over_fires_though_it_is_up() -> None:
    series = WELL | target("1x300") | started("4.1x20 3.9x20 4.2x20 4.0x20 4.0x200")
    firing(series, {"9m": {}, "16m": replica("restarting"), "55m": {}})
    labels = {"namespace": "demo", "service": "chat", "pool": "default", "pod": "chat-0", "how": "restarting"}
    summary = "demo/chat, replica chat-0: started 3 times in half an hour"
    told(series, "18m", "PacelineReplicaFailing", labels | {"severity": "warning"}, summary)


def test_one_restart_is_silent() -> None:
    firing(WELL | target("1x300") | started("4.1x20 3.9x200"), {"6m": {}, "30m": {}})


def steps(running: str, made: str) -> dict[str, str]:
    return {f"vllm:num_requests_running{{{MODEL}}}": running, f"paceline_engine_steps_total{{{MODEL}}}": made}


def test_a_replica_with_work_and_no_step_is_stuck() -> None:
    series = WELL | target("1x300") | steps("2x60 0x200", "0+100x20 2000x40 2000+100x200")
    # A deadline shorter than that of the liveness probe, which restarts it after two and a half minutes.
    firing(series, {"5m": {}, "6m30s": {}, "7m30s": replica("stuck"), "14m": replica("stuck"), "21m": {}})
    labels = {"namespace": "demo", "service": "chat", "pool": "default", "pod": "chat-0", "how": "stuck"}
    summary = "demo/chat, replica chat-0: 2 requests run and no step is made"
    told(series, "10m", "PacelineReplicaFailing", labels | {"severity": "warning"}, summary)


def test_an_idle_replica_a_restarted_one_and_a_lost_one_are_not_stuck() -> None:
    firing(WELL | target("1x300") | steps("0x300", "2000x300"), {"30m": {}})
    firing(WELL | target("1x300") | steps("2x300", "0+100x20 0+100x280"), {"5m30s": {}, "30m": {}})
    firing(WELL | target("1x300") | steps("2x40 stale", "0+100x38 3800 3800 stale"), {"10m30s": {}, "12m": {}})


# --- PacelineMetricsMissing


def missing(component: str) -> dict[str, list[str]]:
    return {"PacelineMetricsMissing": [f'component="{component}"']}


def test_an_operator_that_is_gone_is_told_and_so_is_its_return() -> None:
    series = WELL | {'paceline_operator_leader{pod="operator-0"}': "1x20 stale _x59 1x200"}
    firing(series, {"5m": {}, "9m": {}, "12m": missing("operator"), "27m": {}})
    labels = {"component": "operator", "severity": "warning"}
    summary = "no operator that leads shows metrics: drift and promises are not known"
    told(series, "15m", "PacelineMetricsMissing", labels, summary)


def test_operators_none_of_which_leads_are_told() -> None:
    series = WELL | {'paceline_operator_leader{pod="operator-0"}': "0x300"}
    firing(series, {"10m": missing("operator")})
    firing(series | {'paceline_operator_leader{pod="operator-1"}': "1x300"}, {"10m": {}})


def test_no_router_wakes_somebody_and_one_of_two_nobody() -> None:
    series = WELL | {'paceline_router_table_synced{pod="router-0"}': "1x20 stale"}
    firing(series, {"12m": missing("router")})
    labels = {"component": "router", "severity": "critical"}
    told(series, "15m", "PacelineMetricsMissing", labels, "no router shows metrics: other alerts know nothing")
    firing(series | {'paceline_router_table_synced{pod="router-1"}': "1x300"}, {"12m": {}})


def test_nothing_installed_that_shows_metrics_is_told_of_both() -> None:
    both = {"PacelineMetricsMissing": ['component="operator"', 'component="router"']}
    firing({"up{}": "1x300"}, {"4m": {}, "10m": both})


def test_replicas_that_serve_and_show_nothing_are_told() -> None:
    def ready(router: int, count: str) -> dict[str, str]:
        return {f'paceline_router_replicas{{{CHAT}, state="ready", pod="router-{router}"}}': count}

    unseen = {"PacelineMetricsMissing": [f'{CHAT}, component="replicas"']}
    series = WELL | ready(0, "2x300") | ready(1, "2x300")
    firing(series, {"4m": {}, "10m": unseen})
    labels = {"namespace": "demo", "service": "chat", "component": "replicas", "severity": "warning"}
    summary = "demo/chat: 2 replicas are ready and none of them shows metrics"
    told(series, "10m", "PacelineMetricsMissing", labels, summary)
    firing(series | {f"vllm:num_requests_running{{{MODEL}}}": "0x300"}, {"10m": {}})
    firing(WELL | ready(0, "0x300"), {"10m": {}})
    firing(WELL | ready(0, "2x40 stale"), {"9m": unseen, "17m": {}})
