"""Routers in turns: every round runs each of them under each load, in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline_bench.comparison import OURS, Case, Sample
from paceline_bench.results import Row

from . import goals, timed
from .goals import ADDED, CHUNK, CPU, RATE
from .native import Programs
from .systems import SYSTEMS, Running
from .works import CHUNKS, Work, write_requests

Say = Callable[[str], None]
HALF = 0.5
OPEN_CONNECTIONS = 256
UNITS = {
    CPU: "us",
    CHUNK: "us",
    RATE: "1/s",
    "chunks_per_s": "1/s",
    "latency_ms_p50": "ms",
    "latency_ms_p99": "ms",
    "ttft_ms_p99": "ms",
    ADDED: "ms",
}


@dataclass(frozen=True)
class Terms:
    """How long and how often.

    Attributes:
        seconds: of each timed part.
        warm: seconds of load before it.
        rounds: turns of each system under each load.
        identical: every prompt is the same text.
        half_load: also time the first byte at half load.
    """

    seconds: float
    warm: float
    rounds: int
    identical: bool
    half_load: bool


@dataclass
class Figures:
    """All samples, by load; and what was not answered, by system."""

    cases: dict[Work, Case] = field(default_factory=dict)
    half: dict[Work, Case] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    unanswered: dict[str, dict[str, int]] = field(default_factory=dict)
    trouble: dict[str, str] = field(default_factory=dict)

    def count(self, key: str, counted: timed.Counted) -> None:
        """Enter what became of every request of a run."""
        self.sent[key] = self.sent.get(key, 0) + counted.sent
        bad = self.unanswered.setdefault(key, {})
        for name, number in counted.outcomes.items():
            if name != "answered" and number:
                bad[name] = bad.get(name, 0) + number
                self.trouble.setdefault(key, counted.first_trouble)


def measure(
    routers: Sequence[Running],
    works: Sequence[Work],
    terms: Terms,
    programs: Programs,
    backends: Sequence[int],
    folder: Path,
    say: Say,
) -> Figures:
    """Run them all in turns. Arguments as of `timed.run`; `backends` are the replicas, to ask them without a router."""
    figures = Figures()
    for number in range(terms.rounds):
        for work in works:
            requests = folder / f"{work.name}-{work.body_bytes}-{work.gap_ms}.requests"
            if not requests.exists():
                write_requests(requests, work, identical=terms.identical)
            turn = number % len(routers)
            for router in [*routers[turn:], *routers[:turn]]:
                say(f"round {number + 1} of {terms.rounds}: {work.label}: {router.system.key}")
                sample = _closed(router, work, terms, programs, requests, figures)
                if terms.half_load and _has_half(work) and router.system.name in (OURS, *goals.PEERS_WITH_A_RATIO):
                    rate = HALF * (
                        sample.values[RATE] if RATE in sample.values else work.connections / work.spread_seconds
                    )
                    _open(router, work, rate, terms, programs, requests, backends, figures)
    return figures


def _closed(router: Running, work: Work, terms: Terms, programs: Programs, requests: Path, figures: Figures) -> Sample:
    made = timed.run(
        programs,
        requests,
        [router.port],
        router.group,
        connections=work.connections,
        warm=terms.warm + work.spread_seconds,
        seconds=terms.seconds,
        spread=work.spread_seconds,
    )
    figures.count(router.system.key, made.counted)
    case = figures.cases.setdefault(work, Case(work.name, _params(work)))
    sample = made.sample(work)
    case.add(router.system.key, sample)
    return sample


def _open(
    router: Running,
    work: Work,
    rate: float,
    terms: Terms,
    programs: Programs,
    requests: Path,
    backends: Sequence[int],
    figures: Figures,
) -> None:
    """The first byte at half of what the router can do, less that without a router at the same rate."""
    case = figures.half.setdefault(work, Case(work.name, _params(work) | {"load_percent": int(100 * HALF)}))
    firsts = []
    for ports, group in ((backends, None), ([router.port], router.group)):
        made = timed.run(
            programs,
            requests,
            ports,
            group,
            connections=OPEN_CONNECTIONS,
            warm=terms.warm,
            seconds=terms.seconds,
            rate=rate,
        )
        firsts.append(made.counted.first_p99_us / 1000)
        if group:
            figures.count(router.system.key, made.counted)
    case.add(router.system.key, Sample({"ttft_ms_p99": firsts[1], ADDED: firsts[1] - firsts[0]}))


def _has_half(work: Work) -> bool:
    return work.streamed or (work.connections == 32 and work.body_bytes == 64)


def _params(work: Work) -> dict[str, object]:
    params: dict[str, object] = {"connections": work.connections, "body_bytes": work.body_bytes}
    return params | ({"chunks": CHUNKS, "gap_ms": work.gap_ms} if work.streamed else {})


def rows(figures: Figures, terms: Terms) -> Iterator[Row]:
    """One row per figure, and one per ratio of ours to a peer with the goal beside it."""
    for case in [*figures.cases.values(), *figures.half.values()]:
        for key, samples in case.samples.items():
            system = SYSTEMS[key]
            for metric in samples[0].values:
                values = [sample.values[metric] for sample in samples]
                params = case.params | system.params | {"min": min(values), "max": max(values)}
                params |= {"rounds": len(values), "identical_prompts": terms.identical}
                yield Row(case.work, system.name, metric, case.median(key, metric), UNITS[metric], params)
    for work, case in figures.cases.items():
        metric = CHUNK if work.streamed else CPU
        for ours in (key for key in case.samples if SYSTEMS[key].ours):
            for peer in goals.PEERS_WITH_A_RATIO:
                values = goals.ratios(case, ours, peer, metric)
                if not values:
                    continue
                params = case.params | SYSTEMS[ours].params | {"peer": peer, "min": min(values)}
                goal = goals.goal_of(work, metric, peer) if SYSTEMS[ours].name == OURS else None
                params |= {"max": max(values), "rounds": len(values), "goal": goal}
                yield Row(case.work, SYSTEMS[ours].name, f"{metric}_ratio", goals.middle(values), "ratio", params)
    for key, sent in figures.sent.items():
        system = SYSTEMS[key]
        bad = sum(figures.unanswered[key].values())
        params = {**system.params, "sent": sent, **figures.unanswered[key]}
        yield Row("all", system.name, "not_answered", bad, "requests", params)
