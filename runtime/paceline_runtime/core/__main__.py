"""`python -m paceline_runtime.core --socket PATH --config FILE`: started by the front end, never by hand."""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from paceline_crds import logs
from paceline_crds.names import ENV_POOL_HASH
from paceline_runtime import garbage
from paceline_runtime.config import StartupError, load_file
from paceline_runtime.messages import Fatal, ProtocolError

from .channel import Channel, ChannelClosed
from .loop import CoreLoop
from .threads import settle

EXIT_STEP_FAILED = 70
"""Exit code when a step raised (sysexits EX_SOFTWARE)."""

_PR_SET_PDEATHSIG = 1

log = logging.getLogger("paceline_runtime.core")


def main() -> int:
    """Run the core; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m paceline_runtime.core", description=__doc__)
    parser.add_argument("--socket", required=True, type=Path, help="Unix-domain socket on which the front end listens")
    parser.add_argument("--config", required=True, type=Path, help="config file with every parameter resolved")
    parser.add_argument("--trace", type=Path, help="file that each step is written to, for chrome://tracing")
    arguments = parser.parse_args()
    level = logging.getLevelNamesMapping()[os.environ.get("PACELINE_LOG_LEVEL", "INFO").upper()]
    logs.set_up(level, component="core", identity={"revision": os.environ.get(ENV_POOL_HASH, "")})
    _follow_parent()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(arguments.socket))
    except OSError as error:
        log.error("nobody listens on %s: %s", arguments.socket, error.strerror or error)
        return 1
    channel = Channel(connection)
    try:
        return serve(channel, arguments.config, arguments.trace)
    finally:
        channel.close()


def serve(channel: Channel, config_path: Path, trace_path: Path | None = None) -> int:
    """Load what the config file names and step until the front end has had enough; the exit code.

    Every failure is told to the front end before it is returned.
    """
    try:
        config = load_file(config_path)
        # Imported late: torch takes seconds and a wrong file should be told at once; and it reads these variables.
        settle(os.environ)
        from paceline_runtime.engine.llm import LLMEngine
        from paceline_runtime.engine.trace import open_trace

        trace = open_trace(trace_path) if trace_path is not None else None
        log.info("loading %s", config.model.source)
        engine = LLMEngine(config, trace=trace)
    except StartupError as error:
        log.error("%s", error)
        return _fail(channel, str(error), error.exit_code)
    except Exception as error:
        log.exception("the engine could not start")
        return _fail(channel, f"the engine could not start: {type(error).__name__}: {error}", EXIT_STEP_FAILED)
    log.info(
        "ready: %s, %d weights, %s on %s (%s), %d cache blocks; loaded in %.1f s, warmed up in %.1f s",
        engine.ready.model.architecture,
        engine.ready.model.parameters,
        engine.ready.dtype,
        engine.ready.device,
        engine.ready.parameters["kernels"].value,
        engine.scheduler.blocks.num_blocks,
        engine.ready.load_seconds,
        engine.ready.warmup_seconds,
    )
    garbage.settle()
    try:
        CoreLoop(engine, channel).run()
    except ChannelClosed as error:
        log.info("the front end is gone (%s): exiting", error)
    except ProtocolError as error:
        log.error("%s", error)
        return _fail(channel, f"the front end sent what is no message: {error}", EXIT_STEP_FAILED)
    except Exception as error:
        log.exception("a step failed; the engine's state is not to be trusted any more")
        return _fail(channel, f"a step of the engine failed: {type(error).__name__}: {error}", EXIT_STEP_FAILED)
    finally:
        if trace is not None:
            trace.close()
    return 0


def _fail(channel: Channel, message: str, exit_code: int) -> int:
    try:
        channel.send(Fatal(message, exit_code))
    except ChannelClosed:
        log.info("the front end is gone and does not learn of this")
    return exit_code


def _follow_parent() -> None:
    """Die with the front end, and leave its signals to it: it drains first and says when to stop."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the kernel was told


if __name__ == "__main__":
    sys.exit(main())
