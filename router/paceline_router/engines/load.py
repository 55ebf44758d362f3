"""The load of a replica from its `/metrics` page, for engines that have no `/v1/paceline/load`.

A page may be hundreds of kilobytes, nearly all of it histograms, and is asked for once a second and replica. So it is
not parsed: a dozen names are looked for at the beginnings of lines, and only the lines that have them are read.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

METRICS_PATH = "/metrics"

MAX_PAGE = 4 * 1024 * 1024
"""Bytes. A longer page is not read: what was cut off might be the gauge that counts."""

MAX_SERIES = 1024
"""Series of one gauge (models times ranks); with more of them its sum is not known."""

MAX_COUNT = 10**9
"""A gauge beyond this is a mistake of the page's."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One replica's own account of its load. `None` is "not known", which is never the same as idle.

    Attributes:
        engine: `vllm`, `sglang` or `llama.cpp`.
        running: requests in the batch, over all models and data-parallel ranks.
        waiting: requests queued in the engine.
        kv_percent: KV cache in use, whole percent, over all ranks.
        context_tokens: tokens that running requests hold in the KV cache.
    """

    engine: str
    running: int | None = None
    waiting: int | None = None
    kv_percent: int | None = None
    context_tokens: int | None = None

    @property
    def requests(self) -> int | None:
        """Running and waiting; None when either is not known."""
        if self.running is None or self.waiting is None:
            return None
        return self.running + self.waiting


@dataclass(frozen=True, slots=True)
class _Names:
    """The gauges of one engine. Of several names the first that is on the page counts: later ones are older."""

    engine: str
    prefix: bytes
    running: tuple[bytes, ...]
    waiting: tuple[bytes, ...]
    kv_ratio: tuple[bytes, ...]
    tokens: tuple[bytes, ...] = ()
    also_waiting: tuple[bytes, ...] = ()
    """Queues that are counted apart; absent in most versions and modes."""


_ENGINES = (
    _Names(
        "vllm",
        b"\nvllm:",
        (b"vllm:num_requests_running",),
        (b"vllm:num_requests_waiting",),
        (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
    ),
    _Names(
        "sglang",
        b"\nsglang:",
        (b"sglang:num_running_reqs",),
        (b"sglang:num_queue_reqs",),
        (b"sglang:token_usage",),
        (b"sglang:kv_used_tokens", b"sglang:num_used_tokens"),
        (
            b"sglang:num_grammar_queue_reqs",
            b"sglang:num_prefill_prealloc_queue_reqs",
            b"sglang:num_decode_prealloc_queue_reqs",
            b"sglang:num_decode_transfer_queue_reqs",
        ),
    ),
    _Names(
        "llama.cpp",
        b"\nllamacpp:",
        (b"llamacpp:requests_processing",),
        (b"llamacpp:requests_deferred",),
        # `kv_cache_usage_ratio` of older builds also counts what idle slots keep, which is no load.
        (),
    ),
)

_SAMPLE = re.compile(rb'(?:\{((?:[^"{}\n]|"(?:[^"\\\n]|\\.)*")*)\})?[ \t]+([^\s]+)(?:[ \t]+-?[0-9]+)?[ \t\r]*')
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\\n]|\\.)*)"')

_COPIES = frozenset((b"tp_rank", b"pp_rank", b"moe_ep_rank", b"pid"))
"""Ranks that work on the same requests: each may report them, and they are counted once."""


def load_from_metrics(page: bytes) -> EngineLoad | None:
    """The load that a page in Prometheus' text format tells of; None when it is of none of the known engines.

    Gauges of several models or data-parallel ranks are added up (the KV cache: averaged). A gauge that is absent, NaN
    or not a number in any of its series is not known. A last line without its end may have been cut and does not count.
    """
    if len(page) > MAX_PAGE:
        return None
    page = b"\n" + page
    for names in _ENGINES:
        if names.prefix not in page:
            continue
        running = _first(page, names.running)
        waiting = _first(page, names.waiting)
        kv = _first(page, names.kv_ratio)
        if running is None and waiting is None and kv is None:
            continue
        queued = _sum(waiting)
        for name in names.also_waiting:
            more = _series(page, name)
            if queued is not None and more is not None:
                extra = _sum(more)
                queued = None if extra is None else queued + extra
        return EngineLoad(names.engine, _sum(running), queued, _percent(kv), _sum(_first(page, names.tokens)))
    return None


def _first(page: bytes, names: tuple[bytes, ...]) -> list[float] | None:
    for name in names:
        values = _series(page, name)
        if values is not None:
            return values
    return None


def _series(page: bytes, name: bytes) -> list[float] | None:
    """The values of a gauge, one for each set of requests; None when it is not on the page, NaN for what is wrong."""
    wanted = b"\n" + name
    by_labels: dict[frozenset[tuple[bytes, bytes]], float] = {}
    at = page.find(wanted)
    seen = 0
    while at >= 0:
        begin = at + len(wanted)
        end = page.find(b"\n", begin)
        if end < 0:
            break
        if page[begin : begin + 1] in (b"{", b" ", b"\t"):
            seen += 1
            match = _SAMPLE.fullmatch(page, begin, end)
            if match is None or seen > MAX_SERIES:
                return [math.nan]
            labels = dict(_LABEL.findall(match[1])) if match[1] else {}
            # Of a queue with priorities there is one series for all and one for each.
            if not labels.get(b"priority"):
                key = frozenset(item for item in labels.items() if item[0] not in _COPIES)
                value = _number(match[2])
                known = by_labels.get(key)
                # A comparison with NaN is false, so NaN has to win by name.
                by_labels[key] = value if known is None or value > known or math.isnan(value) else known
        at = page.find(wanted, end)
    return list(by_labels.values()) if by_labels else None


def _number(text: bytes) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if 0 <= value <= MAX_COUNT else math.nan


def _sum(values: list[float] | None) -> int | None:
    if values is None:
        return None
    total = math.fsum(values)
    return round(total) if math.isfinite(total) else None


def _percent(ratios: list[float] | None) -> int | None:
    """Mean of the ranks' ratios, which are of caches of one size."""
    if ratios is None:
        return None
    mean = math.fsum(ratios) / len(ratios)
    return round(mean * 100) if 0 <= mean <= 1.05 else None
