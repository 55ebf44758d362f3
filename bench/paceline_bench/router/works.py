"""What is sent: whole HTTP requests for the load generator, and the loads that are timed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL = "mock"
SERVICE = "bench/mock"
CHAT = "/v1/chat/completions"
UNIQUE = "0123456789abcdef"
"""Stands where the load generator writes another number in every request."""
VARIANTS = 64
SHARED_TEXTS = 16
SHARED_PART = 0.75
TENANTS = 8
CHUNKS = 64
GAP_MS = 10
SESSIONS_SHARE = 0.25

_TEXT = (
    "the a of to in router replica request answer token prompt cache block queue session tenant weight stream shape "
    "pool model server client begins ends waits moves keeps counts quickly slowly together alone again before after"
)
WORDS = _TEXT.split()


@dataclass(frozen=True)
class Work:
    """One load.

    Attributes:
        name: `json` or `sse`.
        connections: that send one request at a time each.
        body_bytes: length of the prompt's text; the JSON around it comes on top.
        gap_ms: between the chunks of a stream.
    """

    name: str
    connections: int
    body_bytes: int
    gap_ms: int = GAP_MS

    @property
    def streamed(self) -> bool:
        return self.name == "sse"

    @property
    def spread_seconds(self) -> float:
        """Over which the first streams begin, so that they do not march in step."""
        return CHUNKS * self.gap_ms / 1000 if self.streamed else 0.0

    @property
    def label(self) -> str:
        """For people."""
        size = f"{self.body_bytes} B" if self.body_bytes < 1024 else f"{self.body_bytes // 1024} KB"
        return f"{self.name} {size}, {self.connections} connections"


WORKS = (
    Work("json", 32, 64),
    Work("json", 256, 64),
    Work("json", 1024, 64),
    Work("json", 32, 4096),
    Work("json", 32, 32768),
    Work("sse", 256, 64),
)


def write_requests(path: Path, work: Work, *, identical: bool = False) -> None:
    """Write the requests of a load in the form that `load.c` reads.

    Half of the prompts are another text each time; the other half begin with one of a few long texts, as system prompts
    do, and differ after it. `identical`: one text for all.
    """
    rng = random.Random(f"{work.name} {work.body_bytes}")
    shared = [words(rng, int(work.body_bytes * SHARED_PART)) for _ in range(SHARED_TEXTS)]
    made = []
    for number in range(1 if identical else VARIANTS):
        text = prompt(rng, work.body_bytes, rng.choice(shared) if number % 2 else "", unique=not identical)
        headers = {"x-paceline-tenant": f"team-{rng.randrange(TENANTS)}"}
        if rng.random() < SESSIONS_SHARE:
            headers["x-paceline-session"] = f"s{rng.randrange(1000)}"
        made.append(http_request(chat_body(text, work), headers))
    save(path, made)


def save(path: Path, requests: Iterable[bytes]) -> None:
    """Write whole requests for the load generator, each with the place of what differs each time, -1 for nowhere."""
    with path.open("wb") as file:
        for data in requests:
            file.write(b"%d %d\n" % (len(data), data.find(UNIQUE.encode())))
            file.write(data)


def prompt(rng: random.Random, size: int, shared: str, *, unique: bool = True) -> str:
    """A text of `size` bytes: what is shared, then what is another number each time, then more words."""
    start = shared[: size - len(UNIQUE)] + (UNIQUE if unique else "")
    return start + words(rng, size - len(start))


def words(rng: random.Random, size: int) -> str:
    """Running words, exactly `size` bytes of them."""
    text = ""
    while len(text) < size:
        text += " ".join(rng.choices(WORDS, k=32)) + " "
    return text[: max(0, size)]


def chat_body(text: str, work: Work) -> bytes:
    """The JSON of one request. `seed` tells the replica the gap: some routers drop fields that OpenAI does not have."""
    fields: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    if work.streamed:
        fields |= {"stream": True, "max_tokens": CHUNKS, "seed": work.gap_ms}
    else:
        fields["max_tokens"] = 16
    return json.dumps(fields, separators=(",", ":")).encode()


def http_request(body: bytes, headers: dict[str, str]) -> bytes:
    """Head and body as an SDK would send them."""
    lines = [
        f"POST {CHAT} HTTP/1.1",
        "host: 127.0.0.1",
        "accept: application/json",
        "content-type: application/json",
        "user-agent: OpenAI/Python 2.8.0",
        "authorization: Bearer sk-none",
        *(f"{name}: {value}" for name, value in headers.items()),
        f"content-length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def select(names: Sequence[str]) -> list[Work]:
    """Loads by name: `json`, `sse`, or one of them with its prompt size (`json:4096`) or that and connections
    (`json:64:32`).

    Raises:
        ValueError: a name that no load has.
    """
    chosen: list[Work] = []
    for name in names:
        found = [w for w in WORKS if f"{w.name}:{w.body_bytes}:{w.connections}:".startswith(f"{name}:")]
        if not found:
            raise ValueError(
                f"no load is called {name}; there are "
                + ", ".join(f"{w.name}:{w.body_bytes}:{w.connections}" for w in WORKS)
            )
        chosen += [work for work in found if work not in chosen]
    return chosen
