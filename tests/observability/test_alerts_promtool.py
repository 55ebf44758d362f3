"""Alerts about what users get, by the real promtool, on series written down: they fire, they do not.

Absence, restarts and deletions are among the scenarios. Each holds the whole of what fires, so an alert that one fault
should not raise is seen too. Values are every 15 s: `0+4x20` is 4 more each time, for 5 minutes.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from promtool import CHAT, MINUTE, MODEL, WELL, firing, run, told
from runbooks import runbook_commands, runbook_queries

from paceline_local import build
from paceline_observability.alerts import Windows, rule_file

pytestmark = pytest.mark.cluster


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


def goodput(met: str, missed: str) -> dict[str, str]:
    name = f'paceline_slo_requests_total{{{CHAT}, slo="goodput", pod="router-0"'
    return {f'{name}, result="met"}}': met, f'{name}, result="missed"}}': missed}


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


def ready(count: str) -> dict[str, str]:
    """As a router counts them; their metrics are there too, or that would be told."""
    states = {f'paceline_router_replicas{{{CHAT}, state="ready", pod="router-0"}}': count}
    return states | {f"vllm:num_requests_running{{{MODEL}}}": "0x400"}


def test_a_service_at_zero_that_nobody_asks_is_silent() -> None:
    firing(WELL | router("7x300", "0x300"), {"10m": {}, "1h": {}})
    firing(WELL | router("7x300", "0x300") | ready("0x300"), {"10m": {}, "1h": {}})


def test_ready_replicas_that_no_router_reaches_are_told_though_nobody_asks_and_wake_nobody() -> None:
    series = WELL | router("7x300", "1x20 0x80 1x200") | ready("2x300")
    unreachable = {"PacelineNoAnswers": [f'{CHAT}, how="unreachable"']}
    firing(series, {"8m": {}, "14m": unreachable, "33m": {}})
    labels = {"namespace": "demo", "service": "chat", "severity": "warning", "how": "unreachable"}
    summary = "demo/chat: nobody asks now, 2 replicas are ready, and none answered the routers last"
    told(series, "15m", "PacelineNoAnswers", labels, summary)
    # One that starts is ready some seconds before it is reached; once requests fail it is the other one.
    firing(WELL | router("0x300", "0x20 1x200") | ready("0x18 1x200"), {"5m": {}, "8m": {}, "12m": {}})
    firing(WELL | router("0+2x300", "0x300") | ready("2x300"), {"20m": UNAVAILABLE})
    firing(WELL | router("7x40 stale", "0x40 stale") | ready("2x40 stale"), {"9m": unreachable, "18m": {}})


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
