"""Everything one replica's front end holds, and its phase of life."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from paceline_crds.runtime_config import RuntimeConfig
from paceline_crds.tuning import TUNED, Knob
from paceline_runtime.messages import Ready

from .engine_client import EngineClient
from .errors import ApiError, unavailable
from .health import (
    PROBE_PATIENCE_SECONDS,
    QUIET_SECONDS,
    Signs,
    Verdict,
    live_bound,
    liveness,
    longest_steps,
    ready_bound,
)
from .metrics import Metrics
from .requests import RequestLog
from .submission import EngineGone
from .tokenizer import Tokenizer


class Phase(enum.StrEnum):
    """Of the process's life, in this order."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    DEAD = "dead"
    """The engine core is gone; the process is about to exit."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What concerns the front end only.

    Attributes:
        max_body_bytes: a longer request body is refused with 413.
        liveness_seconds: how long a step of the engine may take before the replica counts as dead.
        drain_seconds: how long running requests may go on after SIGTERM.
        trace: file for a Chrome trace of the engine's steps.
        linger_seconds: how long a draining replica goes on answering 503 at least, so that routers see it first.
    """

    max_body_bytes: int = 8 * 1024 * 1024
    liveness_seconds: float = 120.0
    drain_seconds: float = 600.0
    linger_seconds: float = 1.0
    trace: Path | None = None


