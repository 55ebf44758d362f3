"""Stand-ins for replicas: they say over HTTP what a test wants them to say of their load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

PORT = 8000
KNOBS = {"maxNumSeqs": 32, "maxBatchedTokens": 2048, "prefillChunkTokens": 512}
"""What the operator's defaults start a replica with."""
BOUNDS = ("0.01", "0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "+Inf")
"""Of buckets of seconds for a token."""


@dataclass
class Load:
    """What one look at a replica's counters adds to them, and its gauges.

    Attributes:
        seconds: of steps, for each look.
        ended: requests that ended, each with `tpot` seconds for a token.
    """

    requests: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    seconds: float = 0.0
    steps: float = 0.0
    waiting: int = 0
    running: int = 0
    backlog: int = 0
    ended: int = 0
    tpot: float = 0.05


async def _answer_one(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: Callable[[str, str], tuple[int, str] | None],
) -> None:
    """`answer` gets the path and the body, and gives nothing where nobody is to get an answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next((line.split(":")[1] for line in head.split("\r\n") if line.startswith("content-length:")), "0")
    said = answer(head.split(" ")[1], (await reader.readexactly(int(length))).decode())
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

    def _answer(self, path: str, _: str) -> tuple[int, str]:
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
    started: dict[str, int] = field(default_factory=lambda: {**KNOBS})
    """What its knobs were started with; none: its release has none."""
    knobs: dict[str, int] = field(default_factory=dict)
    """Those that were changed since."""
    config: dict[str, Any] | None = None
    """What it says it was started with, for drift; None: nothing."""
    refuses: bool = False
    told: list[dict[str, int]] = field(default_factory=list)
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
        for bound in BOUNDS:
            name = f'vllm:request_time_per_output_token_seconds_bucket{{le="{bound}"}}'
            totals[name] = totals.get(name, 0.0) + (load.ended if load.tpot <= float(bound) else 0)
        totals.setdefault("vllm:num_preemptions_total", 0.0)
        gauges = {
            "vllm:num_requests_waiting": load.waiting,
            "vllm:num_requests_running": load.running,
            "paceline_prefill_tokens": load.backlog,
            "vllm:kv_cache_usage_perc": 0.5,
            **{f'paceline_knob_set{{knob="{name}"}}': value for name, value in self.started.items()},
            **{
                f'paceline_knob_in_effect{{knob="{name}"}}': value
                for name, value in {**self.started, **self.knobs}.items()
            },
        }
        return "".join(f"{name} {value}\n" for name, value in {**totals, **gauges}.items())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _answer_one(reader, writer, lambda path, body: None if self.silent else self._answer(path, body))

    def _answer(self, path: str, body: str) -> tuple[int, str]:
        if path == "/metrics":
            return 200, self.page()
        if path == "/v1/paceline/load":
            self.asked += 1
            said = {"v": 1, "running": self.load.running, "waiting": self.load.waiting, "kv_percent": 0}
            return 200, json.dumps({**said, "prefill_tokens": 0, "decode_tokens": 0, "sequence": 1})
        if path == "/v1/paceline/tuning" and self.started:
            if self.refuses:
                return 400, json.dumps({"error": {"message": "no such knobs here"}})
            self.knobs = json.loads(body)["knobs"]
            self.told.append(self.knobs)
            return 200, json.dumps({"set": self.started, "inEffect": {**self.started, **self.knobs}})
        if path == "/v1/paceline/config" and self.config is not None:
            parameters = dict(self.config["parameters"])
            for name, value in self.knobs.items():
                parameters[name] = {"value": value, "origin": "tuned", "set": parameters[name]}
            return 200, json.dumps({**self.config, "parameters": parameters})
        return 404, "{}"
