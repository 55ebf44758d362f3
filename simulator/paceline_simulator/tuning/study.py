"""The same load with knobs as started, at the least that they may be, and following it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from paceline_autoscaler.capacity import Objectives
from paceline_autoscaler.knobs import Range
from paceline_bench.results import Row
from paceline_crds.runtime_config import RuntimeParameters
from paceline_crds.tuning import FIELDS, Knob
from paceline_simulator.engine import Model, Request
from paceline_simulator.exact import EngineReplica, model_cost, scheduler_of
from paceline_simulator.scaling.fleet import kept

from .load import requests
from .tuner import EVERY, Tuner

MODEL = Model()
STARTED = RuntimeParameters(
    max_model_len=131_072,
    max_num_seqs=MODEL.max_seqs,
    max_batched_tokens=MODEL.step_tokens,
    prefill_chunk_tokens=MODEL.step_tokens,
    max_step_share_percent=100,
    block_size=128,
    max_queued_requests=100_000,
)
RANGES: Mapping[Knob, Range] = MappingProxyType(
    {
        Knob.PREFILL_CHUNK_TOKENS: Range(256, 2048, 2048),
        Knob.MAX_BATCHED_TOKENS: Range(512, 2048, 2048),
        Knob.MAX_NUM_SEQS: Range(16, 128, 128),
    }
)
SYSTEMS = ("as started", "at the least", "following")

METRICS = {
    "both_kept": "share",
    "tpot_kept": "share",
    "tpot_p90": "ms",
    "ttft_p50": "ms",
    "ttft_p90": "ms",
    "ttft_p99": "ms",
    "moves": "changes",
}
DRAIN = 3600.0
"""Seconds after the last arrival for which answers are waited for; who has none by then missed everything."""


@dataclass
class Found:
    """What a system gave: by metric one figure a seed; and the first seed's moves in words."""

    system: str
    figures: dict[str, list[float]] = field(default_factory=lambda: {metric: [] for metric in METRICS})
    moves: list[str] = field(default_factory=list)


def run(system: str, made: Sequence[Request], limit: float, first_limit: float | None = None) -> Tuner:
    """One run of a load; the requests are given their times."""
    started = STARTED
    if system == "at the least":
        least = {FIELDS[knob]: one.least for knob, one in RANGES.items()}
        started = STARTED.model_copy(update={**least, "max_num_seqs": STARTED.max_num_seqs})
    replica = EngineReplica(scheduler_of(started, MODEL.kv_tokens // started.block_size), model_cost(MODEL))
    tuner = Tuner(replica, started, RANGES if system == "following" else {}, limit, first_limit)
    look, first = EVERY, 0
    for number, request in enumerate(made):
        while look <= request.arrival:
            replica.advance(look)
            while first < number and 0 <= made[first].done < look - 10.0 * EVERY:
                first += 1
            tuner.look(number, made[first:number], look)
            look += EVERY
        replica.advance(request.arrival)
        replica.offer(request)
        replica.events.clear()
    while not replica.idle and replica.now < made[-1].arrival + DRAIN:
        replica.advance(replica.now + EVERY)
    return tuner


def study(load: str, seconds: float, seeds: Sequence[int], limit: float, first_limit: float) -> list[Found]:
    """All systems over seeds.

    Args:
        limit, first_limit: seconds per token, and to the first one, promised to nine of ten requests.
    """
    found = []
    for system in SYSTEMS:
        one = Found(system)
        for seed in seeds:
            made = requests(load, seconds, seed)
            tuner = run(system, made, limit, first_limit)
            for metric, value in figures(made, limit, first_limit, tuner).items():
                one.figures[metric].append(value)
            if not one.moves:
                one.moves = [f"{at:.0f} s: {decision.reason}, {decision.message}" for at, decision in tuner.moves]
        found.append(one)
    return found


def figures(made: Sequence[Request], limit: float, first_limit: float, tuner: Tuner) -> dict[str, float]:
    """Times in ms; of requests without a whole answer the time is that of the run's end."""
    end = tuner.replica.now
    ttft = sorted(1000.0 * ((one.first_token if one.first_token >= 0 else end) - one.arrival) for one in made)
    tpot = sorted(
        1000.0 * ((one.done if one.done >= 0 else end) - one.first_token) / (one.output_tokens - 1)
        for one in made
        if one.output_tokens > 1 and one.first_token >= 0
    )
    promised = Objectives(first_limit, limit)
    return {
        "both_kept": sum(kept(one, promised) for one in made) / len(made),
        "tpot_kept": sum(value <= 1000.0 * limit for value in tpot) / len(made),
        "tpot_p90": tpot[int(0.9 * len(tpot))],
        **{f"ttft_p{percent}": ttft[len(ttft) * percent // 100] for percent in (50, 90, 99)},
        "moves": float(len(tuner.moves)),
    }


def rows(load: str, found: Sequence[Found], seconds: float, limit: float, first_limit: float) -> list[Row]:
    """For the archive: means over seeds."""
    params = {
        "seconds": seconds,
        "tpot_limit_s": limit,
        "ttft_limit_s": first_limit,
        "seeds": len(found[0].figures["moves"]),
    }
    return [
        Row(load, one.system, metric, round(sum(values) / len(values), 4), METRICS[metric], params)
        for one in found
        for metric, values in one.figures.items()
    ]
