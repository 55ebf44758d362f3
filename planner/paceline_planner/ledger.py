"""The memory and bandwidth ledger of a model on an accelerator: what fits, how many at a time, how fast at best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .accelerators import GIB, Accelerator
from .shapes import ModelShape

MARGIN_PERCENT = 20
"""Of the memory, for activations and buffers."""

BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
"""Of one value by type."""

SCALE_BYTES = 4
"""Of one scale where weights or cached values are quantised."""

WEIGHT_GROUP = {"int4": 128}
"""Values that share a scale; others have one for each row, which is nothing beside the row."""

CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@dataclass(frozen=True, slots=True)
class Setup:
    """How a model is to run.

    Attributes:
        devices: over which the weights and the cache are spread evenly (tensor parallel).
        kv_scales: what has a scale of its own in a quantised cache: `tensor` (nothing to count), `head` or `token`.
    """

    accelerator: Accelerator
    devices: int = 1
    weights: str = "bf16"
    kv: str = "bf16"
    kv_scales: str = "tensor"
    block_size: int = 16
    margin_percent: int = MARGIN_PERCENT


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes, tokens and tokens per second. None means not known.

    Attributes:
        memory: of all devices together.
        margin: kept free of it.
        weights: bytes of the weights.
        kv_room: bytes left for the KV cache; negative where the model does not fit.
        kv_per_token: bytes that one token takes in the cache, over all layers and devices.
        blocks: whole KV blocks in `kv_room`.
        concurrency: sequences that fit at the same time, by context length.
        decode_ceiling: tokens per second at the given batch sizes with a context of `ceiling_context`: bandwidth over
            the bytes that a step reads.
        compute_takes_over: batch from which a step is bound by arithmetic and not by reading weights.
    """

    model: ModelShape
    setup: Setup
    memory: int
    margin: int
    weights: int
    kv_room: int
    kv_per_token: int
    blocks: int
    concurrency: dict[int, int]
    ceiling_context: int
    decode_ceiling: dict[int, float | None]
    compute_takes_over: int | None

    @property
    def fits(self) -> bool:
        """Whether the weights and at least one block of the cache have room."""
        return self.blocks > 0


def weight_bytes(parameters: int, kind: str) -> int:
    """Bytes of weights of one type, scales included."""
    size = parameters * BYTES[kind]
    group = WEIGHT_GROUP.get(kind)
    if group is not None:
        size += parameters / group * SCALE_BYTES
    return round(size)


def kv_bytes_per_token(model: ModelShape, kind: str, scales: str = "tensor", devices: int = 1) -> int:
    """Bytes of one token in the KV cache, over all layers and devices.

    2 x layers x KV heads x head size x bytes; latent attention caches one vector a layer instead. With more devices
    than KV heads each head is held more than once, and a latent vector by every device.
    """
    values = model.cached_values * copies(model, devices)
    size = values * BYTES[kind]
    if BYTES[kind] < 2:
        heads = 1 if model.latent is not None else model.num_kv_heads
        if scales == "token":
            # One for keys and one for values, of each head and token.
            size += model.num_layers * heads * (1 if model.latent is not None else 2) * SCALE_BYTES
    return round(size)


