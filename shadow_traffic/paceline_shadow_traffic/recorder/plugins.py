"""Users' own comparisons: functions of the entry point group `paceline.comparisons`, each in a process of its own.

    def score(request: dict, base: dict, candidate: dict) -> float | None

`request` is the body of the request; an answer has `text`, `finish_reason`, `refusal` and `tool_calls` (each with
`name` and `arguments`). The score is from 0 (as good) to 1; None: it is no question here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import entry_points
from typing import Any, Final

from paceline_shadow_traffic.answers import Answer

log = logging.getLogger(__name__)

GROUP: Final = "paceline.comparisons"

MAX_MESSAGE: Final = 16 * 1024 * 1024
START_SECONDS: Final = 30.0
"""For the process to import the plugin, which may be slow; it answers once before it is asked anything."""

OFF_AFTER: Final = 5
OFF_SECONDS: Final = 60.0
"""So many failures in a row, and it is left alone for so long."""

OUTCOMES: Final = ("scored", "none", "failed", "timeout", "off")
"""`failed`: it raised, returned no number from 0 to 1, or its process ended; `off`: not asked, after many failures."""


class PluginError(RuntimeError):
    """The process did not answer as it should."""


def installed() -> list[str]:
    """Names of the plugins of this environment."""
    return sorted({point.name for point in entry_points(group=GROUP)})


class Plugin:
    """One plugin. Its process is started when it is first needed, and again after it was ended.

    Args:
        timeout: seconds for one score.
    """

    def __init__(self, name: str, timeout: float, now: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self._timeout = timeout
        self._now = now
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._failures = 0
        self._off_until = -math.inf

    def score(self, request: Mapping[str, Any], base: Answer, candidate: Answer) -> float | None:
        """The score, or None where there is none for whatever reason; never raises, and never takes longer than a start
        and the time-out.
        """
        if self._now() < self._off_until:
            self.outcomes["off"] += 1
            return None
        outcome, value = self._ask({"request": request, "base": asdict(base), "candidate": asdict(candidate)})
        self.outcomes[outcome] += 1
        self._failures = self._failures + 1 if outcome in ("failed", "timeout") else 0
        if self._failures >= OFF_AFTER:
            self._failures = 0
            self._off_until = self._now() + OFF_SECONDS
            log.warning("the comparison %s failed %d times in a row, the last time: %s", self.name, OFF_AFTER, outcome)
        return value

    def close(self) -> None:
        """End its process."""
        process, self._process = self._process, None
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()
        if process is not None:
            # All of its group: what it has started itself would stay, once for each time that it is ended.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _ask(self, question: Mapping[str, Any]) -> tuple[str, float | None]:
        try:
            connection = self._connected()
            connection.settimeout(self._timeout)
            send(connection, question)
            answer = receive(connection, self._timeout)
        except TimeoutError:
            self.close()
            return "timeout", None
        except (OSError, ValueError, PluginError):
            self.close()
            return "failed", None
        value = answer.get("score")
        if value is None:
            return ("failed" if "error" in answer else "none"), None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
            return "failed", None
        return "scored", float(value)

    def _connected(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._socket is not None:
            return self._socket
        ours, theirs = socket.socketpair()
        with theirs:
            # Whatever it prints may have texts of clients in it, and this process's output is a log.
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.plugin_process", self.name, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        self._socket = ours
        receive(ours, START_SECONDS)
        return ours


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """One message: its length (4 bytes, big endian), then JSON."""
    raw = json.dumps(message).encode()
    connection.sendall(struct.pack(">I", len(raw)) + raw)


def receive(connection: socket.socket, seconds: float | None = None) -> dict[str, Any]:
    """The next message.

    Args:
        seconds: in which all of it has to be there; None: as long as it takes.

    Raises:
        PluginError: the other side is gone, or it is no message.
        TimeoutError: it is not there in time.
    """
    until = None if seconds is None else time.monotonic() + seconds
    (length,) = struct.unpack(">I", _exactly(connection, 4, until))
    if length > MAX_MESSAGE:
        raise PluginError("the message is too long")
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(_exactly(connection, length, until))
        if isinstance(value, dict):
            return value
    raise PluginError("the message is no JSON object")


def _exactly(connection: socket.socket, size: int, until: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        if until is not None:
            left = until - time.monotonic()
            if left <= 0.0:
                raise TimeoutError
            connection.settimeout(left)
        part = connection.recv(size - len(parts))
        if not part:
            raise PluginError("the process has ended")
        parts += part
    return bytes(parts)
