"""The nine alerts. What each of them rests on, and why it is written so, is said at each.

Common to all:

- Products and filtered denominators instead of quotients that may be 0/0: NaN is neither above nor below.
- Ranges hold at least four scrapes, and `keep_firing_for` bridges a lost one.
- A range still answers for a while after its series has ended, so whatever needs a living series asks for it too.
- Thresholds in seconds are the service's own, exported by the operator; where nothing is promised nothing is late.
"""

from __future__ import annotations

from textwrap import dedent, indent
from typing import Final

from .rule import Alert, Windows

BUDGET: Final = 0.1
"""Share of requests that may miss: the outward promise is a P90."""

FAST: Final = 5
"""Times the budget, over an hour: a fifth of a day's budget is gone in it."""

SLOW: Final = 2
"""The same over six hours: half of a day's budget. More than 10 times the budget cannot be missed, so the usual 14.4
and 6 of promises with three nines would never fire here."""

FEW: Final = 10
"""Missed requests under which a share says nothing."""

STUCK: Final = 0.6
"""Of the time that a step may take. The liveness probe restarts a replica some 20 s after all of it: a scrape and an
evaluation, half a minute each, must have found it before."""

_WHERE: Final = "{{ $labels.namespace }}/{{ $labels.service }}"
_PERCENT: Final = "{{ $value | humanizePercentage }}"


def alerts(windows: Windows) -> tuple[Alert, ...]:
    """All of them, in the order in which they are documented."""
    return (
        _budget_burning(windows),
        _no_answers(windows),
        _queue_long(windows),
        _kv_cache_full(windows),
        _preemptions(windows),
        _prefix_hits_dropped(windows),
        _drift(windows),
        _replica_failing(windows),
        _metrics_missing(windows),
    )


def _expr(text: str) -> str:
    return dedent(text).strip()


def _living(expr: str, series: str, labels: str = "namespace, service") -> str:
    """The expression, where the series is still there: what is deleted has no alerts."""
    return f"(\n{indent(expr, '  ')}\n)\nand on ({labels})\ncount by ({labels}) ({series})"


def _budget_burning(w: Windows) -> Alert:
    """Goodput: the long window says that it matters, the short one that it still goes on.

    The numerator is at least `FEW`, and the denominator at least as much, so there is no 0/0.
    """

    def missed(window: str, least: str = "") -> str:
        counted = "sum by (namespace, service) (increase(paceline_slo_requests_total"
        return (
            f'({counted}{{slo="goodput", result="missed"}}[{w(window)}])){least})'
            f' / ({counted}{{slo="goodput"}}[{w(window)}])) > 0)'
        )

    def burning(long: str, short: str, rate: int) -> str:
        bound = f"{rate * BUDGET:g}"
        return f"(\n  {missed(long, f' >= {FEW}')} > {bound}\n  and\n  {missed(short)} > {bound}\n)"

    return Alert(
        name="PacelineBudgetBurning",
        expr=_living(f"{burning('1h', '5m', FAST)}\nor\n{burning('6h', '30m', SLOW)}", "paceline_slo_requests_total"),
        severity="critical",
        keeps=w("5m"),
        summary=f"{_WHERE}: {_PERCENT} of requests miss what is promised to users; {BUDGET:.0%} may",
    )


def _no_answers(w: Windows) -> Alert:
    """Flows are compared, not states: requests fail while nobody serves, or go in and nothing comes out.

    Where nobody asks there are no flows. Then routers tell whether they reach any of the replicas that Kubernetes calls
    ready: they ask each of them once a second. Nobody feels it yet, so nobody is woken.
    """
    return Alert(
        name="PacelineNoAnswers",
        expr=_expr(f"""
            label_replace(
              sum by (namespace, service) (
                increase(paceline_router_requests_total{{outcome=~"5xx|cancelled|broken_stream"}}[{w("5m")}])
              ) > 0
              and on (namespace, service)
              max by (namespace, service) (max_over_time(paceline_router_service_available[{w("1m")}])) == 0,
              "how", "unavailable", "", ""
            )
            or
            label_replace(
              sum by (namespace, service) (
                min_over_time(paceline_router_requests_in_flight[{w("5m")}]) > 0
                and paceline_router_requests_in_flight > 0
                and paceline_router_requests_in_flight offset {w("5m")} > 0
              )
              unless on (namespace, service)
              sum by (namespace, service) (increase(paceline_router_requests_total[{w("5m")}])) > 0
              unless on (namespace, service)
              sum by (namespace, service) (
                increase(vllm:generation_tokens_total[{w("5m")}])
                or increase(paceline_prefill_tokens_computed_total[{w("5m")}])
              ) > 0,
              "how", "hanging", "", ""
            )
            or
            label_replace(
              max by (namespace, service) (min_over_time(paceline_router_replicas{{state="ready"}}[{w("5m")}])) > 0
              and on (namespace, service)
              max by (namespace, service) (max_over_time(paceline_router_service_available[{w("5m")}])) == 0
              and on (namespace, service)
              count by (namespace, service) (paceline_router_service_available)
              unless on (namespace, service)
              sum by (namespace, service) (
                increase(paceline_router_requests_total{{outcome=~"5xx|cancelled|broken_stream"}}[{w("5m")}])
              ) > 0,
              "how", "unreachable", "", ""
            )
        """),
        severity='{{ if eq $labels.how "unreachable" }}warning{{ else }}critical{{ end }}',
        waits=w("2m"),
        keeps=w("5m"),
        summary=(
            f"{_WHERE}: "
            '{{ if eq $labels.how "hanging" }}{{ printf "%.0f" $value }} requests are open and no token is made'
            '{{ else if eq $labels.how "unreachable" }}nobody asks now, {{ printf "%.0f" $value }} replicas are ready, '
            "and none answered the routers last"
            '{{ else }}no replica answers, {{ printf "%.0f" $value }} requests failed in five minutes{{ end }}'
        ),
    )


