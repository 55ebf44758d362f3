"""The three boards."""

from __future__ import annotations

from typing import Final

from .board import Board, Panel, Query

_OURS: Final = 'namespace="$namespace", service="$service"'
_BY_SERVICE: Final = "{{namespace}}/{{service}}"
_BY_STEPS: Final = "while a rollout by steps is under way"
_SHADOWED: Final = "while requests are copied to a candidate"


def _rate(series: str, by: str, labels: str = "") -> str:
    where = f"{{{labels}}}" if labels else ""
    return f"sum by ({by}) (rate({series}{where}[$__rate_interval]))"


def _quantiles(histogram: str, *levels: float, by: str = "") -> tuple[Query, ...]:
    buckets = _rate(f"{histogram}_bucket", f"le, {by}" if by else "le", _OURS)
    name = f"{{{{{by}}}}} " if by else ""
    return tuple(Query(f"histogram_quantile({level:g}, {buckets})", f"{name}p{level * 100:g}") for level in levels)


def _promised(signal: str) -> Query:
    return Query(f'max by (level) (paceline_slo_threshold_seconds{{{_OURS}, signal="{signal}"}})', "promised {{level}}")


def _goodput(by: str, labels: str = "") -> str:
    judged = f'slo="goodput"{", " if labels else ""}{labels}'
    met = _rate("paceline_slo_requests_total", by, f'{judged}, result="met"')
    return f"{met} / ({_rate('paceline_slo_requests_total', by, judged)} > 0)"


def _one(title: str, expr: str, legend: str = "", unit: str | None = None, only: str | None = None) -> Panel:
    return Panel(title, (Query(expr, legend),), unit=unit, only=only)


FLEET: Final = Board(
    "fleet",
    "Paceline / Fleet",
    of_one_service=False,
    rows=(
        (
            "Now",
            (
                Panel(
                    "Services that answer",
                    (Query("sum(max by (namespace, service) (paceline_router_service_available))", ""),),
                    kind="stat",
                    width=6,
                ),
                Panel(
                    "Services",
                    (Query("count(max by (namespace, service) (paceline_router_service_available))", ""),),
                    kind="stat",
                    width=6,
                ),
                Panel(
                    "Values that drifted",
                    (Query("sum(max by (namespace, service) (paceline_drift_items))", ""),),
                    "stat",
                    width=6,
                ),
                Panel("Operators that lead", (Query("sum(paceline_operator_leader)", ""),), "stat", width=6),
            ),
        ),
        (
            "Users",
            (
                _one("Goodput", _goodput("namespace, service"), _BY_SERVICE, "percentunit"),
                _one("Requests", _rate("paceline_router_requests_total", "namespace, service"), _BY_SERVICE),
                _one(
                    "Requests that failed",
                    _rate("paceline_router_requests_total", "namespace, service", 'outcome=~"5xx|broken_stream"'),
                    _BY_SERVICE,
                ),
            ),
        ),
        (
            "Capacity",
            (
                _one("Tokens made", _rate("vllm:generation_tokens_total", "namespace, service"), _BY_SERVICE),
                _one("Requests waiting", "sum by (namespace, service) (vllm:num_requests_waiting)", _BY_SERVICE),
                _one("KV cache held", "avg by (namespace, service) (vllm:kv_cache_usage_perc)", _BY_SERVICE),
                _one(
                    "Replicas ready",
                    'max by (namespace, service) (paceline_router_replicas{state="ready"})',
                    _BY_SERVICE,
                ),
                _one("Preemptions", _rate("vllm:num_preemptions_total", "namespace, service"), _BY_SERVICE),
                _one("Drift", "max by (namespace, service) (paceline_drift_items)", _BY_SERVICE),
            ),
        ),
        (
            "Paceline itself",
            (
                _one("Reconciles", _rate("paceline_operator_reconcile_total", "result"), "{{result}}"),
                _one("Services waiting for the operator", "sum(paceline_operator_queue_depth)"),
                _one(
                    "Since the API server was heard",
                    "max by (resource) (paceline_operator_informer_age_seconds)",
                    "{{resource}}",
                ),
                _one("Router: connections", "sum(paceline_router_client_connections)"),
                _one("Router: latest to its clock", "max by (pod) (paceline_router_loop_lag_seconds)", "{{pod}}"),
                _one("Router: age of its table", "max by (pod) (paceline_router_table_age_seconds)", "{{pod}}"),
            ),
        ),
    ),
)

