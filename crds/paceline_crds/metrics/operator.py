"""What the operator shows."""

from __future__ import annotations

from functools import partial
from typing import Final

from .metric import SERVICE_LABELS, Metric

_RESOURCE: Final = ("resource",)

_metric = partial(Metric, made_by="operator")

OPERATOR_RECONCILES = _metric(
    "paceline_operator_reconcile_total",
    "counter",
    "Reconcile passes: success, error, conflict (repeated), not_leader.",
    ("result",),
    unit="passes",
)
OPERATOR_RECONCILE_ERRORS = _metric(
    "paceline_operator_reconcile_errors_total",
    "counter",
    "Reconcile passes that failed, by reason.",
    ("reason",),
    unit="passes",
)
OPERATOR_RECONCILE_SECONDS = _metric(
    "paceline_operator_reconcile_seconds", "histogram", "Duration of a reconcile pass.", unit="seconds"
)
OPERATOR_FRONT_RESTARTS = _metric(
    "paceline_operator_front_restarts_total",
    "counter",
    "Times the Kopf front end ended and was started again.",
    unit="restarts",
)
OPERATOR_DRIFT = _metric(
    "paceline_drift_items",
    "gauge",
    "Values of a service that are not as its revision has them, over all replicas and objects.",
    SERVICE_LABELS,
    unit="values",
)
OPERATOR_DRIFT_UNKNOWN = _metric(
    "paceline_drift_unknown_replicas",
    "gauge",
    "Ready replicas of a service that do not say what they run with.",
    SERVICE_LABELS,
    unit="replicas",
)
OPERATOR_CRD_MISSING = _metric(
    "paceline_crd_missing_fields",
    "gauge",
    "Fields of this operator's CRDs that those of the cluster lack; absent until they were compared.",
    unit="fields",
)
OPERATOR_SCALING_DESIRED = _metric(
    "paceline_scaling_desired_replicas",
    "gauge",
    "Replicas that a pool should have by its load; only of pools whose count follows it.",
    (*SERVICE_LABELS, "pool"),
    unit="replicas",
)
OPERATOR_SCALING_ACTIVE = _metric(
    "paceline_scaling_active",
    "gauge",
    "1 while a pool's count is decided from known figures, 0 while it is only held since some are not known.",
    (*SERVICE_LABELS, "pool"),
)
OPERATOR_TUNING_KNOB = _metric(
    "paceline_tuning_knob",
    "gauge",
    "What a knob of a pool's replicas should be by its load; only of knobs that follow it.",
    (*SERVICE_LABELS, "pool", "knob"),
)
OPERATOR_TUNING_ACTIVE = _metric(
    "paceline_tuning_active",
    "gauge",
    "1 while a pool's knobs are decided from known figures, 0 while they are only held.",
    (*SERVICE_LABELS, "pool"),
)
OPERATOR_SLO_THRESHOLD = _metric(
    "paceline_slo_threshold_seconds",
    "gauge",
    "What spec.slo promises, by signal (ttft, tpot) and level (p90, p99).",
    (*SERVICE_LABELS, "signal", "level"),
    unit="seconds",
)
OPERATOR_ROLLOUT_WEIGHT = _metric(
    "paceline_rollout_weight_percent",
    "gauge",
    "Percent of a service's requests that a revision under way is to get; absent while none is.",
    SERVICE_LABELS,
    unit="percent",
)
OPERATOR_ROLLOUT_PHASE = _metric(
    "paceline_rollout_phase",
    "gauge",
    "1 for the phase that a rollout by steps is in; absent while there is none. Blocked (it cannot begin), Preparing "
    "(replicas start), Shadow (copies of requests), Moving (routers follow), Judging (its step is watched), Held (a "
    "person decides), Finishing, RollingBack; Idle: it was rejected.",
    (*SERVICE_LABELS, "phase"),
)
OPERATOR_ROLLOUT_VERDICT = _metric(
    "paceline_rollout_verdict",
    "gauge",
    "1 for the verdict on the present step of a rollout: Pass, Fail, NotKnown; absent where nothing is judged.",
    (*SERVICE_LABELS, "verdict"),
)
OPERATOR_CANARY_REPLICAS = _metric(
    "paceline_output_canary_replicas",
    "gauge",
    "Replicas by their answer to the fixed question: agrees, tokenizer, model, cache (what differs), failed, unknown.",
    (*SERVICE_LABELS, "result"),
    unit="replicas",
)
OPERATOR_DECISIONS = _metric(
    "paceline_decisions_total",
    "counter",
    "Decisions and findings about a service that were told as an Event, by its reason; repeats are not counted.",
    (*SERVICE_LABELS, "reason"),
    unit="decisions",
)
OPERATOR_QUEUE_DEPTH = _metric(
    "paceline_operator_queue_depth", "gauge", "Services waiting for a worker.", unit="services"
)
OPERATOR_WORKERS_BUSY = _metric(
    "paceline_operator_workers_busy", "gauge", "Services being reconciled.", unit="services"
)
OPERATOR_LEADER = _metric("paceline_operator_leader", "gauge", "1 on the replica that holds the lease.")
OPERATOR_INFORMER_AGE = _metric(
    "paceline_operator_informer_age_seconds",
    "gauge",
    "Seconds since the API server was last heard about this kind.",
    _RESOURCE,
    unit="seconds",
)
OPERATOR_INFORMER_SYNCED = _metric(
    "paceline_operator_informer_synced", "gauge", "1 once the first list is in.", _RESOURCE
)
OPERATOR_INFORMER_OBJECTS = _metric(
    "paceline_operator_informer_objects", "gauge", "Objects held.", _RESOURCE, unit="objects"
)
OPERATOR_INFORMER_LISTS = _metric(
    "paceline_operator_informer_lists_total", "counter", "Full lists read.", _RESOURCE, unit="lists"
)
OPERATOR_INFORMER_HANDLER_ERRORS = _metric(
    "paceline_operator_informer_handler_errors_total",
    "counter",
    "Exceptions of handlers.",
    _RESOURCE,
    unit="exceptions",
)
OPERATOR_EVENTS = _metric(
    "paceline_operator_events_total",
    "counter",
    "Kubernetes Events by what became of them: written, merged (into one that said the same), dropped.",
    ("result",),
    unit="events",
)

# What the client library shows of the operator's process (on Linux) and interpreter; names and texts are the library's.

OPERATOR_PROCESS_VIRTUAL_MEMORY = _metric(
    "process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", unit="bytes"
)
OPERATOR_PROCESS_RESIDENT_MEMORY = _metric(
    "process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", unit="bytes"
)
OPERATOR_PROCESS_START_TIME = _metric(
    "process_start_time_seconds",
    "gauge",
    "Start time of the process since unix epoch in seconds.",
    unit="seconds",
)
OPERATOR_PROCESS_CPU = _metric(
    "process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", unit="seconds"
)
OPERATOR_PROCESS_OPEN_FDS = _metric(
    "process_open_fds", "gauge", "Number of open file descriptors.", unit="file descriptors"
)
OPERATOR_PROCESS_MAX_FDS = _metric(
    "process_max_fds", "gauge", "Maximum number of open file descriptors.", unit="file descriptors"
)
OPERATOR_PYTHON_INFO = _metric(
    "python_info",
    "gauge",
    "Python platform information",
    ("version", "implementation", "major", "minor", "patchlevel"),
)
