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
    parity.add_argument("--full", action="store_true", help="many combinations, not only every pair of sizes")
    parity.add_argument("--json", type=Path, help="write each result there")
    compile_ = commands.add_parser("compile", help="each kernel to machine code, for GPUs that need not be there")
    compile_.add_argument("--arch", type=int, choices=(80, 90), action="append", help="compute capability: 80 is 8.0")
    extent = compile_.add_mutually_exclusive_group()
    for name, what in (("pairs", "forms in which every pair of properties meets"), ("full", "still more forms")):
        extent.add_argument(f"--{name}", dest="extent", action="store_const", const=name, default="few", help=what)
    compile_.add_argument("--json", type=Path, help="write the table there")
    for command in (parity, compile_):
        command.add_argument("--keep", type=Path, help="write down there what is done; what is, is not done again")
    arguments = parser.parse_args()
    return _parity(arguments) if arguments.command == "parity" else _compile(arguments)


def _parity(arguments: argparse.Namespace) -> int:
    if arguments.device == "cpu":
        # Read when the kernels are imported.
        os.environ["TRITON_INTERPRET"] = "1"
    import torch
    import triton

    from paceline_runtime.kernels.check.cases import parity_cases
    from paceline_runtime.kernels.check.parity import Outcome, Result, count, run, short, table
    from paceline_runtime.kernels.check.progress import Progress, found_with

    torch.set_num_threads(1)
    cases = [c for c in parity_cases(full=arguments.full) if arguments.kernel is None or c.kernel in arguments.kernel]
    if not cases:
        print(f"no kernel is called {', '.join(arguments.kernel)}", file=sys.stderr)
        return 2
    versions = {"triton": triton.__version__, "torch": torch.__version__, "device": arguments.device}
    progress = Progress(arguments.keep, found_with(**versions))
    names = {case: f"{case.kernel} {short(case.dtype)} {case.name}" for case in cases}
    for result in run((case for case in cases if names[case] not in progress.found), torch.device(arguments.device)):
        outcome = result.outcome
        kept = {"error": outcome.error, "allowed": outcome.allowed, "seconds": result.seconds}
        progress.add(names[result.case], kept)
    results = [
        Result(case, Outcome(found["error"], found["allowed"]), found["seconds"])
        for case, found in ((case, progress.found[names[case]]) for case in cases)
    ]
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

    from paceline_runtime.kernels.check.compile import HEADER, Compiled, compile_all, line
    from paceline_runtime.kernels.check.progress import Progress, found_with
    from paceline_runtime.kernels.check.variants import Variant, compile_variants

    torch.set_num_threads(1)
    print(f"Triton {triton.__version__}, torch {torch.__version__}", HEADER, sep="\n", flush=True)
    progress = Progress(arguments.keep, found_with(triton=triton.__version__))
    rows: list[Compiled] = []
    variants, archs = list(compile_variants(arguments.extent)), arguments.arch or (80, 90)
    done = {(arch, v.name): progress.found.get(f"{arch} {v.name}") for arch in archs for v in variants}
    for kept in filter(None, done.values()):
        rows += [Compiled(**row) for row in kept["kernels"]]
        print("\n".join(map(line, rows[-len(kept["kernels"]) :])), flush=True)
    seen = {key for key, kept in done.items() if kept is not None}

    def known(arch: int, variant: Variant) -> bool:
        # Some forms come in several series.
        return (arch, variant.name) in seen

    for made in compile_all(variants, archs, known):
        seen.add((made[0].arch, made[0].variant))
        progress.add(f"{made[0].arch} {made[0].variant}", {"kernels": [asdict(row) for row in made]})
        rows += made
        print("\n".join(map(line, made)), flush=True)
    too_large = [row for row in rows if not row.fits]
    for row in too_large:
        print(f"{row.kernel} ({row.variant}) takes {row.shared} bytes of shared memory, more than sm_{row.arch} has")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