SERVICE: Final = Board(
    "service",
    "Paceline / Service",
    of_one_service=True,
    rows=(
        (
            "Promises",
            (
                _one("Goodput", _goodput("slo", _OURS), "met", "percentunit"),
                Panel(
                    "Time to first token",
                    (*_quantiles("paceline_router_ttft_seconds", 0.5, 0.9, 0.99), _promised("ttft")),
                ),
                Panel(
                    "Time per token", (*_quantiles("paceline_router_tpot_seconds", 0.5, 0.9, 0.99), _promised("tpot"))
                ),
            ),
        ),
        (
            "Requests",
            (
                _one("By outcome", _rate("paceline_router_requests_total", "outcome", _OURS), "{{outcome}}"),
                _one("By shape", _rate("paceline_router_placed_requests_total", "shape", _OURS), "{{shape}}"),
                _one("Refused by the router", _rate("paceline_router_refused_total", "reason", _OURS), "{{reason}}"),
                _one("Retries", _rate("paceline_router_retries_total", "reason", _OURS), "{{reason}}"),
                _one("By tenant", _rate("paceline_router_tenant_admitted_total", "tenant", _OURS), "{{tenant}}"),
                _one("Open", f"sum(paceline_router_requests_in_flight{{{_OURS}}})", "open"),
            ),
        ),
        (
            "Where time goes",
            (
                Panel(
                    "Half of the requests: router, link, engine",
                    (
                        *(
                            Query(q.expr, what)
                            for what, name in (
                                ("wait", "paceline_router_wait_seconds"),
                                ("router", "paceline_router_own_seconds"),
                                ("engine", "paceline_router_engine_seconds"),
                                ("link", "paceline_router_net_seconds"),
                            )
                            for q in _quantiles(name, 0.5)
                        ),
                    ),
                ),
                Panel("Queue of the engine", _quantiles("vllm:request_queue_time_seconds", 0.5, 0.9, 0.99)),
                Panel("Prefill", _quantiles("vllm:request_prefill_time_seconds", 0.5, 0.9, 0.99)),
                Panel("Between tokens", _quantiles("vllm:inter_token_latency_seconds", 0.5, 0.9, 0.99)),
                _one("Steps by phase", _rate("paceline_step_phase_seconds_total", "phase", _OURS), "{{phase}}"),
                Panel("Sequences per step", _quantiles("paceline_step_sequences", 0.5, 0.9)),
            ),
        ),
        (
            "Engine",
            (
                Panel(
                    "Requests",
                    (
                        Query(f"sum(vllm:num_requests_running{{{_OURS}}})", "running"),
                        Query(f"sum(vllm:num_requests_waiting{{{_OURS}}})", "waiting"),
                        Query(f"sum(paceline_router_requests_held{{{_OURS}}})", "held at the router"),
                    ),
                ),
                _one("KV cache by state", f"sum by (state) (paceline_kv_blocks_by_state{{{_OURS}}})", "{{state}}"),
                Panel(
                    "Tokens",
                    (
                        Query(_rate("vllm:generation_tokens_total", "pool", _OURS), "made, {{pool}}"),
                        Query(_rate("paceline_prefill_tokens_computed_total", "pool", _OURS), "prefilled, {{pool}}"),
                    ),
                ),
                _one(
                    "Prefix hits",
                    f"{_rate('vllm:prefix_cache_hits_total', 'pool', _OURS)}"
                    f" / ({_rate('vllm:prefix_cache_queries_total', 'pool', _OURS)} > 0)",
                    "{{pool}}",
                    "percentunit",
                ),
                _one("Preemptions", _rate("vllm:num_preemptions_total", "pool", _OURS), "{{pool}}"),
                _one("KV cache held, by replica", f"max by (pod) (vllm:kv_cache_usage_perc{{{_OURS}}})", "{{pod}}"),
            ),
        ),
        (
            "Replicas",
            (
                _one("By state", f"max by (state) (paceline_router_replicas{{{_OURS}}})", "{{state}}"),
                _one("Wanted by load", f"max by (pool) (paceline_scaling_desired_replicas{{{_OURS}}})", "{{pool}}"),
                _one("Choices by reason", _rate("paceline_router_choices_total", "reason", _OURS), "{{reason}}"),
            ),
        ),
    ),
)

ROLLOUT: Final = Board(
    "rollout",
    "Paceline / Rollout",
    of_one_service=True,
    rows=(
        (
            "Traffic",
            (
                _one(
                    "Requests by revision",
                    _rate("paceline_router_placed_requests_total", "revision", _OURS),
                    "{{revision}}",
                ),
                _one(
                    "By outcome",
                    _rate("paceline_router_placed_requests_total", "revision, outcome", _OURS),
                    "{{revision}} {{outcome}}",
                ),
                _one(
                    "Served by others than asked for",
                    _rate("paceline_router_fallback_total", "service", _OURS),
                    "{{service}}",
                ),
            ),
        ),
        (
            "By steps",
            (
                _one(
                    "Percent for the new one",
                    f"max by (service) (paceline_rollout_weight_percent{{{_OURS}}})",
                    "{{service}}",
                    "percent",
                    only=_BY_STEPS,
                ),
                _one("Phase", f"max by (phase) (paceline_rollout_phase{{{_OURS}}})", "{{phase}}", only=_BY_STEPS),
                _one(
                    "Verdict", f"max by (verdict) (paceline_rollout_verdict{{{_OURS}}})", "{{verdict}}", only=_BY_STEPS
                ),
                _one(
                    "Copies to the candidate",
                    _rate("paceline_router_shadow_copies_total", "outcome", _OURS),
                    "{{outcome}}",
                    only=_SHADOWED,
                ),
                _one(
                    "Pairs for the recorder",
                    _rate("paceline_router_shadow_pairs_total", "outcome", _OURS),
                    "{{outcome}}",
                    only=_SHADOWED,
                ),
                _one(
                    "Answers to the fixed question",
                    f"max by (result) (paceline_output_canary_replicas{{{_OURS}}})",
                    "{{result}}",
                    only="once replicas were asked, which is every ten minutes",
                ),
            ),
        ),
        (
            "Old and new side by side",
            (
                Panel("Time to first token", _quantiles("paceline_router_ttft_seconds", 0.5, 0.99, by="revision")),
                Panel("Time per token", _quantiles("paceline_router_tpot_seconds", 0.5, 0.99, by="revision")),
                Panel("Whole answer", _quantiles("paceline_router_request_duration_seconds", 0.5, 0.99, by="revision")),
            ),
        ),
        (
            "Replicas",
            (
                _one("By configuration", f"count by (pool_hash) (paceline_config_info{{{_OURS}}})", "{{pool_hash}}"),
                _one("Time to ready", f"max by (pod) (paceline_time_to_ready_seconds{{{_OURS}}})", "{{pod}}"),
                _one("Values that drifted", f"max by (service) (paceline_drift_items{{{_OURS}}})", "{{service}}"),
            ),
        ),
    ),
)

BOARDS: Final = (FLEET, SERVICE, ROLLOUT)
