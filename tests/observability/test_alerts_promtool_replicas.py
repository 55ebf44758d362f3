"""Alerts about replicas and what is known of them, by the real promtool; see test_alerts_promtool.py."""

from __future__ import annotations

import pytest
from promtool import CHAT, MINUTE, MODEL, POD, WELL, firing, told

pytestmark = pytest.mark.cluster


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
    words = "demo/chat: 2 replicas answer the fixed question otherwise than before, or not at all"
    told(series, "18m", "PacelineDrift", labels, words)


def test_a_service_that_nobody_asks_and_that_answers_nothing_is_found() -> None:
    fault = {"PacelineDrift": [f'{CHAT}, how="answers"']}
    firing(
        WELL | answers("agrees", "2x20 0x80 2x200") | answers("failed", "0x20 2x80 0x200"), {"18m": fault, "36m": {}}
    )


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


def steps(age: str, bound: str = "120x300") -> dict[str, str]:
    """Seconds since the engine got on, and how long a step may take."""
    names = ("paceline_engine_progress_age_seconds", "paceline_engine_step_bound_seconds")
    return {f"{names[0]}{{{MODEL}}}": age, f"{names[1]}{{{MODEL}}}": bound}


def test_a_replica_with_work_and_no_step_is_stuck_and_told_before_its_probe_restarts_it() -> None:
    # The liveness probe has seen it three times after 140 s at the earliest.
    series = WELL | target("1x300") | steps("0.2x20 0+15x9 0.2x270")
    firing(series, {"5m": {}, "6m": {}, "7m": replica("stuck"), "12m": replica("stuck"), "13m30s": {}})
    labels = {"namespace": "demo", "service": "chat", "pool": "default", "pod": "chat-0", "how": "stuck"}
    summary = "demo/chat, replica chat-0: no step and no sign of life for 105 s"
    told(series, "7m", "PacelineReplicaFailing", labels | {"severity": "warning"}, summary)


def test_one_long_step_of_a_slow_replica_is_not_stuck() -> None:
    # Its warm-up took three minutes, so a step may take nine: five of them are a long prompt.
    firing(WELL | target("1x300") | steps("0.2x20 0+15x20 0.2x260", "540x300"), {"9m30s": {}, "10m": {}, "12m": {}})
    # Where a step takes milliseconds nothing is told of one that takes a minute.
    firing(WELL | target("1x300") | steps("0.2x20 0+15x4 0.2x270"), {"6m": {}, "8m": {}})


def test_an_idle_replica_one_that_loads_and_a_lost_one_are_not_stuck() -> None:
    firing(WELL | target("1x300") | steps("0.6x300"), {"30m": {}})
    firing(WELL | target("1x300"), {"30m": {}})
    firing(WELL | target("1x300") | steps("0.2x40 0+15x4 stale", "120x44 stale"), {"11m": {}, "12m30s": {}, "15m": {}})


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
