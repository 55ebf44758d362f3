"""What a replica shows. Names are vLLM's where the meaning is vLLM's."""

from __future__ import annotations

from functools import partial
from typing import Final

from .metric import Metric

_MODEL: Final = ("model_name",)

_metric = partial(Metric, made_by="runtime")

RUNTIME_REQUESTS_RUNNING = _metric(
    "vllm:num_requests_running", "gauge", "Requests in the batch.", _MODEL, unit="requests"
)
RUNTIME_REQUESTS_WAITING = _metric(
    "vllm:num_requests_waiting", "gauge", "Requests queued in the engine.", _MODEL, unit="requests"
)
RUNTIME_KV_CACHE_USAGE = _metric(
    "vllm:kv_cache_usage_perc",
    "gauge",
    "Share of the KV cache's blocks held by requests, 0 to 1 (reusable cached blocks are not held).",
    _MODEL,
    unit="ratio",
)
RUNTIME_KV_BLOCKS = _metric("paceline_kv_blocks", "gauge", "Blocks of the KV cache.", _MODEL, unit="blocks")
RUNTIME_KV_BLOCKS_BY_STATE = _metric(
    "paceline_kv_blocks_by_state",
    "gauge",
    "Blocks of the KV cache by state: active (held by requests), cached (reusable content), free; they add up.",
    (*_MODEL, "state"),
    unit="blocks",
)
RUNTIME_KV_BLOCKS_EVICTED = _metric(
    "paceline_kv_blocks_evicted_total", "counter", "Cached blocks that were forgotten.", _MODEL, unit="blocks"
)
RUNTIME_WAITING_BY_REASON = _metric(
    "paceline_requests_waiting_by_reason",
    "gauge",
    "Requests queued in the engine by what they wait for: Queued (others are ahead), BatchFull (maxNumSeqs), NoBlocks "
    "(no room in the KV cache), StepFull (the step's tokens are taken), TenantSlots (its tenant has as many as it "
    "may).",
    (*_MODEL, "reason"),
    unit="requests",
)
RUNTIME_PREFILL_TOKENS = _metric(
    "paceline_prefill_tokens",
    "gauge",
    "Tokens not yet computed of running and waiting requests.",
    _MODEL,
    unit="tokens",
)
RUNTIME_DECODE_TOKENS = _metric(
    "paceline_decode_tokens", "gauge", "Tokens in the context of running requests.", _MODEL, unit="tokens"
)
RUNTIME_PREEMPTIONS = _metric(
    "vllm:num_preemptions_total", "counter", "Requests that lost their blocks.", _MODEL, unit="requests"
)
RUNTIME_PREEMPTIONS_BY = _metric(
    "paceline_preemptions_total",
    "counter",
    "Requests that lost their blocks, by reason: NoBlocks (one that runs needed room), Priority (a more urgent one "
    "came), Asked, TierFault (a block read back was damaged); way (recompute or swap) and class (high, normal, low).",
    (*_MODEL, "reason", "way", "priority_class"),
    unit="requests",
)
RUNTIME_RECOMPUTED_TOKENS = _metric(
    "paceline_recomputed_tokens_total",
    "counter",
    "Tokens computed again after a preemption.",
    _MODEL,
    unit="tokens",
)
RUNTIME_PREFIX_CACHE_QUERIES = _metric(
    "vllm:prefix_cache_queries_total",
    "counter",
    "Prompt tokens looked up in the prefix cache.",
    _MODEL,
    unit="tokens",
)
RUNTIME_PREFIX_CACHE_HITS = _metric(
    "vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.", _MODEL, unit="tokens"
)
RUNTIME_GENERATION_TOKENS = _metric("vllm:generation_tokens_total", "counter", "Tokens made.", _MODEL, unit="tokens")
RUNTIME_PREFILL_TOKENS_COMPUTED = _metric(
    "paceline_prefill_tokens_computed_total", "counter", "Tokens computed in prefill.", _MODEL, unit="tokens"
)
RUNTIME_ENGINE_STEPS = _metric("paceline_engine_steps_total", "counter", "Steps of the engine.", _MODEL, unit="steps")
RUNTIME_PROGRESS_AGE = _metric(
    "paceline_engine_progress_age_seconds",
    "gauge",
    "Seconds since the engine last made a step, or said that it has no work.",
    _MODEL,
    unit="seconds",
)
RUNTIME_STEP_BOUND = _metric(
    "paceline_engine_step_bound_seconds",
    "gauge",
    "Seconds that a step may take until the replica counts as dead; more where steps take long.",
    _MODEL,
    unit="seconds",
)
RUNTIME_STEP_PHASE = _metric(
    "paceline_step_phase_seconds_total",
    "counter",
    "Seconds of the engine's steps by phase: prepare, forward (on a GPU its launch), sync (waiting "
    "for the device), sample, update (the books), deliver (sending the outputs of the step before).",
    (*_MODEL, "phase"),
    unit="seconds",
)
RUNTIME_TIER_ACTIVE = _metric(
    "paceline_kv_tier_active", "gauge", "1 while blocks are stored in this memory.", (*_MODEL, "tier")
)
RUNTIME_TIER_BLOCKS = _metric(
    "paceline_kv_tier_blocks", "gauge", "Blocks that this memory has room for.", (*_MODEL, "tier"), unit="blocks"
)
RUNTIME_TIER_BLOCKS_USED = _metric(
    "paceline_kv_tier_blocks_used", "gauge", "Blocks kept in this memory.", (*_MODEL, "tier"), unit="blocks"
)
RUNTIME_TIER_STORED = _metric(
    "paceline_kv_tier_stored_blocks_total",
    "counter",
    "Blocks written to this memory.",
    (*_MODEL, "tier"),
    unit="blocks",
)
RUNTIME_TIER_LOADED = _metric(
    "paceline_kv_tier_loaded_blocks_total",
    "counter",
    "Blocks read back from this memory.",
    (*_MODEL, "tier"),
    unit="blocks",
)
RUNTIME_TIER_HITS = _metric(
    "paceline_kv_tier_hit_tokens_total",
    "counter",
    "Tokens that came from this memory instead of being computed.",
    (*_MODEL, "tier"),
    unit="tokens",
)
RUNTIME_TIER_SAVED = _metric(
    "paceline_kv_tier_saved_seconds_total",
    "counter",
    "What computing those tokens would have taken at the measured rate.",
    (*_MODEL, "tier"),
    unit="seconds",
)
RUNTIME_TIER_COST = _metric(
    "paceline_kv_tier_cost_seconds_total",
    "counter",
    "What writing and reading the blocks took.",
    (*_MODEL, "tier"),
    unit="seconds",
)
RUNTIME_REQUESTS_FINISHED = _metric(
    "vllm:request_success_total",
    "counter",
    "Requests by how they ended.",
    (*_MODEL, "finished_reason"),
    unit="requests",
)
RUNTIME_REQUESTS_REFUSED = _metric(
    "paceline_requests_refused_total",
    "counter",
    "Requests answered with an error before any token, by status.",
    (*_MODEL, "code"),
    unit="requests",
)
RUNTIME_ADMISSION_REJECTIONS = _metric(
    "vllm:admission_rejections_total",
    "counter",
    "Requests that the engine did not queue, by reason: context_length_exceeded, invalid_request, max_num_queued_reqs "
    "(too many wait), tenant_queue_full, deadline_exceeded, draining.",
    (*_MODEL, "reason"),
    unit="requests",
)
RUNTIME_TENANT_REQUESTS = _metric(
    "paceline_tenant_requests_total",
    "counter",
    "Requests that got their first token, by tenant: 20 by name, further ones as _other, none as _none.",
    (*_MODEL, "tenant"),
    unit="requests",
)
RUNTIME_TENANT_TOKENS = _metric(
    "paceline_tenant_tokens_total",
    "counter",
    "Tokens by tenant and kind: prompt, cached (of the prompt), generation.",
    (*_MODEL, "tenant", "kind"),
    unit="tokens",
)
RUNTIME_PROMPT_VERSION_TOKENS = _metric(
    "paceline_prompt_version_tokens_total",
    "counter",
    "Prompt tokens by the version that x-paceline-prompt-version names, and kind: prompt, cached; bounded alike.",
    (*_MODEL, "prompt_version", "kind"),
    unit="tokens",
)
RUNTIME_SLOW_READERS = _metric(
    "paceline_slow_readers_total",
    "counter",
    "Streams ended because their clients left too much unread.",
    _MODEL,
    unit="requests",
)
RUNTIME_REQUESTS_RECEIVED = _metric(
    "paceline_requests_received_total",
    "counter",
    "Generation requests by endpoint.",
    (*_MODEL, "endpoint"),
    unit="requests",
)
RUNTIME_PROMPT_TOKENS = _metric(
    "vllm:prompt_tokens_total",
    "counter",
    "Prompt tokens of requests that got their first token.",
    _MODEL,
    unit="tokens",
)
RUNTIME_PROMPT_TOKENS_CACHED = _metric(
    "vllm:prompt_tokens_cached_total",
    "counter",
    "Those of them that came from the prefix cache.",
    _MODEL,
    unit="tokens",
)
RUNTIME_TIME_TO_FIRST_TOKEN = _metric(
    "vllm:time_to_first_token_seconds", "histogram", "From arrival to the first token.", _MODEL, unit="seconds"
)
RUNTIME_INTER_TOKEN_LATENCY = _metric(
    "vllm:inter_token_latency_seconds", "histogram", "Between tokens of one answer.", _MODEL, unit="seconds"
)
RUNTIME_REQUEST_LATENCY = _metric(
    "vllm:e2e_request_latency_seconds", "histogram", "From arrival to the last token.", _MODEL, unit="seconds"
)
RUNTIME_QUEUE_TIME = _metric(
    "vllm:request_queue_time_seconds", "histogram", "From arrival to the first step.", _MODEL, unit="seconds"
)
RUNTIME_PREFILL_TIME = _metric(
    "vllm:request_prefill_time_seconds",
    "histogram",
    "From the first step to the first token.",
    _MODEL,
    unit="seconds",
)
RUNTIME_DECODE_TIME = _metric(
    "vllm:request_decode_time_seconds",
    "histogram",
    "From the first token to the last.",
    _MODEL,
    unit="seconds",
)
RUNTIME_INFERENCE_TIME = _metric(
    "vllm:request_inference_time_seconds",
    "histogram",
    "From the first step to the last token.",
    _MODEL,
    unit="seconds",
)
RUNTIME_TIME_PER_TOKEN = _metric(
    "vllm:request_time_per_output_token_seconds",
    "histogram",
    "Mean time between the tokens of an answer, per request.",
    _MODEL,
    unit="seconds",
)
RUNTIME_PARAMS_N = _metric("vllm:request_params_n", "histogram", "`n` as asked for.", _MODEL, unit="answers")
RUNTIME_PARAMS_MAX_TOKENS = _metric(
    "vllm:request_params_max_tokens", "histogram", "`max_tokens` as asked for.", _MODEL, unit="tokens"
)
RUNTIME_LONGEST_ANSWER = _metric(
    "vllm:request_max_num_generation_tokens",
    "histogram",
    "Tokens of the longest answer to a request.",
    _MODEL,
    unit="tokens",
)
RUNTIME_REQUEST_PREEMPTIONS = _metric(
    "vllm:request_num_preemptions", "histogram", "How often a request lost its blocks.", _MODEL, unit="preemptions"
)
RUNTIME_PROMPT_LENGTH = _metric(
    "vllm:request_prompt_tokens", "histogram", "Prompt tokens per request.", _MODEL, unit="tokens"
)
RUNTIME_ANSWER_LENGTH = _metric(
    "vllm:request_generation_tokens", "histogram", "Tokens made per request.", _MODEL, unit="tokens"
)
RUNTIME_STEP_TOKENS = _metric(
    "vllm:iteration_tokens_total", "histogram", "Tokens per step of the engine.", _MODEL, unit="tokens"
)
RUNTIME_STEP_SEQS = _metric(
    "paceline_step_sequences", "histogram", "Sequences per step of the engine.", _MODEL, unit="sequences"
)
RUNTIME_CACHE_CONFIG = _metric(
    "vllm:cache_config_info",
    "gauge",
    "The KV cache as it is; always 1.",
    (*_MODEL, "block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"),
)
RUNTIME_CONFIG_INFO = _metric(
    "paceline_config_info",
    "gauge",
    "The configuration this replica runs; always 1.",
    ("pool_hash", "config_hash"),
)
RUNTIME_KNOB_SET = _metric(
    "paceline_knob_set",
    "gauge",
    "What a knob that may change while the engine runs was started with.",
    (*_MODEL, "knob"),
)
RUNTIME_KNOB_IN_EFFECT = _metric(
    "paceline_knob_in_effect",
    "gauge",
    "What the same knob is now.",
    (*_MODEL, "knob"),
)
RUNTIME_MODEL_LOAD = _metric(
    "paceline_model_load_seconds", "gauge", "Seconds to read the weights.", _MODEL, unit="seconds"
)
RUNTIME_WARMUP = _metric(
    "paceline_warmup_seconds", "gauge", "Seconds to run each shape of step once.", _MODEL, unit="seconds"
)
RUNTIME_TIME_TO_READY = _metric(
    "paceline_time_to_ready_seconds",
    "gauge",
    "Seconds from the start of the process until requests were taken.",
    _MODEL,
    unit="seconds",
)
RUNTIME_COLD_FIRST_TOKEN = _metric(
    "paceline_cold_first_token_seconds",
    "gauge",
    "From arrival to the first token of the first request after the start.",
    _MODEL,
    unit="seconds",
)
