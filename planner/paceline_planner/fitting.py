"""What to change so that a model fits: the nearest setups that do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from .accelerators import CATALOGUE, CPU, Accelerator
from .ledger import BYTES, Ledger, Setup, kv_bytes_per_token, ledger, weight_bytes
from .shapes import ModelShape

MIB = 2**20

MOST_DEVICES = 16

NARROWER = ("bf16", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A setup that fits, and what it changes in words."""

    words: str
    setup: Setup
    ledger: Ledger


def serves(found: Ledger, context: int) -> bool:
    """Whether at least one sequence of `context` tokens has room."""
    block = found.setup.block_size
    return found.fits and found.blocks * block >= context


def nearest(
    model: ModelShape, setup: Setup, context: int, *, more_devices: bool = True, narrower: Sequence[str] = NARROWER
) -> list[Suggestion]:
    """Setups that hold the weights and one sequence of `context` tokens, nearest first: one change each.

    More of the same device comes first (nothing about the answers changes), then the smallest other device that does
    (of a CPU, more memory), then a shorter context, then narrower weights (which change the answers).

    Args:
        more_devices: whether the model may be spread over several.
        narrower: types of weights that may be taken instead, the widest first.
    """
    return [found for found in _candidates(model, setup, context, more_devices, narrower) if found is not None]


def _candidates(
    model: ModelShape, setup: Setup, context: int, more_devices: bool, narrower: Sequence[str]
) -> Iterator[Suggestion | None]:
    if more_devices:
        yield _more_devices(model, setup, context)
    if setup.accelerator.name == CPU:
        yield _more_memory(model, setup, context)
    else:
        yield _other_device(model, setup, context, CATALOGUE.values())
    yield _shorter(model, setup, context)
    for kind in narrower:
        if BYTES[kind] < BYTES[setup.weights]:
            found = _try(model, replace(setup, weights=kind), context, f"weights as {kind}")
            if found is not None:
                yield found
                break


def _try(model: ModelShape, setup: Setup, context: int, words: str) -> Suggestion | None:
    found = ledger(model, setup)
    return Suggestion(words, setup, found) if serves(found, context) else None


def _more_devices(model: ModelShape, setup: Setup, context: int) -> Suggestion | None:
    devices = setup.devices * 2
    while devices <= MOST_DEVICES and model.num_heads % devices == 0:
        found = _try(
            model, replace(setup, devices=devices), context, f"{devices} x {setup.accelerator.name} (tensor parallel)"
        )
        if found is not None:
            return found
        devices *= 2
    return None


def _other_device(model: ModelShape, setup: Setup, context: int, catalogue: Iterable[Accelerator]) -> Suggestion | None:
    larger = sorted((a for a in catalogue if a.memory > setup.accelerator.memory), key=lambda a: (a.memory, a.name))
    for accelerator in larger:
        count = f"{setup.devices} x " if setup.devices > 1 else ""
        found = _try(model, replace(setup, accelerator=accelerator), context, f"{count}{accelerator.name}")
        if found is not None:
            return found
    return None


def _more_memory(model: ModelShape, setup: Setup, context: int) -> Suggestion | None:
    """A CPU has as much as its pod may use: the least limit with room for the weights, the margin and the sequence."""
    per_block = kv_bytes_per_token(model, setup.kv, setup.kv_scales, setup.devices) * setup.block_size
    taken = weight_bytes(model.parameters, setup.weights) + -(-context // setup.block_size) * per_block
    mebibytes = -(-taken * 100 // ((100 - setup.margin_percent) * MIB))
    if mebibytes * MIB <= setup.accelerator.memory:
        return None
    more = replace(setup, accelerator=replace(setup.accelerator, memory=mebibytes * MIB))
    return _try(model, more, context, f"limits.memory {mebibytes}Mi")


def _shorter(model: ModelShape, setup: Setup, context: int) -> Suggestion | None:
    found = ledger(model, setup)
    most = found.blocks * setup.block_size
    if not 0 < most < context:
        return None
    return Suggestion(f"maxModelLen {most} instead of {context}", setup, found)
