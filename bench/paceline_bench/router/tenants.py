"""`paceline bench router-tenants`: what a tenant that asks for ten times its share does to the others."""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from paceline_bench.output import Output
from paceline_bench.processes import raise_file_limit
from paceline_bench.results import Row, document, write_document
from paceline_bench.tables import show

from .fleet import Fleet
from .native import Programs, build
from .timed import Counted, run
from .works import MODEL, UNIQUE, http_request, save

REPLICAS = 2
SLOTS = 16
"""Requests that a replica runs at a time; further ones wait there, in the order of arrival."""
TOKENS = (10, 30)
GAP_MS = 5
GOOD_TENANTS = 3
GREEDY = 10.0
"""Times its share that the one tenant asks for."""
LOADED = 0.6
"""Of its share that every other tenant uses."""
WARM_SECONDS = 0.7
CONNECTIONS = 512
MARGIN = 0.10
EXIT_NO, EXIT_WRONG_USE, EXIT_NOT_KNOWN = 1, 2, 3
METRICS = ("latency_ms_p50", "latency_ms_p99", "ttft_ms_p50", "ttft_ms_p99")
JUDGED = "latency_ms_p99"

SHARE_SLOTS = REPLICAS * SLOTS // (GOOD_TENANTS + 1)
_TENANTS = [{"name": f"good-{number}", "weight": 1} for number in range(GOOD_TENANTS)] + [
    {"name": "greedy", "weight": 1}
]
_QUEUE: dict[str, Any] = {"tenants": _TENANTS, "maxQueuedPerTenant": 100, "maxWait": "5s"}
SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "queue": {"tenancy": _QUEUE},
    "slots": {"tenancy": _QUEUE | {"default": {"maxConcurrent": SHARE_SLOTS}}},
}
"""How the service is shared: not at all, by the fair queue, or also with the slots of its share for each tenant."""


@dataclass
class Pairs:
    """Good tenants' figures of each pair of phases: alone, and beside the greedy one."""

    alone: list[Counted] = field(default_factory=list)
    beside: list[Counted] = field(default_factory=list)
    greedy: list[Counted] = field(default_factory=list)

    def values(self, phases: list[Counted], metric: str) -> list[float]:
        """One figure per phase, in milliseconds."""
        name = metric.replace("latency_ms", "").replace("ttft_ms", "first").lstrip("_") + "_us"
        return [getattr(phase, name) / 1000 for phase in phases]

    def difference(self, metric: str) -> tuple[float, float, float]:
        """Mean of the paired relative differences, and the ends of its 95 % interval."""
        alone, beside = self.values(self.alone, metric), self.values(self.beside, metric)
        return interval([b / a - 1 for a, b in zip(alone, beside, strict=True)])


def interval(values: list[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval of the mean by Student's t; without two values the interval is endless."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    half = student95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def student95(freedom: int) -> float:
    """97.5 % quantile of Student's t, within 1 % from three degrees on (Cornish and Fisher's expansion)."""
    exact = {1: 12.706, 2: 4.303}
    z = 1.959964
    f = float(freedom)
    terms = (z**3 + z) / (4 * f) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * f**2)
    return exact.get(freedom, z + terms + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * f**3))


def verdict(low: float, high: float) -> str:
    """`no worse` where the whole interval is within the margin, `worse` where none of it is, else `not known`."""
    return "no worse" if high <= MARGIN else "worse" if low > MARGIN else "not known"


def router_tenants(
    settings: Annotated[str, typer.Option(help="By comma: none, queue, slots.")] = "slots,queue,none",
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of phases: alone, then beside the greedy tenant.")] = 6,
    seconds: Annotated[float, typer.Option(min=0.5, help="Timed seconds of each phase.")] = 3.0,
    output: Annotated[Output, typer.Option("--output", "-o", help="Results for people or as JSON.")] = Output.TEXT,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json.")] = None,
) -> None:
    """What tenants that keep to their share feel of one that asks for ten times its own.

    A real router in front of replicas that pace their tokens and run so many requests at a time. Three tenants use 60 %
    of their share throughout, at random times that are the same in a pair of phases. *No worse* means that the 95 %
    interval of the paired difference of their P99 lies within 10 %; a wider one is not known.

    settings: none (no tenancy), queue (the fair queue alone), slots (also, for each tenant, the slots of its share).

    Exit codes: 0 no worse, 1 worse, 2 wrong use, 3 not known; of the first setting.

    Examples:

        paceline bench router-tenants --out results/router-tenants

        paceline bench router-tenants --settings slots --pairs 12 --seconds 5
    """
    raise_file_limit()
    console = Console(stderr=True)
    names = settings.split(",")
    if unknown := [name for name in names if name not in SETTINGS]:
        typer.echo(f"error: no setting is called {unknown[0]!r}; there are {', '.join(SETTINGS)}", err=True)
        raise typer.Exit(EXIT_WRONG_USE)
    found: dict[str, Pairs] = {}
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as name:
        programs = build(Path(name))
        for setting in names:
            console.print(f"{setting}: {pairs} pairs", highlight=False)
            folder = Path(name) / setting
            folder.mkdir()
            found[setting] = measure(SETTINGS[setting], pairs, seconds, programs, folder)
    content = document(rows_of(found), {})
    if output is Output.JSON:
        typer.echo(json.dumps(content, indent=2))
    else:
        show(table_of(found))
    if out is not None:
        console.print(f"wrote {write_document(out, content)}", highlight=False)
    said = verdict(*found[names[0]].difference(JUDGED)[1:])
    raise typer.Exit({"no worse": 0, "worse": EXIT_NO}.get(said, EXIT_NOT_KNOWN))


