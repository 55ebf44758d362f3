"""One of several router processes: `python -m paceline_router.processes.worker`, with its orders on standard input."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from paceline_router.epp.start import PickerOptions
from paceline_router.settings import Settings


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker is to do.

    Attributes:
        settings: of this process; limits are its share.
        token: of its own admin port, which only the supervisor asks.
        config: routes file; None: the table comes from Kubernetes.
        log_level: a number of the module `logging`.
        picker: the endpoint picker, whose port the processes share too.
        heartbeat: the pipe for signs of life, which the process has inherited.
    """

    host: str
    port: int
    token: str
    settings: Settings
    config: str | None
    log_level: int
    picker: PickerOptions | None = None
    heartbeat: int | None = None

    def encode(self) -> bytes:
        """One line."""
        return msgspec.json.encode(dataclasses.asdict(self)) + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Orders:
        """The orders in a line that `encode` made."""
        fields: dict[str, Any] = msgspec.json.decode(line)
        picker = fields["picker"] and PickerOptions(**fields["picker"])
        return cls(**{**fields, "settings": Settings(**fields["settings"]), "picker": picker})


def _leave_with_the_supervisor(orders: io.FileIO) -> None:
    """Where the orders come from ends when the supervisor does, however that came about, and then nobody would end this
    process.
    """
    orders.read(1)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Run until SIGTERM; the exit code."""
    # Without a buffer, whose lock a thread that waits for ever would hold at the interpreter's end.
    source = io.FileIO(sys.stdin.fileno(), closefd=False)
    orders = Orders.decode(source.readline())
    from paceline_router.commands import run_here, set_up_logging
    from paceline_router.report.tokens import AdminToken
    from paceline_router.server import Listen

    set_up_logging(orders.log_level)
    threading.Thread(target=_leave_with_the_supervisor, args=(source,), name="supervisor", daemon=True).start()
    listen = Listen(orders.host, orders.port, 0, admin_host="127.0.0.1", shared=True, picker=orders.picker)
    config = Path(orders.config) if orders.config else None
    return run_here(listen, orders.settings, AdminToken(value=orders.token), config, orders.heartbeat)


if __name__ == "__main__":
    raise SystemExit(main())