def copies(model: ModelShape, devices: int) -> int:
    """How many times a cached value is held when spread over devices."""
    if model.latent is not None:
        return devices
    return max(1, devices // model.num_kv_heads)


def kv_bytes_of_sequence(model: ModelShape, context: int, setup: Setup) -> int:
    """Bytes that a sequence of `context` tokens takes, in whole blocks.

    Sliding layers hold no more than their window and the block it ends in.
    """
    whole = kv_bytes_per_token(model, setup.kv, setup.kv_scales, setup.devices)
    tokens = math.ceil(context / setup.block_size) * setup.block_size
    if model.window is None or context <= model.window:
        return whole * tokens
    held = (math.ceil(model.window / setup.block_size) + 1) * setup.block_size
    share = model.sliding_layers / model.num_layers
    return round(whole * (share * min(held, tokens) + (1 - share) * tokens))


def bytes_read(model: ModelShape, setup: Setup, batch: int, context: int) -> float:
    """Bytes that one decode step reads: the weights that its tokens need, and every sequence's cache.

    Of `count` experts a batch needs count x (1 - (1 - active/count)^batch) when tokens choose evenly.
    """
    parameters = float(model.worked_parameters)
    if (experts := model.experts) is not None:
        needed = experts.count * (1 - (1 - experts.active / experts.count) ** batch)
        parameters += experts.layers * experts.parameters * (needed - experts.active)
    return weight_bytes(round(parameters), setup.weights) + batch * kv_bytes_of_sequence(model, context, setup)


def decode_ceiling(model: ModelShape, setup: Setup, batch: int, context: int) -> float | None:
    """Tokens per second that reading alone allows; None where the bandwidth is not known."""
    if setup.accelerator.bandwidth is None:
        return None
    return batch * setup.accelerator.bandwidth * setup.devices / bytes_read(model, setup, batch, context)


def compute_takes_over(model: ModelShape, setup: Setup) -> int | None:
    """The batch at which multiplying takes as long as reading the weights; None where a rate is not known.

    Two operations a parameter and token: batch x 2 x worked / flops = bytes / bandwidth. Beyond it a larger batch makes
    every step longer. The cache is left out: it is read for each sequence by itself and never amortised.
    """
    rate = _flops(setup)
    bandwidth = setup.accelerator.bandwidth
    if rate is None or bandwidth is None:
        return None
    # A batch this large needs every expert.
    unread = model.active_parameters - model.worked_parameters
    read = weight_bytes(model.parameters - unread, setup.weights)
    return max(1, round(read / bandwidth * rate / (2 * model.worked_parameters)))


def _flops(setup: Setup) -> float | None:
    rates = setup.accelerator.flops
    # Weights of 4 bits are widened before they are multiplied; fp16 has the rate of bf16 everywhere here.
    kind = {"int4": "bf16", "fp16": "bf16"}.get(setup.weights, setup.weights)
    return rates.get(kind)


def ledger(
    model: ModelShape,
    setup: Setup,
    *,
    contexts: Sequence[int] = CONTEXTS,
    batches: Sequence[int] = (1, 8, 32, 128),
    ceiling_context: int = 2048,
) -> Ledger:
    """The whole ledger. `contexts` above the model's own limit are left out.

    Raises:
        KeyError: a type of values that is not in `BYTES`.
    """
    memory = setup.accelerator.memory * setup.devices
    margin = memory * setup.margin_percent // 100
    weights = weight_bytes(model.parameters, setup.weights)
    per_token = kv_bytes_per_token(model, setup.kv, setup.kv_scales, setup.devices)
    room = memory - margin - weights
    blocks = max(0, room // (per_token * setup.block_size))
    usable = blocks * per_token * setup.block_size
    limit = model.context_length
    shown = [context for context in contexts if limit is None or context <= limit]
    if limit is not None and limit not in shown and limit < max(contexts):
        shown = sorted([*shown, limit])
    return Ledger(
        model=model,
        setup=setup,
        memory=memory,
        margin=margin,
        weights=weights,
        kv_room=room,
        kv_per_token=per_token,
        blocks=blocks,
        concurrency={context: usable // kv_bytes_of_sequence(model, context, setup) for context in shown},
        ceiling_context=ceiling_context,
        decode_ceiling={batch: decode_ceiling(model, setup, batch, ceiling_context) for batch in batches},
        compute_takes_over=compute_takes_over(model, setup),
    )


def arithmetic(found: Ledger) -> str:
    """The sum behind "fits" or "does not fit", as a sentence."""
    devices = f" on {found.setup.devices} devices" if found.setup.devices > 1 else ""
    words = (
        f"weights {gib(found.weights)} ({found.setup.weights}, {found.model.parameters / 1e9:.2f} B parameters) + "
        f"margin {gib(found.margin)} ({found.setup.margin_percent} % for activations and buffers) of "
        f"{gib(found.memory)}{devices} leave {gib(found.kv_room)} for the KV cache"
    )
    if not found.fits:
        return f"{words}: it does not fit"
    return f"{words}: {found.blocks} blocks of {found.setup.block_size} tokens at {kib(found.kv_per_token)} a token"


def gib(size: float) -> str:
    """Bytes for people."""
    return f"{size / GIB:.1f} GiB" if abs(size) >= GIB / 10 else f"{size / 2**20:.1f} MiB"


def kib(size: float) -> str:
    """Bytes of a token for people."""
    return f"{size / 1024:.1f} KiB" if size < 2**20 else f"{size / 2**20:.2f} MiB"
