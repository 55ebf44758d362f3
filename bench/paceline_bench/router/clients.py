"""Clients that count: every request has exactly one outcome, and *lost* is what a client could make nothing of."""

from __future__ import annotations

import asyncio
import enum
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline_bench.http_client import DONE, BrokenAnswer, Response

from .works import CHAT

ANSWER_SECONDS = 60.0
BUFFER_BYTES = 1 << 20


class Outcome(enum.StrEnum):
    """What became of a request."""

    ANSWERED = "answered"
    ERROR_EVENT = "error_event"
    """The stream began, and ended with an error that the client can read."""
    REFUSED = "refused"
    """429 or 503 with Retry-After."""
    FAILED = "failed"
    """Another status, with an error in OpenAI's form."""
    LOST = "lost"
    """None of these: no answer, half an answer, an answer that is no sense, or none in time."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Attributes:
        body: its JSON.
        tokens: events of a stream that must come before `[DONE]`; 0: not streamed.
        headers: beside those that HTTP needs.
    """

    body: bytes
    tokens: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw. Times are seconds of the event loop's clock, `first_at` is `None` without a first byte."""

    outcome: Outcome
    why: str
    began_at: float
    first_at: float | None
    ended_at: float


@dataclass
class Tally:
    """Outcomes of many requests, and the first of each bad kind in words."""

    seen: Counter[Outcome] = field(default_factory=Counter)
    first: dict[Outcome, str] = field(default_factory=dict)
    sent: int = 0

    def add(self, seen: Seen) -> None:
        """Enter one."""
        self.seen[seen.outcome] += 1
        if seen.outcome is not Outcome.ANSWERED:
            self.first.setdefault(seen.outcome, seen.why)


class Client:
    """One client with one connection, kept between requests or not.

    Args:
        ports: where routers are that may be asked now; read anew for every connection, as through a Service.
        keep: use a connection again.
        rng: which router a connection goes to.
    """

    def __init__(self, ports: Sequence[int], keep: bool, rng: random.Random) -> None:
        self._ports = ports
        self._keep = keep
        self._rng = rng
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, asked: Asked) -> Seen:
        """Send one request and say what became of it. Never raises but when cancelled."""
        clock = asyncio.get_running_loop().time
        began = clock()
        firsts: list[float] = []

        def first() -> None:
            firsts.append(clock())

        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                outcome, why = await self._ask(asked, first)
        except TimeoutError:
            outcome, why = Outcome.LOST, f"no end within {ANSWER_SECONDS:g} s"
        except (OSError, BrokenAnswer, asyncio.IncompleteReadError, ValueError, LookupError) as error:
            outcome, why = Outcome.LOST, f"{type(error).__name__}: {error}"
        if outcome is Outcome.LOST:
            self.close()
        return Seen(outcome, why, began, firsts[0] if firsts else None, clock())

    async def _ask(self, asked: Asked, first: Callable[[], None]) -> tuple[Outcome, str]:
        if self._writer is None:
            port = self._rng.choice(list(self._ports))
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port, limit=BUFFER_BYTES)
        assert self._reader is not None
        lines = [f"POST {CHAT} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
        lines += [f"content-length: {len(asked.body)}", *(f"{name}: {value}" for name, value in asked.headers.items())]
        if not self._keep:
            lines.append("connection: close")
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + asked.body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in head[1:] if line)
        response = Response(int(head[0].split(" ")[1]), {n.lower(): v.strip() for n, _, v in fields}, self._reader)
        outcome = await _read(response, asked, first)
        if (
            not self._keep
            or response.headers.get("connection", "").lower() == "close"
            or outcome[0] is Outcome.ERROR_EVENT
        ):
            self.close()
        return outcome

    def close(self) -> None:
        """Cut the connection, if there is one."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None


async def _read(response: Response, asked: Asked, first: Callable[[], None]) -> tuple[Outcome, str]:
    if response.status != 200 or not asked.tokens:
        body = await response.body()
        first()
        content = json.loads(body)
        if response.status == 200:
            content["choices"][0]["message"]["content"]
            return Outcome.ANSWERED, ""
        words = f"{response.status}: {content['error']['message']}"
        waits = response.status in (429, 503) and int(response.headers.get("retry-after", "0")) > 0
        return (Outcome.REFUSED if waits else Outcome.FAILED), words
    tokens, done = 0, False
    async for _, data in response.events():
        if data == DONE:
            # What is left is the end of the chunks; a connection without it cannot be kept.
            done = True
            continue
        event = json.loads(data)
        if "error" in event:
            return Outcome.ERROR_EVENT, str(event["error"]["message"])
        if event.get("choices"):
            if tokens == 0:
                first()
            tokens += 1
    if done and tokens == asked.tokens:
        return Outcome.ANSWERED, ""
    return Outcome.LOST, f"ended after {tokens} of {asked.tokens} tokens, {'with' if done else 'without'} [DONE]"


async def keep_asking(client: Client, make: Callable[[], Asked], tally: Tally, over: asyncio.Event) -> None:
    """One request after the other until it is over; the last one is waited for."""
    try:
        while not over.is_set():
            tally.sent += 1
            seen = await client.ask(make())
            tally.add(seen)
            if seen.outcome is not Outcome.ANSWERED:
                await asyncio.sleep(0.05)  # a real client waits longer; none goes round like mad
    finally:
        client.close()
