"""What a trace is run on: a model, objectives that it can keep, and as many copies of the trace as need a fleet."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from paceline_autoscaler.capacity import Objectives, Rates
from paceline_simulator.engine import Model

from .arrivals import Trace
from .fleet import Conditions
from .paceline import rates_of

STEP_TOKENS = 512
"""Tokens of a step: the runtime's default chunk of a prompt."""

SMALL = replace(Model(), step_tokens=STEP_TOKENS)
LARGE = SMALL.times(2.75, 410_000)

MODELS = {"8b": (SMALL, 1), "32b": (LARGE, 2)}
"""Model and GPUs of a replica. 8b: Llama 3.1 8B on one RTX PRO 6000, from its profile. 32b: Qwen3 32B on two of
them; the factor is fitted to LLMServingSim's run of vLLM 0.19 on those (TPOT p50 84.2 ms)."""

PEAK_REPLICAS = 8.0
"""Replicas that the busiest half minutes should ask for."""

PROMISED = 0.9
"""Share of requests for which a spec promises its `p90`: what the operator holds attainment against."""

MOST_REQUESTS = 40_000
PEAK_SECONDS = 30.0


@dataclass(frozen=True)
class Setup:
    """What every policy is run on.

    Attributes:
        gpus: of one replica.
        copies: how often each request of the trace arrives.
        shift: seconds by which each is later at random; by seed.
        first: replicas at the start.
    """

    trace: Trace
    name: str
    model: Model
    gpus: int
    rates: Rates
    objectives: Objectives
    conditions: Conditions
    copies: int
    first: int
    shift: float = 3.0


def work_peaks(trace: Trace, rates: Rates) -> list[float]:
    """Replicas that each half minute of a trace asks for, ascending."""
    seconds: dict[int, float] = {}
    for one in trace.arrivals:
        number = int(one.at // PEAK_SECONDS)
        seconds[number] = seconds.get(number, 0.0) + one.prompt / rates.prefill + one.output / rates.decode
    count = int(trace.length // PEAK_SECONDS) + 1
    return sorted(seconds.get(number, 0.0) / PEAK_SECONDS for number in range(count))


def set_up(
    trace: Trace,
    conditions: Conditions,
    model: str | None = None,
    copies: int | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
) -> Setup:
    """Choose what is not given.

    The small model where the trace keeps enough of its replicas busy, or is too long for the large one; TTFT of at
    least a second and three times what the 99th percentile of prompts takes alone; TPOT of one and a half full steps.
    """
    longest = max(one.prompt + one.output for one in trace.arrivals)
    if model is None:
        small = work_peaks(trace, rates_of(SMALL, trace.arrivals))
        model = "8b" if _p99(small) > PEAK_REPLICAS / 2 or longest > LARGE.kv_tokens else "32b"
    costs, gpus = MODELS[model]
    rates = rates_of(costs, trace.arrivals)
    peaks = work_peaks(trace, rates)
    if copies is None:
        copies = max(1, min(round(PEAK_REPLICAS / _p99(peaks)), MOST_REQUESTS // len(trace.arrivals)))
    prompts = sorted(one.prompt for one in trace.arrivals)
    slow = prompts[math.ceil(0.99 * len(prompts)) - 1]
    alone = slow * (rates.full_step / costs.step_tokens)
    mean = sum(peaks) / len(peaks) * copies
    most = max(8, math.ceil(2.5 * _p99(peaks) * copies))
    return Setup(
        trace,
        model,
        costs,
        gpus,
        rates,
        Objectives(
            ttft if ttft is not None else max(1.0, math.ceil(3.0 * alone)),
            tpot if tpot is not None else math.ceil(rates.full_step * 150.0) / 100.0,
            promised=PROMISED,
        ),
        replace(conditions, most=most),
        copies,
        min(most, math.ceil(mean) + 1),
    )


def _p99(ascending: list[float]) -> float:
    return max(ascending[math.ceil(0.99 * len(ascending)) - 1], 1e-9)
