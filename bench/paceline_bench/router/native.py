"""The C programs of the benchmarks (load, replicas, relay): built where they are needed, run on a core of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from paceline_bench.processes import ProcessGroup

SOURCES = Path(__file__).resolve().parents[2] / "native"
START_SECONDS = 30.0


@dataclass(frozen=True)
class Programs:
    """Where the built programs are."""

    load: Path
    mock: Path
    relay: Path


def build(folder: Path) -> Programs:
    """Compile them into `folder`.

    Raises:
        typer.Exit: 2, with words, when there is no gcc or no source.
    """
    for name in ("load", "mock", "relay"):
        source = SOURCES / f"{name}.c"
        command = ["gcc", "-O2", "-o", str(folder / name), str(source), "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError:
            typer.echo("error: the router benchmarks compile three small C programs; install gcc", err=True)
            raise typer.Exit(2) from None
        except subprocess.CalledProcessError as exc:
            typer.echo(
                f"error: {source} could not be built; run this in a checkout of the project:\n{exc.stderr}", err=True
            )
            raise typer.Exit(2) from None
    return Programs(folder / "load", folder / "mock", folder / "relay")


def cores() -> tuple[int, int]:
    """A core for the router under test and one for the rest; the same one where there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[1 % len(allowed)]


def pinned(command: Sequence[str], *on: int) -> list[str]:
    """The command, held to these cores with all its threads and children."""
    return ["taskset", "-c", ",".join(map(str, on)), *command]


@contextlib.contextmanager
def replicas(
    programs: Programs, count: int, logs: Path, *, slots: int = 0, core: int | None = None
) -> Iterator[list[int]]:
    """Replicas that cost next to nothing; their ports.

    Args:
        programs: what was built.
        count: how many; all in one process.
        logs: folder for what it says.
        slots: requests that each runs at a time, further ones wait there; 0: no bound.
        core: where they run. Default: the one beside the router's.
    """
    command = pinned([str(programs.mock), "-s", str(slots), str(count)], cores()[1] if core is None else core)
    with ProcessGroup(command, environment={}, log=logs / "mock.log", piped=True) as running:
        yield [int(port) for port in running.stdout.readline().split()]


def until_open(running: ProcessGroup, ask: object, name: str) -> None:
    """Until `ask()` is true.

    Raises:
        RuntimeError: the process ended, or it did not come to it in time.
    """
    assert callable(ask)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if running.ended() is not None:
            raise RuntimeError(running.words(f"{name} ended with {running.ended()}"))
        if ask():
            return
        time.sleep(0.05)
    raise RuntimeError(running.words(f"{name} did not answer in {START_SECONDS:g} s"))
