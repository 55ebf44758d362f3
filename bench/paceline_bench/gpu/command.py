"""`python -m paceline_bench.gpu.command check --out DIR`: all parts, a table and `results.json`."""

from __future__ import annotations

import argparse
import importlib
import math
import signal
import sys
import time
from pathlib import Path

from paceline_bench.results import Row, document, versions, write_document

from .parts import PARTS, TOTAL_SECONDS, Outcome, Part, run_parts

SLOWER = 10.0
"""Times the seconds of a part in a dry run: it is there to be run through, on however small a machine."""

NOT_MEASURED = "There is no GPU here: a dry run on tiny sizes. Nothing was measured."


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 good, 1 something is wrong, 3 a part did not come to its end."""
    parser = argparse.ArgumentParser(prog="python -m paceline_bench.gpu.command", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="run the parts, one after the other")
    check.add_argument(
        "--out", type=Path, default=Path("results/gpu"), help="folder for results.json and the parts' lines"
    )
    check.add_argument("--part", action="append", choices=[part.name for part in PARTS], help="only this one")
    check.add_argument(
        "--seconds",
        type=float,
        default=TOTAL_SECONDS,
        help="for all parts (%(default)s); a dry run takes what it takes",
    )
    one = commands.add_parser("part", help="one part in this process")
    one.add_argument("name", choices=[part.name for part in PARTS])
    one.add_argument("--lines", type=Path, required=True)
    one.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args(arguments)
    started = time.monotonic()
    import torch

    # As an exception, which ends the part that runs: it has a session of its own, and would keep the GPU.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    measuring = torch.cuda.is_available()
    if given.command == "part":
        from .record import Record

        module = importlib.import_module(f"paceline_bench.gpu.{given.name}")
        module.run(Record(given.name, given.lines, measuring=measuring, seconds=given.seconds))
        return 0
    print(torch.cuda.get_device_name() if measuring else NOT_MEASURED, flush=True)
    chosen = [part for part in PARTS if given.part is None or part.name in given.part]
    if not measuring:
        chosen = [Part(part.name, part.seconds * SLOWER) for part in chosen]
    outcomes: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        # Written after each part: what is known then stays known.
        outcomes.append(outcome)
        print(table(outcome), flush=True)
        rows = [row for done in outcomes for row in done.found.rows]
        write_document(
            given.out, document(rows, versions("torch", "triton", "transformers"), _about(outcomes, measuring))
        )

    run_parts(chosen, given.out, tell, seconds=given.seconds - (time.monotonic() - started) if measuring else math.inf)
    if not measuring:
        print(NOT_MEASURED)
    if any(outcome.wrong for outcome in outcomes):
        return 1
    return 0 if all(outcome.ended for outcome in outcomes) else 3


def _about(outcomes: list[Outcome], measuring: bool) -> list[dict[str, object]]:
    """What `results.json` has beside figures: the device, and what was checked."""
    import torch

    device = torch.cuda.get_device_name() if measuring else "none: nothing was measured"
    parts = [
        {
            "part": outcome.part.name,
            "seconds": round(outcome.seconds, 1),
            "ended": outcome.ended,
            "why": outcome.why,
            "checks": [
                {"name": check.name, "good": check.good, "words": check.words} for check in outcome.found.checks
            ],
            "notes": outcome.found.notes,
        }
        for outcome in outcomes
    ]
    return [{"device": device}, *parts]


def table(outcome: Outcome) -> str:
    """A part for people."""
    how = "" if outcome.ended else f" NOT TO ITS END: {outcome.why}"
    lines = [f"== {outcome.part.name} ({outcome.seconds:.0f} s){how}"]
    lines += [f"  {'good ' if check.good else 'WRONG'} {check.name}: {check.words}" for check in outcome.found.checks]
    lines += [f"  {_row(row)}" for row in outcome.found.rows]
    return "\n".join([*lines, *(f"  {note}" for note in outcome.found.notes)])


def _row(row: Row) -> str:
    params = ", ".join(f"{name} {value}" for name, value in row.params.items())
    return f"{row.metric:<26}{row.system:<14}{row.value:>12.4g} {row.unit:<10}{params}"


if __name__ == "__main__":
    sys.exit(main())
