"""Prometheus metrics of one replica: vLLM's names where the meaning is vLLM's, `paceline_*` beside them.

Labels are the served model's name and closed sets only; nothing that a client chose.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.openmetrics import exposition as openmetrics

from paceline_crds import metrics as catalogue
from paceline_runtime.messages import EngineStats, Ready, RejectCode

from .engine_metrics import PHASES, EngineCollector

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
FINISHED_REASONS: Final = ("stop", "length", "abort", "error")
ENDPOINTS: Final = ("chat_completions", "completions")
REJECTIONS: Final = {code: code.value for code in RejectCode} | {RejectCode.QUEUE_FULL: "max_num_queued_reqs"}
"""Why the engine did not queue a request; vLLM's word where it has one."""

_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000)
_BATCH_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_BATCH_SEQS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096)
_CHOICES = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)

_LONGEST_ID: Final = 128 - len("request_id")
"""Characters of a request's id in an exemplar; OpenMetrics allows 128 for its labels' names and values together."""

MOST_NAMES: Final = 20
"""Values of a label that callers choose."""

NO_NAME: Final = "_none"
OTHER_NAMES: Final = "_other"


FORGET_SECONDS: Final = 3600.0
"""Of a name that nobody uses any more, until another one may have its place."""


class FewNames:
    """Names for a label that callers choose: a few as they are, so that series stay few.

    A name keeps its place while it is used, so that its series do not jump. Names that somebody made up once do not
    hold their places for ever.
    """

    def __init__(self, forget: Callable[[str], None], clock: Callable[[], float]) -> None:
        """`forget` is told of each name that gave its place up: its series go."""
        self._forget = forget
        self._clock = clock
        self._used: dict[str, float] = {}

    def label(self, name: str) -> str:
        """The label's value for `name`; what begins like our own words never becomes one."""
        if not name:
            return NO_NAME
        now = self._clock()
        if name not in self._used and (name.startswith("_") or not self._has_room(now)):
            return OTHER_NAMES
        self._used[name] = now
        return name

    def _has_room(self, now: float) -> bool:
        if len(self._used) < MOST_NAMES:
            return True
        oldest = min(self._used, key=lambda name: self._used[name])
        if now - self._used[oldest] < FORGET_SECONDS:
            return False
        del self._used[oldest]
        self._forget(oldest)
        return True


