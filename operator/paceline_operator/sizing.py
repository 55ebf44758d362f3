"""Sizes that a spec leaves out: cache, longest request and batch, by the ledger. Pure.

What was counted once stays. A revision carries its sizes along for as long as what they were counted from is the same;
so a release that counts otherwise, or knows more models, restarts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from paceline_crds.quantities import parse_quantity, parse_size
from paceline_crds.revision import RevisionPool
from paceline_crds.runtime_config import KVQuantization, Origin, RuntimeParameters, WeightType
from paceline_planner.accelerators import Accelerator, cpu
from paceline_planner.defaults import Asked, require_length, resolve
from paceline_planner.labels import LABELS, UnknownAccelerator, accelerator_of
from paceline_planner.ledger import Setup
from paceline_planner.models import known
from paceline_planner.shapes import ModelShape, shape_of

from .defaults import Defaults

SIZES = ("max_model_len", "max_num_seqs", "kv_cache_memory")
"""What the ledger resolves."""

MATTERS = (*SIZES, "block_size", "max_batched_tokens", "dtype", "kv_cache_quantization")
"""Parameters that it counts with, where they are given."""


class Value(NamedTuple):
    """A parameter with where it came from."""

    value: Any
    origin: Origin


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the ledger says.

    Attributes:
        values: by parameter; empty where it could not be counted.
        words: the sum, or why there is none.
    """

    values: Mapping[str, Value] = field(default_factory=dict)
    words: str | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that the sizes of a pool are counted from.

    Attributes:
        source: of the model, as the runtime is told it.
        given: parameters that spec or pool give, of those that matter.
        limits: of the runtime's container, memory and devices.
        node_selector: labels that tell accelerators apart.
    """

    source: str
    given: Mapping[str, Any]
    limits: Mapping[str, str]
    node_selector: Mapping[str, str]


def inputs(source: str, given: Mapping[str, Any], template: Mapping[str, Any]) -> Inputs:
    """From what is about to be rendered.

    Args:
        given: parameters of spec and pool.
        template: the pod template.
    """
    spec = template["spec"]
    resources = spec["containers"][0].get("resources") or {}
    counted = {name: _by_value(name, given[name]) for name in MATTERS if name in given}
    limits = {
        name: str(parse_quantity(str(amount)).normalize())
        for name, amount in (resources.get("limits") or {}).items()
        if name == "memory" or "/" in name
    }
    selector = {label: value for label, value in (spec.get("nodeSelector") or {}).items() if label in LABELS}
    return Inputs(source, counted, limits, selector)


def inputs_of(pool: RevisionPool) -> Inputs:
    """From a pool as it is kept in a revision."""
    origins, parameters = pool.config.origins, pool.config.parameters
    given = {name: getattr(parameters, name) for name in MATTERS if origins[_alias(name)] in (Origin.SPEC, Origin.POOL)}
    return inputs(pool.config.model.source, given, pool.pod_template)


def sizes(
    asked: Inputs, accelerator: str | None, defaults: Defaults, pool: str, kept: Iterable[RevisionPool] = ()
) -> Sizes:
    """What the ledger says to a pool; what it said before, where the question is the same.

    Args:
        accelerator: the extended resource; None: a CPU.
        kept: pools of kept revisions that were counted, the newest first.

    Raises:
        DoesNotFit: the model, or what is asked for, does not fit.
    """
    for before in sorted(kept, key=lambda before: before.name != pool):
        if inputs_of(before) == asked:
            return _again(before)
    model = known(asked.source)
    if model is None:
        return Sizes(words=f"not counted: the config of {asked.source} is not known here")
    return _count(shape_of(model.config), asked, accelerator, defaults)


def _again(before: RevisionPool) -> Sizes:
    origins, parameters = before.config.origins, before.config.parameters
    counted = {name for name in SIZES if origins[_alias(name)] is Origin.LEDGER}
    return Sizes({name: Value(getattr(parameters, name), Origin.LEDGER) for name in counted}, before.ledger)


def _count(model: ModelShape, asked: Inputs, accelerator: str | None, defaults: Defaults) -> Sizes:
    given = asked.given
    wide = accelerator is None
    weights = {WeightType.FLOAT32: "fp32", WeightType.BFLOAT16: "bf16"}.get(given.get("dtype", WeightType.AUTO))
    quantised = {KVQuantization.FP8: "fp8", KVQuantization.INT8: "int8"}.get(
        given.get("kv_cache_quantization", KVQuantization.NONE)
    )
    kinds = {
        "weights": weights or ("fp32" if wide else "bf16"),
        "kv": quantised or ("fp32" if wide else "bf16"),
        "kv_scales": "token",
        "block_size": given.get("block_size", defaults.block_size),
    }
    cache = given.get("kv_cache_memory")
    try:
        device = _device(asked, accelerator)
    except UnknownAccelerator as exc:
        if "max_model_len" in given:
            taken = parse_size(defaults.kv_cache_memory) if cache is None else cache
            require_length(model, Setup(cpu(0), **kinds), taken, given["max_model_len"])
        return Sizes(words=f"not counted: {exc}")
    question = Asked(
        max_model_len=given.get("max_model_len"),
        max_num_seqs=given.get("max_num_seqs"),
        kv_cache_bytes=cache,
        usual_model_len=defaults.max_model_len,
        usual_num_seqs=min(defaults.max_num_seqs, given.get("max_batched_tokens", defaults.max_num_seqs)),
        most_num_seqs=given.get("max_batched_tokens", defaults.max_batched_tokens),
    )
    found = resolve(model, Setup(device, **kinds), question, mapped_weights=wide)
    counted = {
        "max_model_len": found.max_model_len,
        "max_num_seqs": found.max_num_seqs,
        "kv_cache_memory": f"{found.kv_cache_bytes // 2**20}Mi",
    }
    values = {name: Value(value, Origin.LEDGER) for name, value in counted.items() if name not in given}
    return Sizes(values, f"on {device.name}, {found.words}")


def _device(asked: Inputs, accelerator: str | None) -> Accelerator:
    if accelerator is not None:
        return accelerator_of(accelerator, asked.node_selector)
    limit = asked.limits.get("memory")
    if limit is None:
        raise UnknownAccelerator("the pod has no limit of memory (spec.pod.resources.limits.memory)")
    return cpu(int(Decimal(limit)))


def _by_value(name: str, value: Any) -> Any:
    return parse_size(str(value)) if name == "kv_cache_memory" else value


def _alias(name: str) -> str:
    return RuntimeParameters.model_fields[name].alias or name
