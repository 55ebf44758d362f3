"""`python -m paceline_runtime.kernels.check`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path


def main() -> int:
    """Exit code 1 where something is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m paceline_runtime.kernels.check", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    parity = commands.add_parser("parity", help="each kernel beside its reference")
    parity.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu: in Triton's interpreter")
    parity.add_argument("--kernel", action="append", help="only this one; may be given several times")
    parity.add_argument("--full", action="store_true", help="some ten times as many sizes")
    parity.add_argument("--json", type=Path, help="write each result there")
    compile_ = commands.add_parser("compile", help="each kernel to machine code, for GPUs that need not be there")
    compile_.add_argument("--arch", type=int, choices=(80, 90), action="append", help="compute capability: 80 is 8.0")
    compile_.add_argument("--full", action="store_true", help="every form, not only a few")
    compile_.add_argument("--json", type=Path, help="write the table there")
    arguments = parser.parse_args()
    return _parity(arguments) if arguments.command == "parity" else _compile(arguments)


def _parity(arguments: argparse.Namespace) -> int:
    if arguments.device == "cpu":
        # Read when the kernels are imported.
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    from paceline_runtime.kernels.check.cases import parity_cases
    from paceline_runtime.kernels.check.parity import count, run, short, table

    torch.set_num_threads(1)
    cases = [c for c in parity_cases(full=arguments.full) if arguments.kernel is None or c.kernel in arguments.kernel]
    if not cases:
        print(f"no kernel is called {', '.join(arguments.kernel)}", file=sys.stderr)
        return 2
    results = list(run(cases, torch.device(arguments.device)))
    print(table(count(results)))
    wrong = [result for result in results if not result.outcome.good]
    for result in wrong:
        print(
            f"{result.case.kernel} {short(result.case.dtype)} differs by {result.outcome.error:.2e}, "
            f"{result.outcome.allowed:.1e} is allowed: {result.case.name}"
        )
    if arguments.json:
        rows = [
            {
                "kernel": r.case.kernel,
                "dtype": short(r.case.dtype),
                "case": r.case.name,
                "error": r.outcome.error,
                "allowed": r.outcome.allowed,
                "good": r.outcome.good,
            }
            for r in results
        ]
        arguments.json.write_text(json.dumps(rows, indent=1))
    return 1 if wrong else 0


def _compile(arguments: argparse.Namespace) -> int:
    os.environ.pop("TRITON_INTERPRET", None)
    # Products and sums in one step, as Triton did by default up to 3.9.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    import torch
    import triton

    from paceline_runtime.kernels.check.compile import HEADER, compile_all, line
    from paceline_runtime.kernels.check.variants import compile_variants

    torch.set_num_threads(1)
    print(f"Triton {triton.__version__}, torch {torch.__version__}", HEADER, sep="\n", flush=True)
    seen: set[tuple[object, ...]] = set()
    rows = []
    for row in compile_all(compile_variants(full=arguments.full), arguments.arch or (80, 90)):
        if (key := (row.kernel, row.variant, row.arch)) not in seen:
            seen.add(key)
            rows.append(row)
            print(line(row), flush=True)
    too_large = [row for row in rows if not row.fits]
    for row in too_large:
        print(f"{row.kernel} ({row.variant}) takes {row.shared} bytes of shared memory, more than sm_{row.arch} has")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
