"""The loop of a worker: `python main.py BACKEND`, requests on stdin, answers on stdout, everything else on stderr.

A request is `{"op": NAME, …}` with the arguments of the backend's method NAME; an answer is `{"value": …, "seconds": …,
"cpu_seconds": …}` or `{"error": …}`. The first request is `load`, whose arguments the backend's constructor takes.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
import traceback
from typing import Any


def cpu_seconds() -> float:
    """User and system time of this process so far, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def answer(backend: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Do what a request asks for, timed."""
    operation = request.pop("op")
    started, used = time.perf_counter(), cpu_seconds()
    value = getattr(backend, operation)(**request)
    return {"value": value, "seconds": time.perf_counter() - started, "cpu_seconds": cpu_seconds() - used}


def main() -> None:
    """Answer until stdin ends."""
    # Libraries print to stdout as they like: only this copy of it is the benchmark's.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    backend: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["op"] == "load":
                started = time.perf_counter()
                del request["op"]
                backend = importlib.import_module(f"on_{sys.argv[1]}").Backend(**request)
                reply = {"value": backend.versions(), "seconds": time.perf_counter() - started, "cpu_seconds": 0.0}
            else:
                reply = answer(backend, request)
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        channel.write(json.dumps(reply) + "\n")
        channel.flush()


if __name__ == "__main__":
    main()
