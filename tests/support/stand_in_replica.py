"""Stand-ins for replicas: they say over HTTP what a test wants them to say of their load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

PORT = 8000


@dataclass
class Load:
    """What one look at a replica's counters adds to them, and its gauges.

    Attributes:
        seconds: of steps, for each look.
    """

    requests: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    seconds: float = 0.0
    steps: float = 0.0
    waiting: int = 0
    running: int = 0
    backlog: int = 0


async def _answer_one(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Callable[[str], tuple[int, str] | None]
) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    said = answer(head.split(b" ")[1].decode())
    if said is not None:
        status, body = said
        kind = "content-type: application/json\r\n" if body.startswith("{") else ""
        writer.write(f"HTTP/1.0 {status} X\r\n{kind}content-length: {len(body)}\r\n\r\n{body}".encode())
    writer.close()


@dataclass
class StandInRouter:
    """A router that holds requests for services, by `namespace/name`, and sends none to any replica."""

    held: dict[str, int] = field(default_factory=dict)
    port: int = 0
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _answer_one(reader, writer, self._answer)

    def _answer(self, path: str) -> tuple[int, str]:
        if path == "/v1/paceline/status":
            return 200, json.dumps({"services": {key: {"held": held} for key, held in self.held.items()}})
        if path == "/v1/paceline/routes":
            return 200, json.dumps({"synced": True, "services": {}})
        return 404, "{}"


@dataclass
class StandIn:
    """One replica on an address of its own."""

    address: str
    load: Load = field(default_factory=Load)
    silent: bool = False
    asked: int = 0
    """How often it was asked for its load."""
    _totals: dict[str, float] = field(default_factory=dict)
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.address, PORT)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    def page(self) -> str:
        """The page of `/metrics`, after a look."""
        load, totals = self.load, self._totals
        for name, value in (
            ('paceline_requests_received_total{endpoint="chat"}', load.requests),
            ("paceline_prefill_tokens_computed_total", load.prefill),
            ("vllm:generation_tokens_total", load.decode),
            ('paceline_step_phase_seconds_total{phase="forward"}', load.seconds),
            ("paceline_engine_steps_total", load.steps),
        ):
            totals[name] = totals.get(name, 0.0) + value
        gauges = {
            "vllm:num_requests_waiting": load.waiting,
            "vllm:num_requests_running": load.running,
            "paceline_prefill_tokens": load.backlog,
            "vllm:kv_cache_usage_perc": 0.5,
        }
        return "".join(f"{name} {value}\n" for name, value in {**totals, **gauges}.items())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _answer_one(reader, writer, lambda path: None if self.silent else self._answer(path))

    def _answer(self, path: str) -> tuple[int, str]:
        if path == "/metrics":
            return 200, self.page()
        if path == "/v1/paceline/load":
            self.asked += 1
            said = {"v": 1, "running": self.load.running, "waiting": self.load.waiting, "kv_percent": 0}
            return 200, json.dumps({**said, "prefill_tokens": 0, "decode_tokens": 0, "sequence": 1})
        return 404, "{}"
