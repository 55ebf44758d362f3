"""Requests to a replica of this machine at given times, and what it said of its steps meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from paceline_autoscaler.rates import Learnt, Work, learn
from paceline_bench.http_client import DONE, BrokenAnswer, call, get
from paceline_crds import metrics
from paceline_simulator.engine import Request

LOOK_SECONDS = 0.5
FEWEST_ID, MOST_ID = 1000, 40_000
"""Token ids of prompts: ordinary ones of every vocabulary that is served here."""


class ReplicaError(Exception):
    """The replica cannot be used; the message says why."""


@dataclass
class Outcome:
    """What a run gave.

    Attributes:
        requests: with the times that a client saw, from the run's beginning.
        failed: what became of requests without a whole answer, in words.
        learnt: of the steps' time.
    """

    requests: list[Request] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    learnt: Learnt = field(default_factory=Learnt)


def poisson(
    rate: float, seconds: float, prompt: tuple[int, int], output: tuple[int, int], seed: int, first: int = 0
) -> list[Request]:
    """Requests at random times, with lengths drawn evenly between two each.

    Args:
        rate: per second.
        first: number of the first one; numbers make prompts different.
    """
    chance = random.Random(seed)
    made: list[Request] = []
    at = 0.0
    while (at := at + chance.expovariate(rate)) < seconds:
        made.append(Request(first + len(made), at, chance.randint(*prompt), chance.randint(*output), (), bytes))
    return made


async def run(port: int, model: str, requests: Sequence[Request]) -> Outcome:
    """Send each request at its time, whatever became of those before, and wait for all answers.

    Raises:
        ReplicaError: the replica does not say what its steps took.
    """
    outcome = Outcome()
    start = time.perf_counter()
    looks = asyncio.create_task(_look(port, outcome))
    try:
        await asyncio.gather(*(_send(port, model, one, start, outcome) for one in requests))
    finally:
        looks.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looks
    return outcome


async def _send(port: int, model: str, request: Request, start: float, outcome: Outcome) -> None:
    chance = random.Random(request.number)
    body = {
        "model": model,
        "prompt": [chance.randint(FEWEST_ID, MOST_ID) for _ in range(request.prompt_tokens)],
        "max_tokens": request.output_tokens,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
    }
    await asyncio.sleep(max(0.0, start + request.arrival - time.perf_counter()))
    request.arrival = time.perf_counter() - start  # as it really was sent
    last, finished = 0.0, False
    try:
        async with call(port, "POST", "/v1/completions", body) as response:
            if response.status != 200:
                outcome.failed.append(f"request {request.number}: {(await response.body()).decode()[:200]}")
                return
            async for at, data in response.events():
                if data == DONE:
                    break
                choice = json.loads(data)["choices"][0]
                if request.first_token < 0:
                    request.first_token = at - start
                last, finished = at - start, finished or choice.get("finish_reason") is not None
    except (OSError, BrokenAnswer, ValueError, LookupError) as error:
        outcome.failed.append(f"request {request.number}: {type(error).__name__}: {error}")
        return
    if not finished:
        outcome.failed.append(f"request {request.number}: the stream has no end")
        return
    request.done = last
    outcome.requests.append(request)


async def _look(port: int, outcome: Outcome) -> None:
    before: tuple[float, ...] | None = None
    while True:
        now = _counters((await get(port, "/metrics"))[1].decode())
        if before is not None:
            outcome.learnt = learn(outcome.learnt, Work(*(b - a for a, b in zip(before, now, strict=True))))
        before = now
        await asyncio.sleep(LOOK_SECONDS)


def _counters(page: str) -> tuple[float, ...]:
    names = (
        metrics.RUNTIME_STEP_PHASE.name,
        metrics.RUNTIME_ENGINE_STEPS.name,
        metrics.RUNTIME_PREFILL_TOKENS_COMPUTED.name,
        metrics.RUNTIME_GENERATION_TOKENS.name,
    )
    found = []
    for name in names:
        values = list(_values(page.splitlines(), name))
        if not values:
            raise ReplicaError(f"it has no {name}: is it a replica of Paceline?")
        found.append(sum(values))
    return tuple(found)


def _values(lines: Iterable[str], name: str) -> Iterable[float]:
    return (float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))