def _queue_long(w: Windows) -> Alert:
    """A queue takes waiting ÷ rate to pass (Little's law); as a product it is right for a rate of nothing too.

    The operator exports the promise. For an hour after it died its last word counts, so that its death hides nothing.
    """
    return Alert(
        name="PacelineQueueLong",
        expr=_expr(f"""
            (
              sum by (namespace, service) (
                avg_over_time(vllm:num_requests_waiting[{w("2m")}])
                or avg_over_time(paceline_router_requests_held[{w("2m")}])
              ) >= 1
            )
            > on (namespace, service)
            (
              (
                max by (namespace, service) (paceline_slo_threshold_seconds{{signal="ttft", level="p90"}})
                or
                max by (namespace, service) (
                  last_over_time(paceline_slo_threshold_seconds{{signal="ttft", level="p90"}}[{w("1h")}])
                )
              )
              * on (namespace, service)
              (
                sum by (namespace, service) (rate(vllm:time_to_first_token_seconds_count[{w("2m")}]))
                or
                0 * sum by (namespace, service) (paceline_router_requests_held)
              )
            )
        """),
        severity="warning",
        waits=w("5m"),
        keeps=w("5m"),
        summary=f'{_WHERE}: {{{{ printf "%.0f" $value }}}} requests wait, longer than the promised first token (P90)',
    )


def _kv_cache_full(w: Windows) -> Alert:
    """A full cache is a good one, unless requests wait for room in it."""
    return Alert(
        name="PacelineKVCacheFull",
        expr=_expr(f"""
            avg by (namespace, service, pool) (avg_over_time(vllm:kv_cache_usage_perc[{w("5m")}])) > 0.9
            and on (namespace, service, pool)
            sum by (namespace, service, pool) (
              max_over_time(paceline_requests_waiting_by_reason{{reason="NoBlocks"}}[{w("5m")}])
            ) > 0
        """),
        severity="warning",
        waits=w("10m"),
        keeps=w("5m"),
        summary=f"{_WHERE}, pool {{{{ $labels.pool }}}}: {_PERCENT} of the KV cache is held and requests wait for room",
    )


def _preemptions(w: Windows) -> Alert:
    """More than one for ten requests that end; where none ends, any number above a handful."""
    return Alert(
        name="PacelinePreemptions",
        expr=_living(
            _expr(f"""
                (sum by (namespace, service, pool) (increase(vllm:num_preemptions_total[{w("10m")}])) > 5)
                > on (namespace, service, pool)
                0.1 * sum by (namespace, service, pool) (increase(vllm:request_success_total[{w("10m")}]))
            """),
            "vllm:num_preemptions_total",
            "namespace, service, pool",
        ),
        severity="warning",
        waits=w("10m"),
        keeps=w("5m"),
        summary=(
            f'{_WHERE}, pool {{{{ $labels.pool }}}}: {{{{ printf "%.0f" $value }}}} preemptions in ten minutes, '
            "more than one for ten requests"
        ),
    )


