"""Each kernel beside its reference, on several processes: most of the time is Triton compiling."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from .record import Record

if TYPE_CHECKING:
    from paceline_runtime.kernels.check.parity import Case

WORKERS = max(1, min(14, (os.cpu_count() or 1) - 2))
INTERPRETED_CASES = 12
"""In a dry run: the interpreter takes seconds for each."""


class Verdict(NamedTuple):
    """What came of a case."""

    kernel: str
    dtype: str
    good: bool
    words: str


def run(record: Record) -> None:
    """Parity of the kernels, by kernel and type; in a dry run of a few of them in the interpreter."""
    if not record.measuring:
        os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported, here and by the workers
    wanted = len(_cases(record.measuring))
    verdicts: list[Verdict] = []
    context = multiprocessing.get_context("spawn")
    with context.Pool(WORKERS if record.measuring else 1) as pool:
        coming = pool.imap_unordered(_run, ((number, record.measuring) for number in range(wanted)))
        try:
            while len(verdicts) < wanted:
                verdicts.append(coming.next(timeout=max(record.left - 3, 0)))
        except multiprocessing.TimeoutError:
            pass  # also where a process is gone with its case; whoever works still is ended with the pool
    judge(record, verdicts, wanted)


def judge(record: Record, verdicts: list[Verdict], wanted: int) -> None:
    """Write down how many cases of each kernel and type are good, and how many of those wanted are not known."""
    cases = Counter((v.kernel, v.dtype) for v in verdicts)
    good = Counter((v.kernel, v.dtype) for v in verdicts if v.good)
    for (kernel, dtype), count in sorted(cases.items()):
        wrong = next((v.words for v in verdicts if (v.kernel, v.dtype) == (kernel, dtype) and not v.good), "")
        record.check(
            f"{kernel} {dtype}",
            good[kernel, dtype] == count,
            f"{good[kernel, dtype]} of {count} cases within rounding{'; first: ' * bool(wrong)}{wrong}",
        )
    if wanted > len(verdicts):
        record.note(f"{wanted - len(verdicts)} of {wanted} cases did not come to their end: no time")


@cache
def _cases(measuring: bool) -> list[Case]:
    """Kernels in turn: where there is no time for all cases, there are some of each."""
    from paceline_runtime.kernels.check.cases import parity_cases

    seen = Counter[str]()
    placed = []
    for case in parity_cases(full=False):
        placed.append((seen[case.kernel], case))
        seen[case.kernel] += 1
    cases = [case for _, case in sorted(placed, key=lambda pair: pair[0])]
    return cases if measuring else cases[:INTERPRETED_CASES]


def _run(numbered: tuple[int, bool]) -> Verdict:
    import torch

    from paceline_runtime.kernels.check.parity import short

    number, cuda = numbered
    torch.set_num_threads(1)
    case = _cases(cuda)[number]
    try:
        outcome = case.run(torch.device("cuda" if cuda else "cpu"))
    except Exception as error:  # whatever the compiler or the device says is the verdict
        return Verdict(case.kernel, short(case.dtype), False, f"{type(error).__name__}: {error}: {case.name}")
    words = f"differs by {outcome.error:.2e}, {outcome.allowed:.1e} is allowed: {case.name}"
    return Verdict(case.kernel, short(case.dtype), outcome.good, words)
