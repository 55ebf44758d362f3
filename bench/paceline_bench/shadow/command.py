"""`paceline bench shadow`: what copies of requests cost those who are served."""

from __future__ import annotations

import contextlib
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from paceline_bench.machine import load_average
from paceline_bench.output import Output
from paceline_bench.processes import ProcessGroup, free_port, raise_file_limit
from paceline_bench.results import Row, document, versions, write_document
from paceline_bench.router import features, timed
from paceline_bench.router.native import Programs, build, cores, pinned, replicas, until_open
from paceline_bench.router.systems import COMPILED_AT, answers, has_compiled, paceline_command
from paceline_bench.router.works import MODEL, http_request, prompt, save
from paceline_bench.tables import show

from .candidates import KINDS
from .figures import LEAST_ROUNDS, METRICS, Paired, Said, paired

NONE, HEALTHY, REFUSING = "none", "healthy", "refusing"
SETTINGS = (HEALTHY, *KINDS, REFUSING)
TOKEN = "bench"
BASES = 2
CONNECTIONS = 256
PROMPT_BYTES = 512
VARIANTS = 64
LOW = ("chrt", "--other", "0")
"""What is in Python and stands for other machines goes behind what is measured, where that has a real-time priority."""
EXIT_NO, EXIT_WRONG_USE, EXIT_NOT_KNOWN = 1, 2, 3


@dataclass
class Taken:
    """Figures of one setting, by round, each with the baseline beside it.

    Attributes:
        values: by metric, milliseconds.
        base: the same of the runs without copies before and after, their mean.
        cpu: microseconds of the router's CPU for a request.
        bad: requests that were not answered.
        sent: requests, those that are not timed too.
    """

    values: dict[str, list[float]] = field(default_factory=dict)
    base: dict[str, list[float]] = field(default_factory=dict)
    cpu: list[float] = field(default_factory=list)
    sent: int = 0
    bad: int = 0


