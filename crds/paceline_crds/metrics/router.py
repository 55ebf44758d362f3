"""What a router shows."""

from __future__ import annotations

from functools import partial

from .metric import SERVICE_LABELS, Metric

_metric = partial(Metric, made_by="router")

_TENANT = (*SERVICE_LABELS, "tenant")
_PLACE = (*SERVICE_LABELS, "pool", "revision", "shape")

ROUTER_REQUESTS = _metric(
    "paceline_router_requests_total",
    "counter",
    "Requests of a service by outcome: class of the status, broken_stream (the answer broke off), cancelled (the "
    "client left).",
    (*SERVICE_LABELS, "outcome"),
    unit="requests",
)
ROUTER_REJECTED = _metric(
    "paceline_router_rejected_total",
    "counter",
    "Requests answered by the router before any work for a service began, by status.",
    ("status",),
    unit="requests",
)
ROUTER_IN_FLIGHT = _metric(
    "paceline_router_requests_in_flight", "gauge", "Requests being answered now.", SERVICE_LABELS, unit="requests"
)
ROUTER_RETRIES = _metric(
    "paceline_router_retries_total",
    "counter",
    "Attempts after the first, by what the one before failed with: connect (no connection in time), reset (broken "
    "before the first byte), unavailable (503 with Retry-After), stale_connection (a kept one had been closed).",
    (*SERVICE_LABELS, "reason"),
    unit="attempts",
)
ROUTER_RETRIES_REFUSED = _metric(
    "paceline_router_retries_refused_total",
    "counter",
    "Retries not made because the budget was empty.",
    unit="attempts",
)
ROUTER_FALLBACK = _metric(
    "paceline_router_fallback_total",
    "counter",
    "Requests served by other replicas than status.traffic asked for.",
    SERVICE_LABELS,
    unit="requests",
)
ROUTER_PLACED_REQUESTS = _metric(
    "paceline_router_placed_requests_total",
    "counter",
    "Requests by the pool and revision that had them (_none: neither), their shape, and outcome.",
    (*_PLACE, "outcome"),
    unit="requests",
)
ROUTER_REFUSED = _metric(
    "paceline_router_refused_total",
    "counter",
    "Requests of a service that the router itself refused, by reason: identity; tenant_requests, tenant_tokens, "
    "tenant_queue (a tenant's limits); over_long; none_ready; overloaded (every ready replica is busy or avoided); "
    "hold_full, hold_expired (waiting for a first replica); deadline.",
    (*SERVICE_LABELS, "reason"),
    unit="requests",
)
ROUTER_SPILLS = _metric(
    "paceline_router_spills_total",
    "counter",
    "Requests that another pool took than the one of their shape, by that other pool and reason: absent (there is no "
    "such pool), down, full, too_long (for it).",
    (*SERVICE_LABELS, "pool", "reason"),
    unit="requests",
)
ROUTER_SHADOW_COPIES = _metric(
    "paceline_router_shadow_copies_total",
    "counter",
    "Copies of requests that were sent to a candidate, by how they ended: answered, status (not 2xx), connect, reset, "
    "timeout, client_left or base_failed (nothing to compare with), answer_too_large, memory (all copies together "
    "hold as much as they may), stopped. No other series of requests counts them.",
    (*SERVICE_LABELS, "outcome"),
    unit="copies",
)
ROUTER_SHADOW_SKIPPED = _metric(
    "paceline_router_shadow_skipped_total",
    "counter",
    "Requests of the sampled share that were not copied, by reason: by_hand (a revision was named), shape, opt_out "
    "(of the tenant), several_choices, body_too_large, prompt_too_long, answer_too_long, same_revision, no_replica, "
    "queue_full, waited (too long); or given up before they were sent: client_left, base_failed, answer_too_large, "
    "memory, stopped.",
    (*SERVICE_LABELS, "reason"),
    unit="requests",
)
ROUTER_SHADOW_PAIRS = _metric(
    "paceline_router_shadow_pairs_total",
    "counter",
    "Pairs of answers for the recorder: posted, dropped (the queue was full), refused (by it), lost (no answer).",
    (*SERVICE_LABELS, "outcome"),
    unit="pairs",
)
ROUTER_SHADOW_IN_FLIGHT = _metric(
    "paceline_router_shadow_copies_in_flight", "gauge", "Copies at a candidate now.", SERVICE_LABELS, unit="copies"
)
ROUTER_EJECTIONS = _metric(
    "paceline_router_ejections_total",
    "counter",
    "Times that a replica was taken out of the choice because it failed.",
    SERVICE_LABELS,
    unit="ejections",
)
ROUTER_HELD = _metric(
    "paceline_router_requests_held",
    "gauge",
    "Requests that wait at the router for a replica.",
    SERVICE_LABELS,
    unit="requests",
)
ROUTER_OLDEST_WAIT = _metric(
    "paceline_router_oldest_wait_seconds",
    "gauge",
    "How long the first of them has waited.",
    SERVICE_LABELS,
    unit="seconds",
)
ROUTER_TOKENS = _metric(
    "paceline_router_tokens_total",
    "counter",
    "Tokens as replicas counted them, by prompt version (20 by name, further ones as _other) and kind.",
    (*SERVICE_LABELS, "prompt_version", "kind"),
    unit="tokens",
)
ROUTER_USAGE_UNKNOWN = _metric(
    "paceline_router_usage_unknown_total",
    "counter",
    "Answered requests whose tokens the replica did not tell, so that they are in no count of tokens.",
    SERVICE_LABELS,
    unit="requests",
)
ROUTER_SLO_REQUESTS = _metric(
    "paceline_slo_requests_total",
    "counter",
    "Requests that kept a promise of spec.slo or missed it; slo is ttft_p90 and so on, or goodput.",
    (*SERVICE_LABELS, "slo", "result"),
    unit="requests",
)
ROUTER_TTFT = _metric(
    "paceline_router_ttft_seconds",
    "histogram",
    "From the whole request received to the first token, of answered requests where that is known.",
    _PLACE,
    unit="seconds",
)
ROUTER_TPOT = _metric(
    "paceline_router_tpot_seconds",
    "histogram",
    "Mean time per token after the first, of answers with at least two.",
    _PLACE,
    unit="seconds",
)
ROUTER_DURATION = _metric(
    "paceline_router_request_duration_seconds",
    "histogram",
    "From the whole request received to the end of its answer, of answered requests.",
    _PLACE,
    unit="seconds",
)
ROUTER_WAIT = _metric(
    "paceline_router_wait_seconds",
    "histogram",
    "Wait at the router for the tenant's turn or for a replica; 0 for requests that went straight on.",
    SERVICE_LABELS,
    unit="seconds",
)
ROUTER_TIME = _metric(
    "paceline_router_own_seconds",
    "histogram",
    "From the whole request received to its being sent to a replica, without waits; first attempts only.",
    SERVICE_LABELS,
    unit="seconds",
)
ROUTER_ENGINE = _metric(
    "paceline_router_engine_seconds",
    "histogram",
    "What replicas say their engine took until an answer began to leave them.",
    (*SERVICE_LABELS, "shape"),
    unit="seconds",
)
ROUTER_NET = _metric(
    "paceline_router_net_seconds",
    "histogram",
    "From sending to the first byte, without the engine's time: link, HTTP, and what is unexplained.",
    SERVICE_LABELS,
    unit="seconds",
)
ROUTER_IMBALANCE = _metric(
    "paceline_router_replica_imbalance_ratio",
    "gauge",
    "Requests at the busiest replica of a pool over the mean of its replicas, over ten seconds; 1 is even.",
    (*SERVICE_LABELS, "pool"),
    unit="ratio",
)
ROUTER_WORK_IMBALANCE = _metric(
    "paceline_router_replica_work_imbalance_ratio",
    "gauge",
    "The same of the work ahead of each replica in tokens, by which replicas are chosen.",
    (*SERVICE_LABELS, "pool"),
    unit="ratio",
)
ROUTER_CHOICES = _metric(
    "paceline_router_choices_total",
    "counter",
    "Choices of a replica by reason: least (work), only, prefix, session, home, spread, bound, last-resort, policy, or "
    "none (nobody could take it).",
    (*SERVICE_LABELS, "reason"),
    unit="choices",
)
ROUTER_CHOICE_TOKENS = _metric(
    "paceline_router_choice_prompt_tokens_total",
    "counter",
    "Estimated prompt tokens of all choices, by whether they were expected to lie at the chosen replica: cached, new.",
    (*SERVICE_LABELS, "kind"),
    unit="tokens",
)
ROUTER_LAG = _metric(
    "paceline_router_loop_lag_seconds",
    "gauge",
    "The most that the data path came late to anything in the last ten to twenty seconds.",
    unit="seconds",
)
ROUTER_SPANS = _metric(
    "paceline_router_traced_requests_total",
    "counter",
    "Requests whose spans were recorded, by what became of them: sent, lost on the way, dropped unrecorded.",
    ("result",),
    unit="requests",
)
ROUTER_TENANT_ADMITTED = _metric(
    "paceline_router_tenant_admitted_total",
    "counter",
    "Requests let through to a replica, by tenant: those in the spec and 20 more by name, further ones as _other, "
    "none as _none.",
    _TENANT,
    unit="requests",
)
ROUTER_TENANT_REJECTED = _metric(
    "paceline_router_tenant_rejected_total",
    "counter",
    "Requests answered with 429, by tenant and reason: requests and tokens (limits per minute), too_large, queue "
    "(full), wait (too long).",
    (*_TENANT, "reason"),
    unit="requests",
)
ROUTER_TENANT_QUEUED = _metric(
    "paceline_router_tenant_queued", "gauge", "Requests that wait at the router.", _TENANT, unit="requests"
)
ROUTER_TENANT_RUNNING = _metric(
    "paceline_router_tenant_running", "gauge", "Requests that hold a slot of the tenant's.", _TENANT, unit="requests"
)
ROUTER_TENANT_TOKENS = _metric(
    "paceline_router_tenant_tokens_total",
    "counter",
    "Tokens of finished requests, where known, by tenant and kind: prompt, generation.",
    (*_TENANT, "kind"),
    unit="tokens",
)
ROUTER_TENANT_WAIT = _metric(
    "paceline_router_tenant_wait_seconds",
    "histogram",
    "How long requests that had to wait at the router waited until they were let through.",
    _TENANT,
    unit="seconds",
)
ROUTER_TENANT_TTFT = _metric(
    "paceline_router_tenant_ttft_seconds",
    "histogram",
    "From the whole request received to the first token, where known, of requests that have a tenant.",
    _TENANT,
    unit="seconds",
)
ROUTER_IDENTITY_REJECTED = _metric(
    "paceline_router_identity_rejected_total",
    "counter",
    "Requests whose tenant could not be told, by reason: missing_key, unknown_key, keys_unavailable, malformed_name, "
    "too_many_tenants.",
    (*SERVICE_LABELS, "reason"),
    unit="requests",
)
ROUTER_LENGTH_ESTIMATE = _metric(
    "paceline_router_length_estimate_ratio",
    "gauge",
    "Share of recent answers no longer than expected at a level (p50, p90), by shape and what the estimate stood on; "
    "right is 0.5 and 0.9.",
    (*SERVICE_LABELS, "shape", "basis", "level"),
    unit="ratio",
)
ROUTER_PROMPT_ESTIMATE = _metric(
    "paceline_router_prompt_estimate_error_ratio",
    "gauge",
    "How far estimates of a prompt's tokens were from the count, as a share of it: p50 and p98.",
    (*SERVICE_LABELS, "level"),
    unit="ratio",
)
ROUTER_CONNECT_FAILURES = _metric(
    "paceline_router_connect_failures_total",
    "counter",
    "Connections to replicas that could not be made.",
    unit="connections",
)
ROUTER_CLIENT_CONNECTIONS = _metric(
    "paceline_router_client_connections", "gauge", "Open client connections.", unit="connections"
)
ROUTER_REPLICAS = _metric(
    "paceline_router_replicas",
    "gauge",
    "Replicas of a service in the table, by state: ready, not_ready, draining.",
    (*SERVICE_LABELS, "state"),
    unit="replicas",
)
ROUTER_AVAILABLE = _metric(
    "paceline_router_service_available",
    "gauge",
    "1 while some ready replica of the service answers, 0 while none does: none is there, or all fail.",
    SERVICE_LABELS,
)
ROUTER_PROCESS_RESTARTS = _metric(
    "paceline_router_process_restarts_total",
    "counter",
    "Router processes that were started again, of several that share a port, by why: ended, silent (hung, so killed), "
    "start (never ready).",
    ("reason",),
    unit="processes",
)
ROUTER_BUILD = _metric(
    "paceline_router_build_info",
    "gauge",
    "Which router this is; always 1. The build is source, or compiled where the hot path is.",
    ("version", "build"),
)
ROUTER_SERVICES = _metric("paceline_router_services", "gauge", "Services in the table.", unit="services")
ROUTER_TABLE_SYNCED = _metric("paceline_router_table_synced", "gauge", "1 once the table has been read in full.")
ROUTER_TABLE_AGE = _metric(
    "paceline_router_table_age_seconds",
    "gauge",
    "Time since the source of the table was last heard.",
    unit="seconds",
)
ROUTER_UNUSUAL_REPORTS = _metric(
    "paceline_router_unusual_reports_total",
    "counter",
    "Load reports from replicas that could not be read.",
    unit="reports",
)