def _prefix_hits_dropped(w: Windows) -> Alert:
    """Against the service's own day before: what is a good share is another for every prompt.

    Denominators below 10,000 tokens are filtered away: no 0/0, and no verdict on a handful of prompts.
    """

    def share(window: str) -> str:
        total = "sum by (namespace, service) (increase(vllm:prefix_cache_{}_total[{}]{}))"
        offset = "" if window == "30m" else f" offset {w('30m')}"
        return f"({total.format('hits', w(window), offset)} / ({total.format('queries', w(window), offset)} > 10000))"

    return Alert(
        name="PacelinePrefixHitsDropped",
        expr=_living(
            f"{share('30m')}\n< on (namespace, service)\n0.5 * ({share('24h')} > 0.1)",
            "vllm:prefix_cache_queries_total",
        ),
        severity="warning",
        waits=w("15m"),
        keeps=w("5m"),
        summary=f"{_WHERE}: {_PERCENT} of prompt tokens come from the prefix cache, less than half of the day before",
    )


def _drift(w: Windows) -> Alert:
    """Values that differ from the record, or answers that differ from the other replicas' and from before.

    The fixed question is asked of services too that nobody else asks: what is broken there is found all the same. Only
    the leader looks, so the highest of the operators counts. `for` is longer than a repair takes.
    """
    return Alert(
        name="PacelineDrift",
        expr=_expr("""
            label_replace(
              max by (namespace, service) (paceline_drift_items) > 0,
              "how", "values", "", ""
            )
            or
            label_replace(
              sum by (namespace, service) (
                max by (namespace, service, result) (
                  paceline_output_canary_replicas{result=~"tokenizer|model|cache|failed"}
                )
              ) > 0,
              "how", "answers", "", ""
            )
        """),
        severity="warning",
        waits=w("10m"),
        keeps=w("5m"),
        summary=(
            f'{_WHERE}: {{{{ printf "%.0f" $value }}}} '
            '{{ if eq $labels.how "answers" }}replicas answer the fixed question otherwise than before, or not at all'
            "{{ else }}values are not as its revision has them{{ end }}"
        ),
    )


def _replica_failing(w: Windows) -> Alert:
    """Down or flapping, restarting over and over, or with an engine that does not get on.

    In a crash loop no condition holds for long, so windows are summed and there is no `for`. A replica counts once it
    has been a target for five minutes: a new one is down until its server listens. Its time to ready is another number
    after each start, which counts restarts without another exporter. How long a step may take is the replica's own
    word: minutes for a long prompt on a slow CPU, where a fixed time would call it stuck.
    """
    replica = '{service!="", pool!=""}'
    return Alert(
        name="PacelineReplicaFailing",
        expr=_expr(f"""
            label_replace(
              max by (namespace, service, pool, pod) (
                avg_over_time(up{replica}[{w("10m")}]) < 0.8
                and up{replica}
                and up{replica} offset {w("5m")}
              ),
              "how", "down", "", ""
            )
            or
            label_replace(
              max by (namespace, service, pool, pod) (
                changes(paceline_time_to_ready_seconds[{w("30m")}]) > 2 and paceline_time_to_ready_seconds
              ),
              "how", "restarting", "", ""
            )
            or
            label_replace(
              max by (namespace, service, pool, pod) (
                paceline_engine_progress_age_seconds > {STUCK} * paceline_engine_step_bound_seconds
              ),
              "how", "stuck", "", ""
            )
        """),
        severity="warning",
        keeps=w("5m"),
        summary=(
            f"{_WHERE}, replica {{{{ $labels.pod }}}}: "
            '{{ if eq $labels.how "down" }}answered {{ $value | humanizePercentage }} of the scrapes of ten minutes'
            '{{ else if eq $labels.how "stuck" }}no step and no sign of life for {{ printf "%.0f" $value }} s'
            '{{ else }}started {{ printf "%.0f" $value }} times in half an hour{{ end }}'
        ),
    )


def _metrics_missing(w: Windows) -> Alert:
    """What the other rules stand on. Without the router nobody knows whether users are served: that one wakes.

    The operator's own word is that it leads: where none does, nothing is looked at, and drift stays as it was.
    """
    return Alert(
        name="PacelineMetricsMissing",
        expr=_expr("""
            label_replace(absent(paceline_router_table_synced), "component", "router", "", "")
            or
            label_replace(absent(paceline_operator_leader == 1), "component", "operator", "", "")
            or
            label_replace(
              max by (namespace, service) (paceline_router_replicas{state="ready"}) > 0
              unless on (namespace, service)
              count by (namespace, service) (vllm:num_requests_running),
              "component", "replicas", "", ""
            )
        """),
        severity='{{ if eq $labels.component "router" }}critical{{ else }}warning{{ end }}',
        waits=w("5m"),
        keeps=w("5m"),
        summary=(
            '{{ if eq $labels.component "replicas" }}'
            f'{_WHERE}: {{{{ printf "%.0f" $value }}}} replicas are ready and none of them shows metrics'
            '{{ else if eq $labels.component "router" }}no router shows metrics: other alerts know nothing'
            "{{ else }}no operator that leads shows metrics: drift and promises are not known{{ end }}"
        ),
    )