def shadow(
    rounds: Annotated[
        int, typer.Option(min=LEAST_ROUNDS, help="Runs of each setting, in turns with runs without copies.")
    ] = 10,
    seconds: Annotated[float, typer.Option(min=1.0, help="Timed seconds of each run.")] = 5.0,
    warm: Annotated[float, typer.Option(min=0.5, help="Seconds of load before each timed part.")] = 1.0,
    rate: Annotated[float, typer.Option(min=1.0, help="Requests a second, at random times.")] = 200.0,
    tokens: Annotated[int, typer.Option(min=2, help="Events of each stream.")] = 24,
    gap_ms: Annotated[int, typer.Option(min=1, help="Between the events of a stream.")] = 10,
    settings: Annotated[str, typer.Option(help="Only these candidates, by comma.")] = "",
    output: Annotated[Output, typer.Option("--output", "-o", help="Results for people or as JSON.")] = Output.TEXT,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json.")] = None,
) -> None:
    """Times that clients see while every request is copied: to a candidate that is well, hangs, crashes, does not read,
    or refuses, and without copies before and after each.

    The router has one core; load, replicas and the recorder have another. Replicas are small C programs that pace their
    tokens. No worse: the 95 % interval of the median paired difference is within 2 % or 1 ms, whichever is more. Every
    request is counted.

    Exit codes: 0 no worse and all answered, 1 worse or some request unanswered, 2 wrong use, 3 not known.

    Examples:

        paceline bench shadow --out results/shadow

        paceline bench shadow --settings stalled --rounds 12
    """
    raise_file_limit()
    console = Console(stderr=True)
    chosen = [name.strip() for name in settings.split(",") if name.strip()] or list(SETTINGS)
    if unknown := [name for name in chosen if name not in SETTINGS]:
        typer.echo(f"error: no candidate is called {unknown[0]!r}; there are {', '.join(SETTINGS)}", err=True)
        raise typer.Exit(EXIT_WRONG_USE)
    taken = {name: Taken() for name in chosen}
    console.print("the compiled router" if has_compiled() else "the router's source: make router-compiled", style="dim")
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        programs = build(folder)
        routers = stack.enter_context(_world(chosen, programs, folder))
        requests = folder / "requests"
        save(requests, _requests(tokens, gap_ms))

        def run(router: Router, turn: int) -> timed.Run:
            router.group.resume()
            try:
                return timed.run(
                    programs,
                    requests,
                    [router.port],
                    router.group,
                    connections=CONNECTIONS,
                    warm=warm,
                    seconds=seconds,
                    rate=rate,
                    seed=turn,
                )
            finally:
                router.group.pause()

        for router in routers.values():
            router.group.pause()
        before = run(routers[NONE], 1)
        for turn in range(rounds):
            for name in chosen[turn % len(chosen) :] + chosen[: turn % len(chosen)]:
                beside = run(routers[name], turn + 1)
                after = run(routers[NONE], turn + 1)
                _enter(taken[name], beside, before, after)
                before = after
            console.print(f"round {turn + 1} of {rounds}, load {load_average():.1f}", highlight=False)
        for router in routers.values():
            router.group.resume()
    found = {
        name: {metric: paired(one.base[metric], one.values[metric]) for metric in METRICS}
        for name, one in taken.items()
    }
    terms = {"rate": rate, "tokens": tokens, "gap_ms": gap_ms, "seconds": seconds, "rounds": rounds}
    content = document(
        list(_rows(found, taken, terms)), versions("uvloop", "msgspec"), [{"load1": load_average(), "cores": cores()}]
    )
    if output is Output.JSON:
        typer.echo(json.dumps(content, indent=2))
    else:
        show(_table(found, taken))
    if out is not None:
        console.print(f"wrote {write_document(out, content)}", highlight=False)
    said = {one.said for figures in found.values() for one in figures.values()}
    if Said.WORSE in said or any(one.bad for one in taken.values()):
        raise typer.Exit(EXIT_NO)
    if Said.NOT_KNOWN in said:
        raise typer.Exit(EXIT_NOT_KNOWN)


@dataclass(frozen=True)
class Router:
    """One router process."""

    port: int
    group: ProcessGroup


@contextlib.contextmanager
def _world(chosen: list[str], programs: Programs, folder: Path) -> Iterator[dict[str, Router]]:
    """A router for each setting and one without copies, all in front of the same base."""
    with contextlib.ExitStack() as stack:
        # One process each, so that a candidate takes nothing from the base but the core's time.
        bases = stack.enter_context(replicas(programs, BASES, folder))
        candidates = {REFUSING: free_port()}
        (logs := folder / "candidate").mkdir()
        (candidates[HEALTHY],) = stack.enter_context(replicas(programs, 1, logs))
        for kind in KINDS:
            command = [*LOW, *pinned([sys.executable, "-m", "paceline_bench.shadow.candidates", kind], cores()[1])]
            group = ProcessGroup(command, environment={}, log=folder / f"{kind}.log", piped=True)
            stack.enter_context(group)
            candidates[kind] = int(group.stdout.readline())
        recorder = stack.enter_context(_recorder(folder))
        made: dict[str, Router] = {}
        for name in (NONE, *chosen):
            config = folder / f"routes-{name}.json"
            features.write_routes(config, _service(bases, candidates.get(name), recorder))
            port = free_port()
            compiled = ["env", f"PYTHONPATH={COMPILED_AT}"] if has_compiled() else []
            options = ["--shutdown-delay", "0", "--drain-timeout", "1"]
            command = pinned([*compiled, *paceline_command(config, port), *options], cores()[0])
            group = ProcessGroup(
                command, environment={"PACELINE_ADMIN_TOKEN": TOKEN}, log=folder / f"router-{name}.log"
            )
            stack.enter_context(group)
            until_open(group, lambda port=port: answers(port), name)
            made[name] = Router(port, group)
        yield made


