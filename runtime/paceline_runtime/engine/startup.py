"""From a configuration to the parts of an engine: a loaded model, its memories, the scheduler, and what they are."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from paceline_crds.runtime_config import Origin, RuntimeConfig, RuntimeParameters, WeightType
from paceline_runtime.config import ConfigError
from paceline_runtime.kernels.interface import QUANTISED, SCALE_BYTES
from paceline_runtime.messages import EffectiveValue, ModelFacts, Ready
from paceline_runtime.model.checkpoint import digest, open_checkpoint
from paceline_runtime.model.device.memory import LargestSteps, MemoryProfile
from paceline_runtime.model.kv_mover import KVMover
from paceline_runtime.model.runner import ModelRunner, kv_type, pick_device
from paceline_runtime.model.source import ModelFiles, locate
from paceline_runtime.model.spec import ModelSpec
from paceline_runtime.model.torch_llama import check_heads_for

from .block_manager import BlockManager
from .hashing import hash_seed
from .limits import SchedulerLimits, limits_of, rules_of
from .memory import fit_cache, fit_model_length, host_memory_available, require
from .scheduler import Scheduler
from .tiers import Memory, TierStack

MEASURED = "measured"
"""Origin of values that the engine found out itself."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is made of.

    Attributes:
        mover: copies blocks within the KV cache, and between it and the memories below it.
    """

    config: RuntimeConfig
    spec: ModelSpec
    runner: ModelRunner
    mover: KVMover
    scheduler: Scheduler
    ready: Ready


def start(config: RuntimeConfig, *, max_waiting: int | None = None) -> Parts:
    """Load the model, take the memory, run each shape of step once.

    Raises:
        StartupError: with words and an exit code, if the model or the configuration cannot work.
    """
    started = time.monotonic()
    files = locate(config.model.source)
    checkpoint = open_checkpoint(files)
    spec = checkpoint.spec
    config = fit_model_length(config, spec.max_position)
    device, dtype = pick_device(config.parameters.dtype)
    check_heads_for(spec, device)
    kv_dtype = kv_type(config.parameters.kv_cache_quantization, dtype)
    bytes_per_token = spec.kv_bytes_per_token(kv_dtype.itemsize, SCALE_BYTES if kv_dtype in QUANTISED else 0)
    config, num_blocks = fit_cache(config, bytes_per_token)
    parameters = config.parameters
    # What cannot work is refused by now: a failure further on waits for the whole file to be read.
    with ThreadPoolExecutor(1) as pool:
        # Hashing and reading overlap: both wait for the same pages.
        digesting = pool.submit(digest, files)
        runner = ModelRunner(
            checkpoint,
            device=device,
            dtype=dtype,
            weight_dtype=_weight_type(parameters.dtype, dtype),
            kv_dtype=kv_dtype,
            block_size=parameters.block_size,
            max_model_len=parameters.max_model_len,
        )
        model_digest = digesting.result()
    bytes_per_block = parameters.block_size * bytes_per_token
    largest = LargestSteps(
        max_batched_tokens=parameters.max_batched_tokens,
        chunk_tokens=parameters.prefill_chunk_tokens,
        max_num_seqs=parameters.max_num_seqs,
        max_model_len=parameters.max_model_len,
    )
    profile = runner.profile_memory(largest)
    _take_memory(parameters, num_blocks * bytes_per_block, runner.mapped_bytes, profile)
    runner.allocate_cache(num_blocks)
    tiers, mover = _lower_memories(parameters, runner, bytes_per_block)
    load_seconds = time.monotonic() - started
    warmup_seconds = runner.warm_up(largest)
    blocks = BlockManager(
        num_blocks,
        parameters.block_size,
        prefix_caching=parameters.prefix_caching,
        seed=hash_seed(model_digest, parameters.block_size, _kept_as(runner)),
        watermark_percent=parameters.eviction_watermark_percent,
        tiers=tiers,
    )
    limits = limits_of(parameters, num_blocks, max_waiting=max_waiting)
    scheduler = Scheduler(limits, blocks, frozenset(spec.eos_token_ids), rules_of(parameters))
    return Parts(
        config=config,
        spec=spec,
        runner=runner,
        mover=mover,
        scheduler=scheduler,
        ready=Ready(
            parameters=_effective(config, limits, num_blocks, bytes_per_block, runner, profile),
            model=_facts(files, spec, model_digest, runner),
            dtype=_name(runner.weight_dtype),
            device=runner.device_name,
            load_seconds=load_seconds,
            warmup_seconds=warmup_seconds,
        ),
    )


def _weight_type(asked: WeightType, activations: torch.dtype) -> torch.dtype:
    match asked:
        case WeightType.FLOAT32:
            return torch.float32
        case WeightType.BFLOAT16:
            return torch.bfloat16
        case WeightType.AUTO:
            return activations


def _kept_as(runner: ModelRunner) -> str:
    """The types that a block's content depends on."""
    kept = _name(runner.dtype)
    return kept if runner.kv_dtype is runner.dtype else f"{_name(runner.kv_dtype)} of {kept}"


