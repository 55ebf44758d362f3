"""The process of one plugin: `python -m paceline_shadow_traffic.recorder.plugin_process NAME FD`. See `plugins`."""

from __future__ import annotations

import os
import signal
import socket
import sys
from importlib.metadata import entry_points

from .plugins import GROUP, PluginError, receive, send


def main(name: str, descriptor: int) -> None:
    """Answer until the recorder closes its end."""
    with socket.socket(fileno=descriptor) as connection:
        (point,) = {point.name: point for point in entry_points(group=GROUP, name=name)}.values()
        score = point.load()
        send(connection, {"ready": True})
        while True:
            try:
                question = receive(connection)
            except PluginError:
                return
            try:
                value = score(question["request"], question["base"], question["candidate"])
                send(connection, {"score": value})
            except Exception as exc:
                send(connection, {"error": type(exc).__name__})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
    # What it has started itself ends with it, also where the recorder was killed and could end nobody.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