@dataclass(frozen=True, slots=True)
class FirstToken:
    """What is known when the first token of a request is there; seconds are since it came."""

    tenant: str
    prompt_version: str
    prompt_tokens: int
    cached_tokens: int
    seconds: float
    queue_seconds: float | None
    prefill_seconds: float | None
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that is over.

    Attributes:
        reason: how, one of `FINISHED_REASONS`.
        completion_tokens: of each answer.
        seconds: since it came.
        first_token_seconds: the same for its first token; `None` if there was none.
        queue_seconds: of them before the first step; `None` where not known.
    """

    reason: str
    completion_tokens: tuple[int, ...]
    seconds: float
    first_token_seconds: float | None = None
    queue_seconds: float | None = None
    preemptions: int = 0
    tenant: str = ""
    request_id: str = ""


_IMPORTED_AT: Final = time.monotonic()


def _process_age() -> float:
    """Seconds since this process began; where the kernel does not say, since this module was loaded."""
    try:
        began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return float(Path("/proc/uptime").read_text().split()[0]) - began
    except (OSError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED_AT


class Metrics:
    """The replica's metrics, in a registry of their own.

    Args:
        model_name: the served name, the `model_name` label of all series.
        clock: monotonic seconds.
    """

    def __init__(self, model_name: str, clock: Callable[[], float] = time.monotonic) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the series and nothing reads them
        self._registry = CollectorRegistry()
        self._engine = EngineCollector(model_name)
        self._registry.register(self._engine)
        self._model_name = model_name

        self._finished = self._counter(catalogue.RUNTIME_REQUESTS_FINISHED)
        self._refused = self._counter(catalogue.RUNTIME_REQUESTS_REFUSED)
        self._rejections = self._counter(catalogue.RUNTIME_ADMISSION_REJECTIONS)
        self._received = self._counter(catalogue.RUNTIME_REQUESTS_RECEIVED)
        for reason in FINISHED_REASONS:
            self._finished.labels(model_name, reason)
        for endpoint in ENDPOINTS:
            self._received.labels(model_name, endpoint)
        for code in RejectCode:
            self._rejections.labels(model_name, REJECTIONS[code])
        self._prompt_tokens = self._counter(catalogue.RUNTIME_PROMPT_TOKENS)
        self._prompt_tokens.labels(model_name)
        self._cached_tokens = self._counter(catalogue.RUNTIME_PROMPT_TOKENS_CACHED)
        self._cached_tokens.labels(model_name)
        self._tenants = FewNames(self._forget_tenant, clock)
        self._prompt_versions = FewNames(self._forget_version, clock)
        self._tenant_requests = self._counter(catalogue.RUNTIME_TENANT_REQUESTS)
        self._tenant_tokens = self._counter(catalogue.RUNTIME_TENANT_TOKENS)
        self._version_tokens = self._counter(catalogue.RUNTIME_PROMPT_VERSION_TOKENS)
        self._slow_readers = self._counter(catalogue.RUNTIME_SLOW_READERS)
        self._slow_readers.labels(model_name)
        self._ttft = self._histogram(catalogue.RUNTIME_TIME_TO_FIRST_TOKEN, _TTFT)
        self._itl = self._histogram(catalogue.RUNTIME_INTER_TOKEN_LATENCY, _ITL)
        self._per_token = self._histogram(catalogue.RUNTIME_TIME_PER_TOKEN, _ITL)
        self._e2e = self._histogram(catalogue.RUNTIME_REQUEST_LATENCY, _LATENCY)
        self._queue = self._histogram(catalogue.RUNTIME_QUEUE_TIME, _LATENCY)
        self._prefill = self._histogram(catalogue.RUNTIME_PREFILL_TIME, _LATENCY)
        self._decode = self._histogram(catalogue.RUNTIME_DECODE_TIME, _LATENCY)
        self._inference = self._histogram(catalogue.RUNTIME_INFERENCE_TIME, _LATENCY)
        self._params_n = self._histogram(catalogue.RUNTIME_PARAMS_N, _CHOICES)
        self._params_max_tokens = self._histogram(catalogue.RUNTIME_PARAMS_MAX_TOKENS, _TOKENS)
        self._prompt_length = self._histogram(catalogue.RUNTIME_PROMPT_LENGTH, _TOKENS)
        self._answer_length = self._histogram(catalogue.RUNTIME_ANSWER_LENGTH, _TOKENS)
        self._longest_answer = self._histogram(catalogue.RUNTIME_LONGEST_ANSWER, _TOKENS)
        self._preemptions = self._histogram(catalogue.RUNTIME_REQUEST_PREEMPTIONS, _PREEMPTIONS)
        self._batch = self._histogram(catalogue.RUNTIME_STEP_TOKENS, _BATCH_TOKENS)
        self._batch_seqs = self._histogram(catalogue.RUNTIME_STEP_SEQS, _BATCH_SEQS)
        self._config = self._gauge(catalogue.RUNTIME_CONFIG_INFO)
        self._knobs_set = self._gauge(catalogue.RUNTIME_KNOB_SET)
        self._knobs_in_effect = self._gauge(catalogue.RUNTIME_KNOB_IN_EFFECT)
        self._cold: Gauge | None = None

    def _counter(self, metric: catalogue.Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self._registry)

    def _gauge(self, metric: catalogue.Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self._registry)

    def _histogram(self, metric: catalogue.Metric, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(metric.name, metric.help, metric.labels, registry=self._registry, buckets=buckets)
        return family.labels(self._model_name)  # looked up once: some are observed for every token

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The exposition and its content type: OpenMetrics, which has exemplars, for who accepts it, or else text.

        Args:
            accept: the header of that name.
        """
        if any(part.split(";")[0].strip().lower() == "application/openmetrics-text" for part in accept.split(",")):
            # Any other escaping, which the library takes by itself, turns `vllm:` into `vllm_` in OpenMetrics.
            page: bytes = openmetrics.generate_latest(self._registry, openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
            return page, OPENMETRICS
        return generate_latest(self._registry), TEXT

    def configured(self, pool_hash: str, config_hash: str) -> None:
        """Say what configuration runs."""
        self._config.labels(pool_hash, config_hash).set(1)

    def knobs(self, started: Mapping[str, int], in_effect: Mapping[str, int]) -> None:
        """What each knob was started with, and what it is now."""
        for gauge, values in ((self._knobs_set, started), (self._knobs_in_effect, in_effect)):
            for name, value in values.items():
                gauge.labels(self._model_name, name).set(value)

    def engine_ready(self, ready: Ready) -> None:
        """Cold-start figures, kept apart from steady state, and what the cache is."""
        name = self._model_name
        self._gauge(catalogue.RUNTIME_MODEL_LOAD).labels(name).set(ready.load_seconds)
        self._gauge(catalogue.RUNTIME_WARMUP).labels(name).set(ready.warmup_seconds)
        self._gauge(catalogue.RUNTIME_TIME_TO_READY).labels(name).set(_process_age())
        self._cold = self._gauge(catalogue.RUNTIME_COLD_FIRST_TOKEN)

        def known(parameter: str) -> str:
            found = ready.parameters.get(parameter)
            return "" if found is None else str(found.value)

        self._gauge(catalogue.RUNTIME_CACHE_CONFIG).labels(
            name, known("blockSize"), known("numBlocks"), known("kvCacheDtype"), known("prefixCaching")
        ).set(1)

    def progress(self, age: Callable[[], float], bound: float) -> None:
        """How long ago the engine got on, asked for at each scrape, and how long that may be at most; seconds."""
        self._gauge(catalogue.RUNTIME_PROGRESS_AGE).labels(self._model_name).set_function(age)
        self._gauge(catalogue.RUNTIME_STEP_BOUND).labels(self._model_name).set(bound)

    def engine_stats(self, stats: EngineStats) -> None:
        """A report of the engine."""
        self._engine.stats = stats
        if stats.batch_tokens:
            self._batch.observe(stats.batch_tokens)
        if stats.batch_seqs:
            self._batch_seqs.observe(stats.batch_seqs)
        if stats.phases is not None:
            for phase in PHASES:
                self._engine.phases[phase] += getattr(stats.phases, phase)

    def received(self, endpoint: str) -> None:
        """A generation request came."""
        self._received.labels(self._model_name, endpoint).inc()

    def refused(self, status: int) -> None:
        """It was answered with an error before any token."""
        self._refused.labels(self._model_name, str(status)).inc()

    def rejected(self, code: RejectCode) -> None:
        """The engine did not queue it."""
        self._rejections.labels(self._model_name, REJECTIONS[code]).inc()

    def slow_reader(self) -> None:
        """A stream was ended because its client did not read."""
        self._slow_readers.labels(self._model_name).inc()

    def submitted(self, *, n: int, max_tokens: int | None) -> None:
        """It went to the engine."""
        self._params_n.observe(n)
        if max_tokens is not None:
            self._params_max_tokens.observe(max_tokens)

    def first_token(self, first: FirstToken) -> None:
        """The first token of a request is there."""
        self._prompt_tokens.labels(self._model_name).inc(first.prompt_tokens)
        self._cached_tokens.labels(self._model_name).inc(first.cached_tokens)
        tenant, version = self._tenants.label(first.tenant), self._prompt_versions.label(first.prompt_version)
        self._tenant_requests.labels(self._model_name, tenant).inc()
        for kind, tokens in (("prompt", first.prompt_tokens), ("cached", first.cached_tokens)):
            self._tenant_tokens.labels(self._model_name, tenant, kind).inc(tokens)
            self._version_tokens.labels(self._model_name, version, kind).inc(tokens)
        self._prompt_length.observe(first.prompt_tokens)
        self._ttft.observe(first.seconds, _exemplar(first.request_id))
        if self._cold is not None:
            self._cold.labels(self._model_name).set(first.seconds)
            self._cold = None
        if first.queue_seconds is not None:
            self._queue.observe(first.queue_seconds)
        if first.prefill_seconds is not None:
            self._prefill.observe(first.prefill_seconds)

    def _forget_tenant(self, name: str) -> None:
        self._tenant_requests.remove(self._model_name, name)
        for kind in ("prompt", "cached", "generation"):
            self._tenant_tokens.remove(self._model_name, name, kind)

    def _forget_version(self, name: str) -> None:
        for kind in ("prompt", "cached"):
            self._version_tokens.remove(self._model_name, name, kind)

    def token_gap(self, seconds: float) -> None:
        """Time since the answer's token before."""
        self._itl.observe(seconds)

    def finished(self, ended: Ended) -> None:
        """A request that the engine took is over: each of them comes here once."""
        self._finished.labels(self._model_name, ended.reason).inc()
        self._preemptions.observe(ended.preemptions)
        if any(ended.completion_tokens):
            tenant = self._tenants.label(ended.tenant)
            self._tenant_tokens.labels(self._model_name, tenant, "generation").inc(sum(ended.completion_tokens))
        if ended.reason not in ("stop", "length"):
            return
        made, longest = sum(ended.completion_tokens), max(ended.completion_tokens, default=0)
        who = _exemplar(ended.request_id)
        self._e2e.observe(ended.seconds, who)
        self._answer_length.observe(made)
        self._longest_answer.observe(longest)
        if ended.first_token_seconds is None:
            return
        decode = ended.seconds - ended.first_token_seconds
        self._decode.observe(decode)
        if ended.queue_seconds is not None:
            self._inference.observe(max(0.0, ended.seconds - ended.queue_seconds))
        if longest > 1:
            self._per_token.observe(decode / (longest - 1), who)


def _exemplar(request_id: str) -> dict[str, str] | None:
    """Labels of an exemplar: which request it was."""
    return {"request_id": request_id} if 0 < len(request_id) <= _LONGEST_ID else None
