"""`paceline bench scheduling`: what one step costs the scheduler alone, without a model."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from paceline_crds.runtime_config import Isolation, PressurePolicy, QueuePolicy
from paceline_runtime.engine.block_manager import BlockManager
from paceline_runtime.engine.limits import SchedulerLimits, SchedulingRules
from paceline_runtime.engine.scheduler import Scheduler
from paceline_runtime.messages import AddRequest, SamplingParams

from .output import Output
from .results import Row, document, write_document
from .tables import show

LIMIT_MS = 1.0
BLOCK = 16
TENANTS = 50
WARM_UP = 10
WORK = "scheduling"

RULES = {
    "FCFS": SchedulingRules(),
    "Priority, fair share": SchedulingRules(policy=QueuePolicy.PRIORITY, fair_share=True),
    "Deadline, fair share": SchedulingRules(policy=QueuePolicy.DEADLINE, fair_share=True),
    "Priority, shortest remaining": SchedulingRules(
        policy=QueuePolicy.PRIORITY, under_pressure=PressurePolicy.SHORTEST_REMAINING
    ),
    "FCFS, isolation": SchedulingRules(isolation=Isolation.PER_TENANT),
}


@dataclass(frozen=True)
class Load:
    """What the scheduler is driven with.

    Attributes:
        prompt: tokens of each prompt.
        shared: of these, those that all prompts begin with, as with a system prompt.
        answer: the fewest and the most tokens of an answer.
        cache: tokens that the cache has for each running request.
    """

    prompt: int
    shared: int
    answer: tuple[int, int]
    cache: int


def loads(steps: int) -> dict[str, Load]:
    """By name; answers of `decode` outlast all steps."""
    long = steps + 2 * WARM_UP
    return {
        "decode": Load(prompt=64, shared=32, answer=(long, long), cache=2 * (64 + long)),
        "turnover": Load(prompt=64, shared=32, answer=(2, 64), cache=256),
        # Somewhat less than requests come to, so that blocks run out and some are preempted.
        "pressure": Load(prompt=200, shared=0, answer=(50, 400), cache=416),
    }


@dataclass
class Steps:
    """CPU milliseconds of each step by phase."""

    schedule: list[float] = field(default_factory=list)
    update: list[float] = field(default_factory=list)

    @property
    def whole(self) -> list[float]:
        """Both together."""
        return [a + b for a, b in zip(self.schedule, self.update, strict=True)]


def scheduling(
    running: Annotated[int, typer.Option(min=1, help="Requests in the batch.")] = 128,
    waiting: Annotated[int, typer.Option(min=0, help="Requests in the queue.")] = 1000,
    steps: Annotated[int, typer.Option(min=10, help="Timed steps.")] = 400,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json.")] = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="text, or json for programs.")] = Output.TEXT,
) -> None:
    """Time the real scheduler's `schedule` and `update` with a full batch and a long queue, by policy.

    `decode`: the batch stays as it is. `turnover`: answers are short, so that in most steps some end and others are
    admitted, with their prompts looked up in the prefix cache. `pressure`: the cache is too small for what runs, so
    that requests are preempted. Times are the thread's CPU time: who else is on the
    machine is not in them.

    Exit codes: 0 the median step is under 1 ms everywhere; 1 it is not; 2 wrong use.

    Examples:

        paceline bench scheduling

        paceline bench scheduling --running 256 --waiting 5000 --out results/scheduling
    """
    rows: list[Row] = []
    table = Table(
        "load",
        "rules",
        "schedule p50",
        "update p50",
        "step p50",
        "step p99",
        title=f"ms, {running} running, {waiting} waiting",
    )
    slow = False
    for name, rules in RULES.items():
        for label, load in loads(steps).items():
            timed = run(rules, load, running=running, waiting=waiting, steps=steps)
            params = {"load": label, "rules": name, "running": running, "waiting": waiting, "steps": steps}
            figures = {
                "schedule_ms_p50": statistics.median(timed.schedule),
                "update_ms_p50": statistics.median(timed.update),
                "step_ms_p50": statistics.median(timed.whole),
                "step_ms_p99": percentile(timed.whole, 99),
            }
            rows += [Row(WORK, "paceline", metric, value, "ms", params) for metric, value in figures.items()]
            table.add_row(label, name, *(f"{value:.3f}" for value in figures.values()))
            slow |= figures["step_ms_p50"] > LIMIT_MS
    made = document(rows, {})
    if output is Output.JSON:
        typer.echo(json.dumps(made, indent=2))
    else:
        show(table)
    if out is not None:
        typer.echo(write_document(out, made), err=output is Output.JSON)
    raise typer.Exit(1 if slow else 0)


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent of all do not pass."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def run(rules: SchedulingRules, load: Load, *, running: int, waiting: int, steps: int) -> Steps:
    """Step a scheduler whose model makes random tokens; the queue is filled up again before each step.

    Steps count once the batch is nearly full (under pressure it is never quite).

    Args:
        rules: of the queue.
        load: what the requests are like.
        running: answers in a full batch.
        waiting: requests in the queue throughout.
        steps: timed ones.
    """
    rng = random.Random(0)
    num_blocks = running * (-(-load.cache // BLOCK))
    blocks = BlockManager(num_blocks, BLOCK, prefix_caching=True, watermark_percent=75)
    limits = SchedulerLimits(
        max_model_len=max(2048, load.prompt + load.answer[1]),
        max_num_seqs=running,
        max_batched_tokens=max(2048, 2 * running),
        prefill_chunk_tokens=512,
        max_waiting=2 * (waiting + running),
        reserve_blocks=num_blocks // 100,
        prefill_min_chunk_tokens=32,
        max_step_share_percent=50,
    )
    scheduler = Scheduler(limits, blocks, frozenset(), rules)
    timed = Steps()
    arrived, full, now = 0, 0, 0.0
    while len(timed.schedule) < steps:
        while scheduler.num_waiting < waiting or not arrived:
            arrived += 1
            scheduler.add(_request(arrived, load, rng, now), seed=arrived, now=now)
        now += 0.02
        seqs, *taken = _step(scheduler, rng, now)
        if seqs * 10 >= running * 9:
            full += 1
            if full > WARM_UP:
                timed.schedule.append(taken[0])
                timed.update.append(taken[1])
    scheduler.check_integrity()
    return timed


def _request(number: int, load: Load, rng: random.Random, now: float) -> AddRequest:
    own = [rng.randrange(50_000) for _ in range(load.prompt - load.shared)]
    return AddRequest(
        request_id=str(number),
        prompt_token_ids=[7] * load.shared + own,
        sampling=SamplingParams(max_tokens=rng.randint(*load.answer), ignore_eos=True),
        arrival_time=now,
        tenant=str(rng.randrange(TENANTS)),
        priority=rng.randrange(3) - 1,
        deadline=now + 1e6 + rng.random(),
    )


def _step(scheduler: Scheduler, rng: random.Random, now: float) -> tuple[int, float, float]:
    """Sequences of a step, and CPU milliseconds of `schedule` and of all that the engine calls after the forward."""
    started = time.thread_time()
    batch = scheduler.schedule(now)
    scheduled = time.thread_time()
    if batch is None:
        raise RuntimeError("the scheduler had nothing to do")
    sampled = {choice.request_id: rng.randrange(1000) for seq in batch.seqs for choice in seq.choices}
    sampled_at = time.thread_time()
    scheduler.update(batch, sampled, now)
    scheduler.observe(0.02, batch)
    scheduler.take_ended()
    scheduler.take_events()
    return len(batch.seqs), 1000 * (scheduled - started), 1000 * (time.thread_time() - sampled_at)
