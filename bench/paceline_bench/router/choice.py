"""`paceline bench router-choice`: ways to choose a replica, before real replicas, on a slice of a real trace."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from paceline_bench.comparison import OURS
from paceline_bench.http_client import DONE, BrokenAnswer, call, get
from paceline_bench.models import TINY_CORPUS, cache_folder, model_folder
from paceline_bench.output import Output
from paceline_bench.processes import ProcessGroup, free_port
from paceline_bench.results import Row, document, write_document
from paceline_bench.tables import show
from paceline_crds.metrics import runtime as catalogue

from . import replay
from .features import write_routes
from .native import until_open
from .replay import Turn
from .systems import paceline_command

NAME = "bench"
MODEL = "llama10m"
WORDS = sorted({word for line in TINY_CORPUS[:2] for word in line.split() if word.isalpha()})
"""Each is one token of the model."""
CACHE = "64Mi"
"""KV cache of each replica: some 10,000 tokens, a fifth of what the slice has."""
POLICIES = ("cost", "round-robin", "least-requests", "power-of-two", "consistent-hash")
POLICY_OPTION = "--choice-policy"
REQUEST_SECONDS = 120.0
EXIT_NO, EXIT_WRONG_USE, EXIT_NOT_KNOWN = 1, 2, 3

Say = Callable[[str], None]


@dataclass(frozen=True)
class Way:
    """A way to choose."""

    policy: str

    def command(self, replicas: Sequence[int], port: int, folder: Path) -> list[str]:
        """How its router is started."""
        urls = [{"url": f"http://127.0.0.1:{replica}"} for replica in replicas]
        config = folder / "routes.json"
        write_routes(config, {"name": f"bench/{NAME}", "servedName": NAME, "replicas": urls})
        chosen = [] if self.policy == POLICIES[0] else [POLICY_OPTION, self.policy]
        return [*paceline_command(config, port), "--shutdown-delay", "0", "--drain-timeout", "1", *chosen]


@dataclass
class Found:
    """What several replays through one router showed. Times are milliseconds."""

    ttft: list[float] = field(default_factory=list)
    sent: int = 0
    failed: int = 0
    first_failure: str = ""
    hit_tokens: float = 0.0
    prompt_tokens: float = 0.0
    imbalances: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """Of the time to the first token."""
        ordered = sorted(self.ttft)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def router_choice(
    trace: Annotated[Path, typer.Option(help="Mooncake's conversation_trace.jsonl.")],
    replicas: Annotated[int, typer.Option(min=2, max=16, help="Real replicas of our engine, one thread each.")] = 3,
    seconds: Annotated[float, typer.Option(min=5, help="Seconds in which the slice arrives.")] = 20.0,
    load: Annotated[float, typer.Option(min=0.05, max=2, help="Work that arrives, of what the replicas can do.")] = 0.6,
    rounds: Annotated[int, typer.Option(min=1, help="Replays through each, in turns, with other texts.")] = 2,
    policies: Annotated[str, typer.Option(help="Only these, by comma, as in the table.")] = "",
    output: Annotated[Output, typer.Option("--output", "-o", help="Results for people or as JSON.")] = Output.TEXT,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json.")] = None,
) -> None:
    """Time to the first token, cache hits and imbalance by how the router chooses, before real replicas.

    Whole conversations of the trace are replayed at the trace's own gaps, squeezed; lengths are divided by 32 so that
    replicas on a CPU keep up. How much is replayed follows from what the replicas can do here. Every replay has other
    texts of the same structure, so that none finds what the one before it left.

    Exit codes: 0 good, 1 requests failed, 2 wrong use, 3 a policy asked for by name could not be measured.

    Examples:

        paceline bench router-choice --trace conversation_trace.jsonl --out results/router-choice
    """
    console = Console(stderr=True)

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    names = [name.strip() for name in policies.split(",") if name.strip()]
    ways, missing = available()
    for policy, why in missing.items():
        if not names or policy in names:
            say(f"left out: {policy}: {why}")
    chosen = [way for way in ways if not names or way.policy in names]
    if unknown := set(names) - {way.policy for way in ways} - set(missing):
        typer.echo(
            f"error: no policy is called {unknown.pop()!r}; there are {', '.join(w.policy for w in ways)}", err=True
        )
        raise typer.Exit(EXIT_WRONG_USE)
    try:
        turns = replay.read(trace)
    except replay.TraceError as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(EXIT_WRONG_USE) from None
    found: dict[Way, Found] = {way: Found() for way in chosen}
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        ports = [stack.enter_context(replica(folder, number, say)) for number in range(replicas)]
        speed = asyncio.run(tokens_per_second(ports))
        piece = replay.draw(turns, int(speed * load * seconds))
        say(
            f"{replicas} replicas do {speed:,.0f} prompt tokens/s; replaying {len(piece)} requests with "
            f"{sum(turn.prompt_tokens for turn in piece):,} prompt tokens in {seconds:g} s"
        )
        for number in range(rounds):
            first = number % max(1, len(chosen))
            for way in [*chosen[first:], *chosen[:first]]:
                say(f"round {number + 1} of {rounds}: {way.policy}")
                run(way, piece, seconds, ports, folder, f"{number} {way.policy}", found[way])
    rows = list(rows_of(found, replicas, piece))
    content = document(rows, {})
    if output is Output.JSON:
        typer.echo(json.dumps(content, indent=2))
    else:
        show(table_of(found, piece))
    if out is not None:
        say(f"wrote {write_document(out, content)}")
    if any(one.failed for one in found.values()):
        raise typer.Exit(EXIT_NO)
    if set(names) & set(missing):
        raise typer.Exit(EXIT_NOT_KNOWN)


def available() -> tuple[list[Way], dict[str, str]]:
    """What can be compared here, and why the rest cannot."""
    command = [sys.executable, "-m", "paceline_router", "--help"]
    has_option = POLICY_OPTION in subprocess.run(command, capture_output=True, text=True, check=False).stdout
    others = POLICIES[1:]
    ways = [Way(policy) for policy in (POLICIES if has_option else POLICIES[:1])]
    return ways, {} if has_option else dict.fromkeys(others, f"this router has no {POLICY_OPTION}")


@contextlib.contextmanager
def replica(folder: Path, number: int, say: Say) -> Iterator[int]:
    """A replica of our engine for the time of the block; its port."""
    model = model_folder(MODEL, cache_folder(), say)
    port = free_port()
    options = f"--host 127.0.0.1 --port {port} --served-name {NAME} --max-model-len 2048 --kv-cache-memory {CACHE} "
    options += "--dtype Float32 --max-num-seqs 16 --prefix-isolation None --log-level warning"
    command = [sys.executable, "-m", "paceline_cli", "serve", model.as_uri(), *options.split()]
    with ProcessGroup(command, environment={"OMP_NUM_THREADS": "1"}, log=folder / f"replica-{number}.log") as group:
        until_open(group, lambda: healthy(port), f"replica {number}")
        yield port


def healthy(port: int) -> bool:
    """Whether a replica there is ready."""
    try:
        return asyncio.run(get(port, "/health"))[0] == 200
    except (OSError, BrokenAnswer):
        return False


async def ask(port: int, prompt: str, output_tokens: int) -> float:
    """Seconds until the first token of a stream, read to its end.

    Raises:
        BrokenAnswer: it did not end well.
        OSError: nobody listens.
    """
    body: dict[str, Any] = {"model": NAME, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0}
    body |= {"ignore_eos": True, "stream": True}
    sent, first, done = time.perf_counter(), 0.0, False
    async with call(port, "POST", "/v1/completions", body) as response:
        if response.status != 200:
            raise BrokenAnswer(f"status {response.status}: {(await response.body())[:300]!r}")
        async for at, data in response.events():
            if data == DONE:
                done = True
            elif "error" in (event := json.loads(data)):
                raise BrokenAnswer(str(event["error"]))
            elif event.get("choices"):
                first = first or at
    if not done or not first:
        raise BrokenAnswer("the stream ended without its end")
    return first - sent


async def tokens_per_second(ports: Sequence[int]) -> float:
    """Prompt tokens that all replicas together compute in a second, each with one prompt after the other."""
    size, turns = 1024, 3
    rng = random.Random(0)
    prompts = [[" ".join(rng.choices(WORDS, k=size)) for _ in ports] for _ in range(turns)]
    rates = []
    for batch in prompts:
        began = time.perf_counter()
        await asyncio.gather(*(ask(port, prompt, 1) for port, prompt in zip(ports, batch, strict=True)))
        rates.append(size * len(ports) / (time.perf_counter() - began))
    return statistics.median(rates)


def run(
    way: Way, piece: Sequence[Turn], seconds: float, ports: Sequence[int], folder: Path, salt: str, found: Found
) -> None:
    """Replay the slice once through a router of its own."""
    port = free_port()
    with ProcessGroup(way.command(ports, port, folder), environment={}, log=folder / "router.log") as group:
        until_open(group, lambda: _routes(port), way.policy)
        before = [asyncio.run(counters(replica)) for replica in ports]
        asyncio.run(_replay(piece, seconds, port, salt, found))
        after = [asyncio.run(counters(replica)) for replica in ports]
    used = [{name: b[name] - a[name] for name in b} for a, b in zip(before, after, strict=True)]
    found.hit_tokens += sum(one[catalogue.RUNTIME_PREFIX_CACHE_HITS.name] for one in used)
    found.prompt_tokens += sum(one[catalogue.RUNTIME_PREFIX_CACHE_QUERIES.name] for one in used)
    shares = [one[catalogue.RUNTIME_PREFIX_CACHE_QUERIES.name] for one in used]
    found.imbalances.append(max(shares) / statistics.fmean(shares))


def _routes(port: int) -> bool:
    try:
        asyncio.run(ask(port, WORDS[0], 1))
    except (OSError, BrokenAnswer):
        return False
    return True


async def counters(port: int) -> dict[str, float]:
    """Prompt tokens that a replica looked for in its cache, and those it found."""
    names = (catalogue.RUNTIME_PREFIX_CACHE_QUERIES.name, catalogue.RUNTIME_PREFIX_CACHE_HITS.name)
    _, body = await get(port, "/metrics")
    values = dict.fromkeys(names, 0.0)
    for line in body.decode().splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in values:
            values[name] += float(line.rpartition(" ")[2])
    return values


async def _replay(piece: Sequence[Turn], seconds: float, port: int, salt: str, found: Found) -> None:
    prompts = [replay.text(turn, WORDS, salt) for turn in piece]
    began = time.perf_counter()

    async def one(at: float, prompt: str, turn: Turn) -> None:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        found.sent += 1
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                found.ttft.append(1000 * await ask(port, prompt, turn.output_tokens))
        except (OSError, BrokenAnswer, TimeoutError) as error:
            found.failed += 1
            found.first_failure = found.first_failure or f"{type(error).__name__}: {error}"

    times = replay.arrivals(piece, seconds)
    await asyncio.gather(*(one(at, prompt, turn) for at, prompt, turn in zip(times, prompts, piece, strict=True)))


def rows_of(found: dict[Way, Found], replicas: int, piece: Sequence[Turn]) -> Iterator[Row]:
    """One row per policy and figure."""
    for way, one in found.items():
        params: dict[str, Any] = {
            "policy": way.policy,
            "replicas": replicas,
            "requests": len(piece),
            "rounds": len(one.imbalances),
        }
        yield Row("choice", OURS, "ttft_ms_p50", one.percentile(0.5), "ms", params)
        yield Row("choice", OURS, "ttft_ms_p99", one.percentile(0.99), "ms", params)
        yield Row("choice", OURS, "hit_percent", 100 * one.hit_tokens / max(1.0, one.prompt_tokens), "%", params)
        yield Row("choice", OURS, "imbalance", statistics.fmean(one.imbalances), "ratio", params)
        yield Row("choice", OURS, "failed", one.failed, "requests", params | {"sent": one.sent})


def table_of(found: dict[Way, Found], piece: Sequence[Turn]) -> Table:
    """One line per policy."""
    headings = ["TTFT p50 ms", "p90", "p99", "tokens found in a cache", "most loaded ÷ mean", "failed of sent"]
    table = Table("choice", *headings)
    table.title = f"Choice of replicas; an endless single cache would find {100 * replay.reusable(piece):.0f} %"
    for way, one in found.items():
        times = [f"{one.percentile(share):,.0f}" for share in (0.5, 0.9, 0.99)]
        hits = f"{100 * one.hit_tokens / max(1.0, one.prompt_tokens):.1f} %"
        failed = f"{one.failed} of {one.sent}" + (f" ({one.first_failure[:80]})" if one.failed else "")
        table.add_row(way.policy, *times, hits, f"{statistics.fmean(one.imbalances):.2f}", failed)
    return table
