"""The step loop: read what the front end wants, run a step, send what came of it.

Where a device runs the steps, a step's outputs are sent while the device is at work on the next one: it then waits for
the host for less long. Without one they are sent at once, since the host computes the next step itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Protocol

from paceline_runtime.engine.scheduler import Refused
from paceline_runtime.messages import (
    Abort,
    AddRequest,
    CoreMessage,
    Drain,
    EngineStats,
    FrontMessage,
    Ready,
    RejectCode,
    Rejected,
    Shutdown,
    StepOutputs,
    Tune,
    Tuned,
)

from .channel import Channel

HEARTBEAT_SECONDS = 1.0
BLOCKED_SECONDS = 0.001

log = logging.getLogger(__name__)


class Engine(Protocol):
    """What the loop needs of `LLMEngine`."""

    ready: Ready

    @property
    def idle(self) -> bool: ...
    @property
    def overlaps(self) -> bool: ...
    def add_request(self, message: AddRequest) -> None: ...
    def abort(self, request_id: str) -> bool: ...
    def begin(self) -> None: ...
    def finish(self) -> StepOutputs | None: ...
    def delivered(self, seconds: float) -> None: ...
    def stats(self) -> EngineStats: ...
    def check_integrity(self) -> None: ...
    def tune(self, knobs: Mapping[str, int]) -> dict[str, int]: ...
    @property
    def knobs(self) -> dict[str, int]: ...


class CoreLoop:
    """Runs until the front end asks for the end (`run` returns) or something breaks (it raises)."""

    def __init__(self, engine: Engine, channel: Channel) -> None:
        self._engine = engine
        self._channel = channel
        self._draining = False
        self._stopped = False
        self._last_report = 0.0
        self._checked = True
        self._unsent: StepOutputs | None = None

    def run(self) -> None:
        """Report ready, then step for as long as there is a front end.

        Raises:
            ChannelClosed: if the front end is gone.
            Exception: whatever a step raises: the engine's state is then not to be trusted any more.
        """
        self._send(self._engine.ready)
        patience = HEARTBEAT_SECONDS
        while not self._stopped:
            for message in self._channel.receive(patience):
                self._handle(message)
            outputs = self._step()
            patience = 0.0
            if outputs is not None:
                self._checked = False
                self._unsent = outputs
                if not self._engine.overlaps or self._engine.idle:
                    self._deliver()
            elif self._engine.idle:
                self._rest()
                patience = 0.0 if self._draining else HEARTBEAT_SECONDS
            else:
                # Requests wait for something that no step of ours brings about, e.g. a place that a client frees.
                patience = BLOCKED_SECONDS
        self._deliver()

    def _step(self) -> StepOutputs | None:
        try:
            self._engine.begin()
        finally:
            # Whatever becomes of this step, those before it have been made.
            self._deliver()
        return self._engine.finish()

    def _deliver(self) -> None:
        """Send what the last step made, if that was not done yet."""
        outputs, self._unsent = self._unsent, None
        if outputs is not None:
            started = time.monotonic()
            self._send(outputs)
            self._engine.delivered(time.monotonic() - started)

    def _rest(self) -> None:
        if not self._checked:
            self._engine.check_integrity()
            self._checked = True
        if self._draining:
            log.info("drained: no request is left")
            self._stopped = True
        elif time.monotonic() - self._last_report >= HEARTBEAT_SECONDS:
            self._send(StepOutputs([], self._engine.stats()))

    def _handle(self, message: FrontMessage) -> None:
        match message:
            case AddRequest():
                self._add(message)
            case Abort(request_ids):
                for request_id in request_ids:
                    self._engine.abort(request_id)
                self._checked = False
            case Tune(knobs):
                self._tune(knobs)
            case Drain():
                self._draining = True
            case Shutdown():
                self._stopped = True

    def _add(self, message: AddRequest) -> None:
        try:
            if self._draining:
                raise Refused(RejectCode.DRAINING, "this replica is shutting down and takes no more requests")
            self._engine.add_request(message)
        except Refused as refused:
            self._send(Rejected(message.request_id, refused.message, refused.code, refused.retry_after))

    def _tune(self, knobs: Mapping[str, int]) -> None:
        try:
            found = Tuned(self._engine.tune(knobs))
        except ValueError as error:
            found = Tuned(self._engine.knobs, str(error))
        else:
            log.info("from the next step on: %s", ", ".join(f"{name} {value}" for name, value in found.knobs.items()))
        self._send(found)

    def _send(self, message: CoreMessage) -> None:
        if isinstance(message, StepOutputs):
            self._last_report = time.monotonic()
        self._channel.send(message)
