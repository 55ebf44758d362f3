"""Engines without a server: a batch of prompts in, tokens out, each system in a process of its own, in turns."""

from __future__ import annotations

import contextlib
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .comparison import OURS, Case, Sample
from .machine import Weather, best, load_average
from .models import config_of, gguf_file, model_folder
from .roofline import Shape, tokens_per_second
from .systems import System
from .worker import Worker, WorkerError

LOAD_SECONDS = 900.0
"""vLLM compiles for minutes the first time."""
JOB_SECONDS = 600.0
TURN_SECONDS = 0.4
"""Small jobs are repeated until a turn takes about this long, so that a turn is not all noise."""
SETTLE_SECONDS = 0.02
TOKEN_RANGE = (100, 30_000)

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """On which terms systems are compared: the same for all of them."""

    prompt_tokens: int
    new_tokens: int
    rounds: int
    threads: int

    def environment(self) -> dict[str, str]:
        """Variables of every worker and server: the same threads, and no hub to look anything up in."""
        return {"OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, kw_only=True)
class Setup(Terms):
    """Whole batches, in process."""

    batches: tuple[int, ...]


@dataclass
class Outcome:
    """What came of one work in one dtype.

    Attributes:
        cases: one per batch size.
        weather: of the machine, between rounds.
        versions: system to its distributions' versions.
        failures: system to why it was not measured.
    """

    cases: list[Case] = field(default_factory=list)
    weather: list[Weather] = field(default_factory=list)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def run(
    work: str, dtype: str, systems: Sequence[tuple[System, str]], setup: Setup, cache: Path, logs: Path, say: Say
) -> Outcome:
    """Measure systems in turns.

    A system that fails is left out from then on, and why is in the outcome.

    Args:
        work: name of a model.
        dtype: `float32` or `bfloat16`.
        systems: each with the Python in which it is installed.
        setup: the work's size.
        cache: folder of built models.
        logs: folder for what workers print.
        say: told of progress.
    """
    outcome = Outcome()
    folder = model_folder(work, cache, say)
    with contextlib.ExitStack() as stack:
        probe = _start(stack, "probe", sys.executable, "probe", setup.environment(), logs / f"probe-{work}-{dtype}.log")
        probe.ask("load", LOAD_SECONDS, dtype=dtype)
        workers: dict[str, Worker] = {}
        for system, python in systems:
            say(f"{work} {dtype}: loading {system.name}")
            log = logs / f"{system.name}-{work}-{dtype}.log"
            worker = _start(
                stack, system.name, python, system.backend, {**setup.environment(), **system.environment}, log
            )
            try:
                loaded = worker.ask(
                    "load",
                    LOAD_SECONDS,
                    model=str(gguf_file(folder, dtype, say) if system.gguf else folder),
                    dtype=dtype,
                    max_batch=max(setup.batches),
                    max_len=setup.prompt_tokens + setup.new_tokens,
                    **system.options,
                )
            except WorkerError as error:
                _drop(system.name, worker, error, outcome, say)
                continue
            worker.pause()
            workers[system.name] = worker
            outcome.versions[system.name] = loaded.value
        for batch in setup.batches:
            _measure(Case(work, _params(batch, dtype, setup)), workers, probe, setup, outcome, say)
    _add_ceilings(outcome, config_of(folder), setup)
    return outcome


def _start(
    stack: contextlib.ExitStack, name: str, python: str, backend: str, environment: dict[str, str], log: Path
) -> Worker:
    return stack.enter_context(Worker(name, python, backend, environment, log))


def _drop(name: str, worker: Worker, error: WorkerError, outcome: Outcome, say: Say) -> None:
    worker.close()
    outcome.failures[name] = str(error)
    say(f"left out: {error}")


def _params(batch: int, dtype: str, setup: Setup) -> dict[str, Any]:
    return {
        "batch": batch,
        "dtype": dtype,
        "prompt_tokens": setup.prompt_tokens,
        "new_tokens": setup.new_tokens,
        "threads": setup.threads,
    }


def _measure(case: Case, workers: dict[str, Worker], probe: Worker, setup: Setup, outcome: Outcome, say: Say) -> None:
    batch = case.params["batch"]
    rng = random.Random(f"{case.work} {batch}")
    warm: dict[str, float] = {}
    for _ in range(2):
        prompts = [_prompts(rng, batch, setup)]
        for name, turn in _in_turn(list(workers), workers, prompts, setup, outcome, say):
            warm[name] = turn.seconds
    if not workers:
        return
    pace = warm.get(OURS, min(warm.values()))
    repeats = min(16, max(1, math.ceil(TURN_SECONDS / pace)))
    names = list(workers)
    for number in range(setup.rounds):
        jobs = [_prompts(rng, batch, setup) for _ in range(repeats)]
        rates = probe.ask("rates", JOB_SECONDS).value
        outcome.weather.append(Weather(case.work, case.params["dtype"], **rates, load1=load_average()))
        # Who goes first changes, so that nobody always follows the same one.
        first = number % len(names)
        for name, turn in _in_turn(names[first:] + names[:first], workers, jobs, setup, outcome, say):
            made = batch * setup.new_tokens * repeats
            values = {"tokens_per_s": made / turn.seconds, "cpu_ms_per_token": 1000 * turn.cpu_seconds / made}
            case.add(name, Sample(values, turn.tokens))
        say(f"{case.work} {case.params['dtype']} batch {batch}: round {number + 1} of {setup.rounds}")
    if case.samples:
        outcome.cases.append(case)


@dataclass
class _Turn:
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    tokens: list[list[int]] = field(default_factory=list)


def _in_turn(
    order: Sequence[str],
    workers: dict[str, Worker],
    jobs: Sequence[list[list[int]]],
    setup: Setup,
    outcome: Outcome,
    say: Say,
) -> list[tuple[str, _Turn]]:
    """Each system does all jobs while the others are held still."""
    turns = []
    for name in order:
        if name not in workers:
            continue
        worker, turn = workers[name], _Turn()
        worker.resume()
        time.sleep(SETTLE_SECONDS)
        try:
            for prompts in jobs:
                reply = worker.ask("generate", JOB_SECONDS, prompts=prompts, new_tokens=setup.new_tokens)
                if [len(tokens) for tokens in reply.value] != [setup.new_tokens] * len(prompts):
                    raise WorkerError(f"{name}: it did not make {setup.new_tokens} tokens of each prompt")
                turn.seconds += reply.seconds
                turn.cpu_seconds += reply.cpu_seconds
                turn.tokens += reply.value
        except WorkerError as error:
            _drop(name, workers.pop(name), error, outcome, say)
            continue
        worker.pause()
        turns.append((name, turn))
    return turns


def _prompts(rng: random.Random, batch: int, setup: Setup) -> list[list[int]]:
    return [[rng.randrange(*TOKEN_RANGE) for _ in range(setup.prompt_tokens)] for _ in range(batch)]


def _add_ceilings(outcome: Outcome, config: dict[str, Any], setup: Setup) -> None:
    """To each sample its share of what the machine allows, by the best of all readings."""
    if not outcome.weather:
        return
    memory, gemm = best(outcome.weather)
    for case in outcome.cases:
        ceiling = tokens_per_second(
            Shape.of(config),
            case.params["dtype"],
            batch=case.params["batch"],
            prompt_tokens=setup.prompt_tokens,
            new_tokens=setup.new_tokens,
            memory_gb_s=memory,
            gemm_gflop_s=gemm,
        )
        for samples in case.samples.values():
            for sample in samples:
                sample.values["roofline_percent"] = 100 * sample.values["tokens_per_s"] / ceiling
