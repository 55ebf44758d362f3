"""Tokens computed twice under memory pressure: who is let in, who is preempted. The real scheduler, without a model.

Answers end where the trace says, which the scheduler does not know. Each system meets the same requests in the same
order, always with some waiting, in a cache that is too small for a full batch of them.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from paceline_runtime.engine.block_manager import BlockManager
from paceline_runtime.engine.limits import CUSHION_PERCENT, SchedulerLimits
from paceline_runtime.engine.scheduler import Scheduler
from paceline_runtime.engine.victim import Candidate, ChooseVictim, choose_victim
from paceline_runtime.messages import AddRequest, SamplingParams

from .results import Row, write

EOS = 0
BLOCK_SIZE = 16
QUEUE = 32
"""Requests kept waiting, so that there always is pressure."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of one request."""

    prompt: int
    answer: int


def last_admitted(candidates: Iterable[Candidate], need: int) -> Candidate | None:
    """LIFO: the youngest gives way, as engines commonly do it."""
    return max(candidates, key=lambda c: c.request.sequence, default=None)


def least_computed(candidates: Iterable[Candidate], need: int) -> Candidate | None:
    """The one with the least in the cache gives way."""
    return min(candidates, key=lambda c: (c.request.num_computed, -c.request.sequence), default=None)


VICTIMS: dict[str, ChooseVictim] = {
    "paceline": choose_victim,
    "paceline, no cushion": choose_victim,
    "lifo": last_admitted,
    "least-computed": least_computed,
}


def read_lengths(trace: Path, most_tokens: int) -> Iterator[Lengths]:
    """Lengths of a trace with the columns ContextTokens and GeneratedTokens (Azure's LLM inference traces)."""
    with trace.open(newline="") as file:
        for line in csv.DictReader(file):
            prompt, answer = int(line["ContextTokens"]), int(line["GeneratedTokens"])
            if prompt >= 1 and answer >= 1 and prompt + answer <= most_tokens:
                yield Lengths(prompt, answer)


def draw_lengths(most_tokens: int) -> Iterator[Lengths]:
    """Lengths like those of Azure's 2023 conversation trace (median 1020 and 129 tokens, mean 1155 and 211)."""
    rng = random.Random(0)
    while True:
        prompt, answer = round(rng.lognormvariate(6.93, 0.5)), round(rng.lognormvariate(4.86, 1.0))
        if prompt >= 1 and answer >= 1 and prompt + answer <= most_tokens:
            yield Lengths(prompt, answer)


@dataclass
class Outcome:
    """What a run came to."""

    steps: int
    computed: int
    recomputed: int
    preemptions: int
    most_preemptions: int

    @property
    def waste(self) -> float:
        """Share of all computed tokens that had been computed before, in percent."""
        return 100 * self.recomputed / self.computed


def simulate(
    lengths: list[Lengths],
    victim: ChooseVictim,
    *,
    num_blocks: int,
    max_num_seqs: int,
    prefix_caching: bool = False,
    cushion: bool = False,
) -> Outcome:
    """Run requests of these lengths to their end.

    Args:
        cushion: whether admission leaves room for growth after preemptions, as our engine does.
    """
    most = max(item.prompt + item.answer for item in lengths)
    limits = SchedulerLimits(
        max_model_len=most + 1,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=2048,
        prefill_chunk_tokens=512,
        max_waiting=QUEUE,
        reserve_blocks=num_blocks // 100,
        prefill_min_chunk_tokens=32,
        max_step_share_percent=50,
        cushion_percent=CUSHION_PERCENT if cushion else 0,
    )
    blocks = BlockManager(num_blocks, BLOCK_SIZE, prefix_caching=prefix_caching, watermark_percent=75)
    scheduler = Scheduler(limits, blocks, frozenset({EOS}), victim=victim)
    rng = random.Random(1)
    answers: dict[str, int] = {}
    preempted: dict[str, int] = {}
    steps = computed = 0
    pending = enumerate(lengths)
    while True:
        while scheduler.num_waiting < QUEUE and (item := next(pending, None)) is not None:
            name = str(item[0])
            answers[name] = item[1].answer
            prompt = [rng.randrange(1, 50_000) for _ in range(item[1].prompt)]
            scheduler.add(
                AddRequest(
                    request_id=name, prompt_token_ids=prompt, sampling=SamplingParams(), arrival_time=float(steps)
                ),
                seed=0,
            )
        batch = scheduler.schedule(float(steps))
        if batch is None:
            return Outcome(
                steps,
                computed,
                scheduler.totals.recomputed_tokens,
                scheduler.totals.preemptions,
                max(preempted.values(), default=0),
            )
        steps += 1
        computed += batch.num_tokens
        sampled: dict[str, int | None] = {
            request.request_id: EOS if request.num_output + 1 >= answers[request.request_id] else 1
            for seq in batch.seqs
            for request in seq.choices
        }
        for request, _, _ in scheduler.update(batch, sampled):
            preempted[request.request_id] = request.num_preemptions
        scheduler.take_events()


def preemption(
    trace: Annotated[
        Path | None,
        typer.Option(help="CSV with ContextTokens and GeneratedTokens. [default: drawn like Azure's 2023 trace]"),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests to run.")] = 1000,
    cache_tokens: Annotated[int, typer.Option(min=4096, help="Tokens that the KV cache holds.")] = 49_152,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests in a batch.")] = 64,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json.")] = None,
) -> None:
    """Tokens computed again because of preemption: our choice of victim beside others', on the same requests.

    Examples:

        paceline bench preemption

        paceline bench preemption --trace AzureLLMInferenceTrace_conv.csv --requests 4000 --out results/preemption
    """
    most = cache_tokens // 4
    source = draw_lengths(most) if trace is None else read_lengths(trace, most)
    lengths = [item for item, _ in zip(source, range(requests), strict=False)]
    params: dict[str, int | str | bool] = {
        "requests": len(lengths),
        "cache_tokens": cache_tokens,
        "max_num_seqs": max_num_seqs,
        "trace": trace.name if trace else "drawn",
    }
    rows: list[Row] = []
    table = Table("prefix cache", "system", "preemptions", "most of one", "recomputed", "of all computed", "steps")
    for prefix_caching in (False, True):
        for system, victim in VICTIMS.items():
            outcome = simulate(
                lengths,
                victim,
                num_blocks=cache_tokens // BLOCK_SIZE,
                max_num_seqs=max_num_seqs,
                prefix_caching=prefix_caching,
                cushion=system == "paceline",
            )
            rows += _rows(system, outcome, {**params, "prefix_caching": prefix_caching})
            table.add_row(
                "on" if prefix_caching else "off",
                system,
                str(outcome.preemptions),
                str(outcome.most_preemptions),
                str(outcome.recomputed),
                f"{outcome.waste:.2f} %",
                str(outcome.steps),
            )
    Console().print(table)
    if out is not None:
        typer.echo(write(out, rows))


def _rows(system: str, outcome: Outcome, params: dict[str, int | str | bool]) -> list[Row]:
    return [
        Row("preemption", system, "recomputed_tokens", outcome.recomputed, "tokens", params),
        Row("preemption", system, "recomputed_share", outcome.waste, "percent", params),
        Row("preemption", system, "preemptions", outcome.preemptions, "count", params),
        Row("preemption", system, "steps", outcome.steps, "count", params),
    ]
