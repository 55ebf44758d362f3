"""Servers over HTTP: many streams at once, time to the first token and between tokens, beside vLLM's server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .comparison import Case, Sample
from .http_client import DONE, BrokenAnswer, call, get
from .machine import Weather, load_average
from .models import TINY_CORPUS, model_folder
from .offline import LOAD_SECONDS, SETTLE_SECONDS, Outcome, Say, Terms
from .processes import ProcessGroup, free_port, raise_file_limit
from .systems import System
from .worker import Worker, WorkerError

MODEL = "bench"
TURN_TIMEOUT = 600.0
FEWEST_REQUESTS = 4
MOST_REQUESTS = 128
WORDS = " ".join(TINY_CORPUS[:2]).split()


@dataclass(frozen=True, kw_only=True)
class Setup(Terms):
    """Streams over HTTP."""

    streams: tuple[int, ...]

    @property
    def max_len(self) -> int:
        """Tokens of one request."""
        return max(256, self.prompt_tokens + self.new_tokens)


def requests_of_turn(streams: int) -> int:
    """Requests in one turn: two for each stream, within bounds that keep a turn short and a median a median."""
    return max(streams, min(MOST_REQUESTS, max(FEWEST_REQUESTS, 2 * streams)))


def command(system: System, python: str, model: Path, dtype: str, setup: Setup, port: int) -> list[str]:
    """How a system's server is started."""
    seqs = max(setup.streams)
    if system.backend == "paceline":
        kind = {"float32": "Float32", "bfloat16": "BFloat16"}[dtype]
        options = f"--host 127.0.0.1 --port {port} --served-name {MODEL} --dtype {kind} --max-num-seqs {seqs} "
        options += f"--max-model-len {setup.max_len} --no-prefix-caching --kv-cache-memory 1Gi --log-level warning "
        # It is held still while others have their turn, which is no fault of its own.
        return [python, "-m", "paceline_cli", "serve", model.as_uri(), *f"{options} --liveness-timeout 2h".split()]
    options = f"--host 127.0.0.1 --port {port} --served-model-name {MODEL} --dtype {dtype} --max-num-seqs {seqs} "
    options += f"--max-model-len {setup.max_len} --no-enable-prefix-caching --disable-uvicorn-access-log"
    eager = ["--enforce-eager"] if system.options["eager"] else []
    return [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *options.split(), *eager]


def run(
    work: str, dtype: str, systems: Sequence[tuple[System, str]], setup: Setup, cache: Path, logs: Path, say: Say
) -> Outcome:
    """Measure servers in turns; arguments as of `offline.run`. Systems without a server are passed over."""
    raise_file_limit()
    outcome = Outcome()
    folder = model_folder(work.removeprefix("server-"), cache, say)
    environment = setup.environment()
    with contextlib.ExitStack() as stack:
        log = logs / f"probe-{work}-{dtype}.log"
        probe = stack.enter_context(Worker("probe", sys.executable, "probe", environment, log))
        probe.ask("load", LOAD_SECONDS, dtype=dtype)
        servers: dict[str, tuple[ProcessGroup, int]] = {}
        for system, python in systems:
            if system.backend not in ("paceline", "vllm"):
                continue
            say(f"{work} {dtype}: starting the server of {system.name}")
            port = free_port()
            made = ProcessGroup(
                command(system, python, folder, dtype, setup, port),
                environment={**environment, **system.environment},
                log=logs / f"{system.name}-{work}-{dtype}.log",
            )
            stack.enter_context(made)
            try:
                asyncio.run(_ready(made, port, system.name))
            except WorkerError as error:
                _drop(system.name, made, error, outcome, say)
                continue
            made.pause()
            servers[system.name] = made, port
        prompts = make_prompts(folder, setup.prompt_tokens)
        for streams in setup.streams:
            params = {"streams": streams, "dtype": dtype, "prompt_tokens": setup.prompt_tokens}
            params |= {"new_tokens": setup.new_tokens, "threads": setup.threads}
            _measure(Case(work, params), servers, probe, prompts, setup, outcome, say)
    return outcome