@contextlib.contextmanager
def _recorder(folder: Path) -> Iterator[str]:
    """A real recorder, behind everything else on its core: in a cluster it is on another machine."""
    (data := folder / "recorder").mkdir()
    command = [sys.executable, "-m", "paceline_shadow_traffic", "--data", str(data), "--host", "127.0.0.1"]
    command = [*LOW, "nice", "-n", "19", *pinned([*command, "--port", "0", "--replay-percent", "0"], cores()[1])]
    environment = {"PACELINE_ADMIN_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"}
    with ProcessGroup(command, environment=environment, log=folder / "recorder.log", piped=True) as group:
        yield group.stdout.readline().decode().split()[-1]


def _service(bases: list[int], candidate: int | None, recorder: str) -> dict[str, Any]:
    entry = features.service(bases, features.PLAIN)
    entry["replicas"] = [{**replica, "revision": "old"} for replica in entry["replicas"]]
    entry["traffic"] = {"entries": [{"revision": "old", "weight": 100}]}
    if candidate is not None:
        entry["replicas"].append({"url": f"http://127.0.0.1:{candidate}", "revision": "new"})
        entry["traffic"]["shadow"] = {
            "revision": "new",
            "percent": 100,
            "maxConcurrent": CONNECTIONS,
            "recorder": recorder,
        }
    return entry


def _requests(tokens: int, gap_ms: int) -> Iterator[bytes]:
    rng = random.Random("shadow")
    for _ in range(VARIANTS):
        text = prompt(rng, PROMPT_BYTES, "")
        fields = {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": True}
        fields |= {"max_tokens": tokens, "seed": gap_ms}
        yield http_request(json.dumps(fields, separators=(",", ":")).encode(), {})


def _enter(taken: Taken, beside: timed.Run, before: timed.Run, after: timed.Run) -> None:
    values, *bases = (_values(run) for run in (beside, before, after))
    for metric in METRICS:
        taken.values.setdefault(metric, []).append(values[metric])
        taken.base.setdefault(metric, []).append((bases[0][metric] + bases[1][metric]) / 2)
    taken.cpu.append(beside.cpu_seconds * 1e6 / max(1, beside.counted.requests))
    taken.sent += beside.counted.sent
    taken.bad += beside.counted.bad


def _values(run: timed.Run) -> dict[str, float]:
    c = run.counted
    figures = (c.first_p50_us, c.first_p99_us, c.p50_us, c.p99_us)
    return {metric: us / 1000 for metric, us in zip(METRICS, figures, strict=True)}


def _rows(found: dict[str, dict[str, Paired]], taken: dict[str, Taken], terms: dict[str, Any]) -> Iterator[Row]:
    for name, figures in found.items():
        for metric, one in figures.items():
            params = {"candidate": name, "low": one.low, "high": one.high, "said": one.said.value, "base": one.base}
            yield Row("shadow", "paceline", f"{metric}_difference", one.middle, "ms", terms | params)
        cpu = sum(taken[name].cpu) / len(taken[name].cpu)
        yield Row("shadow", "paceline", "cpu_us_per_request", cpu, "us", terms | {"candidate": name})
        yield Row("shadow", "paceline", "sent", taken[name].sent, "requests", terms | {"candidate": name})
        yield Row("shadow", "paceline", "not_answered", taken[name].bad, "requests", terms | {"candidate": name})


def _table(found: dict[str, dict[str, Paired]], taken: dict[str, Taken]) -> Table:
    headings = ("first byte P50", "first byte P99", "whole answer P50", "whole answer P99")
    table = Table("candidate", *headings, "requests", "not answered", title="With every request copied, against none")
    for name, figures in found.items():
        cells = [
            f"{one.base:.2f} {one.middle:+.2f} ms ({one.low:+.2f} to {one.high:+.2f}): {one.said.value}"
            for one in figures.values()
        ]
        table.add_row(name, *cells, f"{taken[name].sent:,}", f"{taken[name].bad:,}")
    return table