def measure(tenancy: Mapping[str, Any], pairs: int, seconds: float, programs: Programs, folder: Path) -> Pairs:
    """Pairs of phases in front of one fleet."""
    made = Pairs()
    good, greedy = folder / "good", folder / "greedy"
    save(good, requests_of([f"good-{number}" for number in range(GOOD_TENANTS)]))
    save(greedy, requests_of(["greedy"]))
    share = REPLICAS * SLOTS / (statistics.fmean(TOKENS) * GAP_MS / 1000) / (GOOD_TENANTS + 1)
    pools = {"pools": [{"name": "default", "maxNumSeqs": SLOTS}]}
    with Fleet(programs, folder, slots=SLOTS, more=pools | dict(tenancy)) as fleet:
        asyncio.run(_start(fleet))
        port = fleet.ports[0]

        def load(file: Path, rate: float, more: float, seed: int) -> Counted:
            return run(
                programs,
                file,
                [port],
                None,
                connections=CONNECTIONS,
                warm=WARM_SECONDS,
                seconds=seconds + more,
                rate=rate,
                seed=seed,
            ).counted

        for pair in range(pairs):
            rate = LOADED * share * GOOD_TENANTS
            made.alone.append(load(good, rate, 0.0, pair))
            with ThreadPoolExecutor(1) as pool:
                flood = pool.submit(load, greedy, GREEDY * share, 0.5, 1000 + pair)
                made.beside.append(load(good, rate, 0.0, pair))
                made.greedy.append(flood.result())
    return made


async def _start(fleet: Fleet) -> None:
    for _ in range(REPLICAS):
        await fleet.add_replica()
    fleet.write()
    await fleet.add_router()


def requests_of(tenants: list[str]) -> Iterator[bytes]:
    """Streams of several lengths, in turn from each tenant."""
    rng = random.Random(0)
    for number in range(60):
        tenant = tenants[number % len(tenants)]
        fields: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": f"{UNIQUE} {tenant}"}]}
        fields |= {"stream": True, "max_tokens": rng.randint(*TOKENS), "seed": GAP_MS}
        yield http_request(json.dumps(fields, separators=(",", ":")).encode(), {"x-paceline-tenant": tenant})


def rows_of(found: Mapping[str, Pairs]) -> Iterator[Row]:
    """The good tenants' figures, their paired differences, and what became of the greedy one's requests."""
    for setting, pairs in found.items():
        for metric in METRICS:
            for phase, values in (
                ("alone", pairs.values(pairs.alone, metric)),
                ("beside greedy", pairs.values(pairs.beside, metric)),
            ):
                params = {"setting": setting, "phase": phase, "pairs": len(values)}
                yield Row("tenants", "paceline", metric, statistics.median(values), "ms", params)
            mean, low, high = pairs.difference(metric)
            params = {"setting": setting, "low": low, "high": high, "verdict": verdict(low, high)}
            yield Row("tenants", "paceline", f"{metric}_difference", 100 * mean, "%", params)
        for tenants, phases in (("good", pairs.beside), ("greedy", pairs.greedy)):
            counts = outcomes(phases)
            params = {"setting": setting, "tenants": tenants, **counts}
            yield Row("tenants", "paceline", "sent", sum(phase.sent for phase in phases), "requests", params)


def outcomes(phases: list[Counted]) -> dict[str, int]:
    """What became of the requests of several phases."""
    return {name: sum(phase.outcomes[name] for phase in phases) for name in phases[0].outcomes}


def table_of(found: Mapping[str, Pairs]) -> Table:
    """One line per setting and figure."""
    table = Table("setting", "figure of the others", "alone", "beside greedy", "difference (95 %)", "verdict")
    table.title = "Tenants that keep to their share, beside one at ten times its own"
    for setting, pairs in found.items():
        for metric in METRICS:
            alone, beside = (statistics.median(pairs.values(phases, metric)) for phases in (pairs.alone, pairs.beside))
            mean, low, high = pairs.difference(metric)
            said = f"{100 * mean:+.1f} % ({100 * low:+.1f} to {100 * high:+.1f})"
            words = verdict(low, high) if metric == JUDGED else ""
            table.add_row(setting, metric, f"{alone:.1f}", f"{beside:.1f}", said, words)
        for tenants, phases in (("others", pairs.beside), ("greedy", pairs.greedy)):
            counts = ", ".join(f"{count:,} {name}" for name, count in outcomes(phases).items() if count)
            table.add_row(setting, f"requests of {tenants}", "", counts, "", "")
        table.add_section()
    return table