@dataclass(slots=True)
class Replica:
    """The state that routes read."""

    config: RuntimeConfig
    options: ServerOptions
    engine: EngineClient
    metrics: Metrics
    pool_hash: str
    requests: RequestLog = field(default_factory=RequestLog)
    created: int = field(default_factory=lambda: int(time.time()))
    phase: Phase = Phase.STARTING
    dead_reason: str = ""
    _tokenizer: Tokenizer | None = None
    _ready: Ready | None = None
    _effective: dict[str, Any] = field(default_factory=dict)
    _config_hash: str = ""
    _tuning: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def model_name(self) -> str:
        """What clients send as `model`."""
        return self.config.model.served_name

    def serve(self, tokenizer: Tokenizer, ready: Ready) -> None:
        """The engine is ready: take requests from now on."""
        self._tokenizer, self._ready = tokenizer, ready
        self._effective = effective_config(self.config, ready)
        self._config_hash = config_hash(self._effective)
        self.metrics.configured(self.pool_hash, self._config_hash)
        knobs = self.started_knobs
        self.metrics.knobs(knobs, knobs)
        self.metrics.engine_ready(ready)
        self.metrics.progress(self._since_progress, self._live_bound)
        if self.phase is Phase.STARTING:
            self.phase = Phase.SERVING

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises: ApiError: 503 before the model is loaded."""
        if self._tokenizer is None:
            raise unavailable("The model is still loading; try again soon.")
        return self._tokenizer

    @property
    def ready(self) -> Ready:
        """The engine's facts. Raises: ApiError: 503 before the model is loaded."""
        if self._ready is None:
            raise unavailable("The model is still loading; try again soon.")
        return self._ready

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together, as in effect."""
        value = self.ready.parameters["maxModelLen"].value
        assert isinstance(value, int)
        return value

    @property
    def effective(self) -> dict[str, Any]:
        """The effective configuration, for `GET /v1/paceline/config`."""
        return self._effective

    @property
    def config_hash(self) -> str:
        """Of the configuration that it was started with; empty before it is known."""
        return self._config_hash

    @property
    def etag(self) -> str:
        """Of `effective`: the hash of the configuration, and behind it the knobs that are not as at the start."""
        started = self.started_knobs
        tuned = [f"{name}={value}" for name, value in sorted(self.knobs.items()) if value != started[name]]
        return "-".join((self._config_hash, *tuned))

    @property
    def started_knobs(self) -> dict[str, int]:
        """What each knob was at the start, by camelCase name."""
        return knobs_of({name: {"value": item.value} for name, item in self.ready.parameters.items()})

    @property
    def knobs(self) -> dict[str, int]:
        """What each knob is now."""
        return knobs_of(self._effective["parameters"])

    async def tune(self, knobs: Mapping[str, int]) -> None:
        """Run with other knobs from the next step on, and those that are not named as at the start.

        Raises:
            ValueError: with what to write instead, if they cannot be; nothing has changed then.
            EngineGone: when there is no engine.
        """
        async with self._tuning:  # what is told here is what the engine does, in its order
            found = await self.engine.tune(knobs)
            self._effective = with_knobs(effective_config(self.config, self.ready), found.knobs)
            self.metrics.knobs(self.started_knobs, found.knobs)
        if found.problem:
            raise ValueError(found.problem)

    def refusal(self, *, new_work: bool) -> ApiError | None:
        """Why a request under `/v1/` cannot be answered now, if so.

        Args:
            new_work: whether it asks for generation; reading state stays possible while the replica drains.
        """
        if self.phase is Phase.STARTING:
            return unavailable("The model is still loading; try again soon.", retry_after=(2, 5))
        if self.phase is Phase.DEAD:
            return unavailable("The engine of this replica has failed.", close=True)
        if self.phase is Phase.DRAINING and new_work:
            return unavailable("This replica is shutting down and takes no more requests.", close=True)
        return None

    def live(self, now: float) -> Verdict:
        """Whether the engine lives, by what is known now."""
        return self._verdict(now, self._live_bound)

    @property
    def _live_bound(self) -> float:
        return live_bound(self.options.liveness_seconds, self._longest_steps)

    @property
    def _longest_steps(self) -> float:
        return 0.0 if self._ready is None else longest_steps(self._ready)

    def _since_progress(self) -> float:
        progress_at = self.engine.progress_at
        assert progress_at is not None, "an engine that is ready has said so"
        return time.monotonic() - progress_at

    def _verdict(self, now: float, bound: float) -> Verdict:
        if self.phase is Phase.DEAD:
            return Verdict(False, self.dead_reason)
        engine = self.engine
        return liveness(
            Signs(
                core_alive=not engine.gone.done(),
                ready=engine.ready.done(),
                busy=engine.busy,
                heard_at=engine.stats_at if engine.stats_at is not None else engine.progress_at,
                progress_at=engine.progress_at,
                probed_at=engine.probed_at,
            ),
            now=now,
            bound=bound,
        )

    async def check_life(self) -> Verdict:
        """For `/health/live`: an engine that made nothing lately is asked for one token first."""
        now = time.monotonic()
        engine = self.engine
        produced_at = engine.produced_at
        quiet = produced_at is None or now - produced_at > QUIET_SECONDS
        if quiet and self._ready is not None and engine.connected:
            with contextlib.suppress(EngineGone):
                await engine.probe(self._probe_token(self._ready), PROBE_PATIENCE_SECONDS)
        verdict = self.live(time.monotonic())
        if not verdict.ok:
            # This process may itself have been held up, with the engine's word waiting in the socket.
            await asyncio.sleep(0.05)
            verdict = self.live(time.monotonic())
        return verdict

    @staticmethod
    def _probe_token(ready: Ready) -> int:
        begin = ready.model.bos_token_id
        return begin if begin is not None else next(iter(ready.model.eos_token_ids), 0)

    def takes_traffic(self, now: float) -> Verdict:
        """For `/health/ready`."""
        if self.phase is not Phase.SERVING:
            return Verdict(False, f"the replica is {self.phase}")
        return self._verdict(now, ready_bound(self.options.liveness_seconds, self._longest_steps))


def effective_config(config: RuntimeConfig, ready: Ready) -> dict[str, Any]:
    """Each parameter as it is in effect, with its origin; `measured` ones are what the engine found out itself."""
    return {
        "model": {"source": config.model.source, "servedName": config.model.served_name},
        "model_digest": ready.model.digest,
        "architecture": ready.model.architecture,
        "dtype": ready.dtype,
        "device": ready.device,
        "parameters": {
            name: {"value": item.value, "origin": item.origin} for name, item in sorted(ready.parameters.items())
        },
    }


def knobs_of(parameters: Mapping[str, Any]) -> dict[str, int]:
    """The knobs among parameters as `effective_config` has them."""
    return {knob.value: int(parameters[knob]["value"]) for knob in Knob if knob in parameters}


def with_knobs(effective: dict[str, Any], knobs: Mapping[str, int]) -> dict[str, Any]:
    """The effective configuration with knobs as they are by now; one that was changed says what it was set to before.

    Args:
        effective: as at the start.
    """
    parameters = dict(effective["parameters"])
    for name, value in knobs.items():
        if parameters[name]["value"] != value:
            parameters[name] = {"value": value, "origin": TUNED, "set": parameters[name]}
    return {**effective, "parameters": parameters}


def config_hash(effective: dict[str, Any]) -> str:
    """A digest of what was configured and is in effect.

    What a replica found out about its machine is left out, so that two replicas with the same settings have the same
    hash. So is where values came from: drift is judged by value.
    """
    covered = {
        **{key: value for key, value in effective.items() if key != "device"},
        "parameters": {
            name: item["value"] for name, item in effective["parameters"].items() if item["origin"] != "measured"
        },
    }
    return hashlib.sha256(msgspec.json.encode(covered, order="sorted")).hexdigest()[:16]
