"""The benchmark's side of a worker process: start, ask, hold still, end."""

from __future__ import annotations

import json
import select
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .processes import ProcessGroup

SCRIPT = Path(__file__).parent / "workers" / "main.py"
END_SECONDS = 10.0


class WorkerError(Exception):
    """A system could not do what it was asked for; the message has its words."""


@dataclass(frozen=True)
class Reply:
    """What came of a request. Seconds are measured inside the worker; those of the CPU are over all its threads."""

    value: Any
    seconds: float
    cpu_seconds: float


class Worker(ProcessGroup):
    """One process with one system in it.

    Args:
        name: for messages.
        python: the interpreter in which the system is installed.
        backend: `workers/on_BACKEND.py`.
        environment: added to this process's.
        log: file that takes what the worker prints.
    """

    def __init__(self, name: str, python: str, backend: str, environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        super().__init__([python, str(SCRIPT), backend], environment=environment, log=log, piped=True)

    def ask(self, operation: str, timeout: float, **arguments: Any) -> Reply:
        """Have it do something.

        Raises:
            WorkerError: it failed, ended, or took longer than `timeout` seconds.
        """
        request = json.dumps({"op": operation, **arguments}) + "\n"
        try:
            self.stdin.write(request.encode())
            self.stdin.flush()
        except OSError:
            raise WorkerError(self.words(f"{self.name} ended with {self.wait(END_SECONDS)}")) from None
        if not select.select([self.stdout], [], [], timeout)[0]:
            raise WorkerError(self.words(f"{self.name} did not answer {operation!r} in {timeout:g} s"))
        line = self.stdout.readline()
        if not line:
            raise WorkerError(self.words(f"{self.name} ended with {self.wait(END_SECONDS)}"))
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(f"{self.name}: {reply['error']}")
        return Reply(**reply)
