"""What vLLM's public Grafana dashboard asks a Prometheus, as facts.

Source: vllm-project/vllm at 4b5c627c23e6690b8987100d1cbf78e34ac14bf9, grafana.json in
examples/observability/prometheus_grafana (title "vLLM", read on 2026-12-01): metrics, labels and functions of its
twelve panels and of its variable `model_name`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

QUANTILES: Final = (0.99, 0.95, 0.9, 0.5)


@dataclass(frozen=True)
class Panel:
    """One panel: which families it reads, and how."""

    title: str
    families: tuple[str, ...]
    how: str


PANELS: Final = (
    Panel("E2E Request Latency", ("vllm:e2e_request_latency_seconds",), "quantiles and mean"),
    Panel("Token Throughput", ("vllm:prompt_tokens_total", "vllm:generation_tokens_total"), "rate"),
    Panel("Inter Token Latency", ("vllm:inter_token_latency_seconds",), "quantiles and mean"),
    Panel("Scheduler State", ("vllm:num_requests_running", "vllm:num_requests_waiting"), "now"),
    Panel("Time To First Token Latency", ("vllm:time_to_first_token_seconds",), "quantiles and mean"),
    Panel("Cache Utilization", ("vllm:kv_cache_usage_perc",), "now"),
    Panel("Request Prompt Length", ("vllm:request_prompt_tokens",), "heatmap"),
    Panel("Request Generation Length", ("vllm:request_generation_tokens",), "heatmap"),
    Panel("Finish Reason", ("vllm:request_success_total",), "increase by finished_reason"),
    Panel("Queue Time", ("vllm:request_queue_time_seconds_sum",), "rate"),
    Panel(
        "Requests Prefill and Decode Time",
        ("vllm:request_prefill_time_seconds_sum", "vllm:request_decode_time_seconds_sum"),
        "rate",
    ),
    Panel("Max Generation Token in Sequence Group", ("vllm:request_max_num_generation_tokens_sum",), "rate"),
)


def queries(model_name: str, interval: str) -> Iterator[tuple[str, str]]:
    """Panel and PromQL, with the dashboard's variables filled in; `interval` as in `[30s]`."""
    of = f'{{model_name="{model_name}"}}'
    for panel in PANELS:
        for family in panel.families:
            if panel.how == "quantiles and mean":
                for share in QUANTILES:
                    buckets = f"rate({family}_bucket{of}[{interval}])"
                    yield panel.title, f"histogram_quantile({share}, sum by(le) ({buckets}))"
                yield panel.title, f"rate({family}_sum{of}[{interval}]) / rate({family}_count{of}[{interval}])"
            elif panel.how == "heatmap":
                yield panel.title, f"sum by(le) (increase({family}_bucket{of}[{interval}]))"
            elif panel.how == "increase by finished_reason":
                yield panel.title, f"sum by(finished_reason) (increase({family}{of}[{interval}]))"
            elif panel.how == "rate":
                yield panel.title, f"rate({family}{of}[{interval}])"
            else:
                yield panel.title, family + of