def make_prompts(folder: Path, prompt_tokens: int) -> Callable[[random.Random], list[int]]:
    """Draws prompts of exactly so many tokens of running words, for the tokenizer of a model."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def draw(rng: random.Random) -> list[int]:
        text = " ".join(rng.choices(WORDS, k=prompt_tokens))
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids[:prompt_tokens]
        return ids

    return draw


def _measure(
    case: Case,
    servers: dict[str, tuple[ProcessGroup, int]],
    probe: Worker,
    draw: Callable[[random.Random], list[int]],
    setup: Setup,
    outcome: Outcome,
    say: Say,
) -> None:
    streams, dtype = case.params["streams"], case.params["dtype"]
    rng = random.Random(f"{case.work} {streams}")
    for number in range(setup.rounds + 1):  # the first one only warms up
        prompts = [draw(rng) for _ in range(requests_of_turn(streams))]
        if number:
            rates = probe.ask("rates", TURN_TIMEOUT).value
            outcome.weather.append(Weather(case.work, dtype, **rates, load1=load_average()))
        names = list(servers)
        first = number % max(1, len(names))
        for name in names[first:] + names[:first]:
            server, port = servers[name]
            server.resume()
            time.sleep(SETTLE_SECONDS)
            used = server.cpu_seconds()
            try:
                turn = asyncio.run(asyncio.wait_for(run_turn(port, prompts, streams, setup.new_tokens), TURN_TIMEOUT))
            except (WorkerError, OSError, TimeoutError) as error:
                del servers[name]
                _drop(name, server, WorkerError(server.words(f"{name}: {error or 'no answer in time'}")), outcome, say)
                continue
            used = server.cpu_seconds() - used
            server.pause()
            if number:
                cpu = {"cpu_ms_per_token": 1000 * used / (len(prompts) * setup.new_tokens)}
                case.add(name, Sample(turn.metrics() | cpu, turn.texts))
        if number:
            say(f"{case.work} {dtype} {streams} streams: round {number} of {setup.rounds}")
    if case.samples:
        outcome.cases.append(case)


@dataclass(frozen=True)
class Turn:
    """What one turn of streams showed. Seconds."""

    seconds: float
    tokens: int
    ttft: list[float]
    tpot: list[float]
    texts: list[str]

    def metrics(self) -> dict[str, float]:
        """As named in the results."""
        return {
            "tokens_per_s": self.tokens / self.seconds,
            "ttft_ms_p50": 1000 * statistics.median(self.ttft),
            "tpot_ms_p50": 1000 * statistics.median(self.tpot),
        }


async def run_turn(port: int, prompts: Sequence[list[int]], streams: int, new_tokens: int) -> Turn:
    """Have so many streams open at once until all prompts are answered.

    Raises:
        WorkerError: an answer was not what was asked for.
        OSError: the server does not listen.
    """
    queue = list(enumerate(prompts))[::-1]
    answers: dict[int, tuple[float, float, str]] = {}

    async def stream() -> None:
        while queue:
            number, prompt = queue.pop()
            answers[number] = await _one(port, prompt, new_tokens)

    started = time.perf_counter()
    await asyncio.gather(*(stream() for _ in range(streams)))
    seconds = time.perf_counter() - started
    ordered = [answers[number] for number in range(len(prompts))]
    return Turn(
        seconds=seconds,
        tokens=len(prompts) * new_tokens,
        ttft=[ttft for ttft, _, _ in ordered],
        tpot=[tpot for _, tpot, _ in ordered],
        texts=[text for _, _, text in ordered],
    )


async def _one(port: int, prompt: list[int], new_tokens: int) -> tuple[float, float, str]:
    """Time to the first event, time per further token, and the text of one stream."""
    body: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": new_tokens, "temperature": 0}
    body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    sent = time.perf_counter()
    first = last = 0.0
    text, made = "", None
    try:
        async with call(port, "POST", "/v1/completions", body) as response:
            if response.status != 200:
                raise WorkerError(f"status {response.status}: {(await response.body())[:500]!r}")
            async for at, data in response.events():
                if data == DONE:
                    break
                event = json.loads(data)
                if "error" in event:
                    raise WorkerError(f"a stream ended with {event['error']}")
                if event.get("usage"):
                    made = event["usage"]["completion_tokens"]
                for choice in event["choices"]:
                    first = first or at
                    last = at
                    text += choice["text"]
    except BrokenAnswer as error:
        raise WorkerError(f"a stream broke: {error}") from error
    if made != new_tokens:
        raise WorkerError(f"{made} tokens were made where {new_tokens} were asked for")
    return first - sent, (last - first) / (new_tokens - 1), text


async def _ready(server: ProcessGroup, port: int, name: str) -> None:
    """Until the server says that it is ready.

    Raises:
        WorkerError: it ended, or is not ready in time.
    """
    deadline = time.monotonic() + LOAD_SECONDS
    while time.monotonic() < deadline:
        if server.ended() is not None:
            raise WorkerError(server.words(f"{name}: the server ended with {server.ended()}"))
        with contextlib.suppress(OSError, BrokenAnswer):
            if (await get(port, "/health"))[0] == 200:
                return
        await asyncio.sleep(0.2)
    raise WorkerError(server.words(f"{name}: the server was not ready in {LOAD_SECONDS:g} s"))


def _drop(name: str, server: ProcessGroup, error: WorkerError, outcome: Outcome, say: Say) -> None:
    server.close()
    outcome.failures[name] = str(error)
    say(f"left out: {error}")