def _take_memory(
    parameters: RuntimeParameters, cache_bytes: int, mapped_bytes: int, profile: MemoryProfile | None
) -> None:
    """Test that the cache and the host memory below it are there to be taken.

    Args:
        mapped_bytes: of the weights, what the system counts as memory that it could give away.
        profile: of the device, where that has memory of its own.
    """
    host = host_memory_available()
    if host is not None:
        host = max(host - mapped_bytes, 0)
    asked = f"kvCache.memory {parameters.kv_cache_memory}"
    if profile is not None:
        require(cache_bytes, profile.kv_room, asked)
        cache_bytes = 0
    if parameters.kv_host_bytes:
        asked = f"{asked} and kvCache.hostMemory {parameters.kv_host_memory}" if cache_bytes else "kvCache.hostMemory"
    require(cache_bytes + parameters.kv_host_bytes, host, asked)


def _lower_memories(
    parameters: RuntimeParameters, runner: ModelRunner, bytes_per_block: int
) -> tuple[TierStack | None, KVMover]:
    rooms = {
        Memory.HOST: parameters.kv_host_bytes // bytes_per_block,
        Memory.DISK: parameters.kv_disk_bytes // bytes_per_block,
    }
    try:
        mover = KVMover(runner.kv_cache, host_blocks=rooms[Memory.HOST], disk_blocks=rooms[Memory.DISK])
    except OSError as error:
        raise ConfigError(
            f"kvDiskMemory {parameters.kv_disk_memory} cannot be had in {tempfile.gettempdir()}: "
            f"{error.strerror or error}; lower it, or set TMPDIR to a folder with more room"
        ) from error
    tiers = TierStack(list(rooms.items()), parameters.block_size) if any(rooms.values()) else None
    return tiers, mover


def _effective(
    config: RuntimeConfig,
    limits: SchedulerLimits,
    num_blocks: int,
    bytes_per_block: int,
    runner: ModelRunner,
    profile: MemoryProfile | None,
) -> dict[str, EffectiveValue]:
    wire = config.parameters.model_dump(mode="json", by_alias=True)
    values = {name: EffectiveValue(wire[name], str(origin)) for name, origin in config.origins.items()}
    values["maxWaiting"] = EffectiveValue(limits.max_waiting, str(Origin.DEFAULT))
    found: dict[str, int | str] = {
        "numBlocks": num_blocks,
        "kvBytesPerBlock": bytes_per_block,
        "kvCacheDtype": _name(runner.kv_dtype),
        "reserveBlocks": limits.reserve_blocks,
        "kernels": runner.kernels,
    }
    if profile is not None:
        found |= {
            "deviceWeightBytes": profile.weights,
            "deviceStepBytes": profile.step,
            "deviceGraphBytes": profile.graphs,
            "kvRoomBytes": profile.kv_room,
        }
    return values | {name: EffectiveValue(value, MEASURED) for name, value in found.items()}


def _facts(files: ModelFiles, spec: ModelSpec, model_digest: str, runner: ModelRunner) -> ModelFacts:
    return ModelFacts(
        digest=model_digest,
        path=str(files.path),
        architecture=spec.architecture,
        vocab_size=spec.vocab_size,
        max_position=spec.max_position,
        parameters=runner.model.num_parameters,
        eos_token_ids=list(spec.eos_token_ids),
        bos_token_id=spec.bos_token_id,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
