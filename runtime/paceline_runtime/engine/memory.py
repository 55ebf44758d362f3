"""How much memory there is, and how many cache blocks come of it."""

from __future__ import annotations

from pathlib import Path

from paceline_crds.runtime_config import Origin, RuntimeConfig
from paceline_runtime.config import ConfigError, with_value

MIB = 1024 * 1024

LEAST_MODEL_LEN = 16
"""The shortest `maxModelLen` that a configuration may have."""


def fit_model_length(config: RuntimeConfig, max_position: int) -> RuntimeConfig:
    """The configuration with a `maxModelLen` that the model can do.

    What nobody chose, a default or the ledger's, is lowered to the model's own limit.

    Raises:
        ConfigError: if somebody chose a longer one.
    """
    asked = config.parameters.max_model_len
    if asked <= max_position:
        return config
    if config.origins["maxModelLen"] in (Origin.DEFAULT, Origin.LEDGER):
        return with_value(config, "max_model_len", max_position, Origin.MODEL)
    raise ConfigError(
        f"maxModelLen is {asked}, but this model was made for at most {max_position} tokens (its own limit); "
        f"write {max_position} or less"
    )


def fit_cache(config: RuntimeConfig, bytes_per_token: int) -> tuple[RuntimeConfig, int]:
    """The configuration with a `maxModelLen` that the cache holds, and the blocks that `kvCache.memory` pays for.

    A length that nobody chose is lowered to what the whole cache holds.

    Raises:
        ConfigError: with the arithmetic, if somebody chose a longer one, or the cache holds next to nothing.
    """
    parameters = config.parameters
    bytes_per_block = bytes_per_token * parameters.block_size
    blocks = parameters.kv_cache_bytes // bytes_per_block
    held = blocks * parameters.block_size
    if held >= parameters.max_model_len:
        return config, blocks
    arithmetic = (
        f"kvCache.memory {parameters.kv_cache_memory} ÷ {bytes_per_token} bytes per token (blocks of "
        f"{parameters.block_size}) holds {held} tokens"
    )
    if held < LEAST_MODEL_LEN:
        needed = -(-LEAST_MODEL_LEN // parameters.block_size) * bytes_per_block
        raise ConfigError(
            f"the KV cache is too small for any request: {arithmetic}; write kvCache.memory: {-(-needed // MIB)}Mi or "
            "more"
        )
    if config.origins["maxModelLen"] in (Origin.DEFAULT, Origin.MODEL, Origin.LEDGER):
        return with_value(config, "max_model_len", held, Origin.LEDGER), blocks
    needed = -(-parameters.max_model_len // parameters.block_size) * bytes_per_block
    raise ConfigError(
        f"the KV cache is too small for one request: {arithmetic}, and maxModelLen is {parameters.max_model_len}; "
        f"write kvCache.memory: {-(-needed // MIB)}Mi or more, or maxModelLen: {held} or less"
    )


def require(wanted: int, available: int | None, asked_for: str) -> None:
    """Check that memory which is about to be taken is there.

    Args:
        wanted: bytes.
        available: bytes, `None` if not known (nothing is checked then).
        asked_for: what the memory was asked for with, e.g. `kvCache.memory 4Gi`.

    Raises:
        ConfigError: if it is not.
    """
    if available is not None and wanted > available:
        raise ConfigError(
            f"{asked_for} is {-(-wanted // MIB)} MiB, but only {available // MIB} MiB are free here after the weights; "
            "lower it, or give the replica more memory"
        )


def host_memory_available(root: Path = Path("/")) -> int | None:
    """Bytes that a process may still take: the machine's or its control group's (v2); `None` if not known."""
    bounds = []
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                bounds.append(int(line.split()[1]) * 1024)
    except OSError:
        pass  # no such file on this system: this bound is not known
    group = root / "sys/fs/cgroup"
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            bounds.append(max(int(limit) - int((group / "memory.current").read_text()), 0))
    except OSError:
        pass  # as above
    return min(bounds, default=None)
