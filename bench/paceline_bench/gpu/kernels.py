"""Each kernel beside its reference, on several processes: most of the time is Triton compiling."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from typing import NamedTuple

from .record import Record

WORKERS = 8
INTERPRETED_CASES = 12
"""In a dry run: the interpreter takes seconds for each."""


class _Verdict(NamedTuple):
    kernel: str
    dtype: str
    good: bool
    words: str


def run(record: Record) -> None:
    """Parity of the kernels, by kernel and type; in a dry run of a few of them in the interpreter."""
    end = time.monotonic() + record.left - 3
    workers = WORKERS if record.measuring else 1
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        shards = [(number, workers, record.measuring, end) for number in range(workers)]
        found: list[tuple[list[_Verdict], int]] = pool.starmap(_shard, shards)
    verdicts = [verdict for shard, _ in found for verdict in shard]
    left_out = sum(count for _, count in found)
    cases = Counter((v.kernel, v.dtype) for v in verdicts)
    good = Counter((v.kernel, v.dtype) for v in verdicts if v.good)
    for (kernel, dtype), count in sorted(cases.items()):
        wrong = next((v.words for v in verdicts if (v.kernel, v.dtype) == (kernel, dtype) and not v.good), "")
        record.check(
            f"{kernel} {dtype}",
            good[kernel, dtype] == count,
            f"{good[kernel, dtype]} of {count} cases within rounding{'; first: ' * bool(wrong)}{wrong}",
        )
    if left_out:
        record.note(f"{left_out} cases were left out: no time")


def _shard(number: int, of: int, cuda: bool, end: float) -> tuple[list[_Verdict], int]:
    """Every `of`-th case, and how many there was no time for."""
    if not cuda:
        os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported
    import torch

    from paceline_runtime.kernels.check.cases import parity_cases
    from paceline_runtime.kernels.check.parity import short

    torch.set_num_threads(1)
    cases = list(parity_cases(full=False))
    if not cuda:
        cases = cases[:: max(len(cases) // INTERPRETED_CASES, 1)]
    mine = cases[number::of]
    device = torch.device("cuda" if cuda else "cpu")
    verdicts: list[_Verdict] = []
    for done, case in enumerate(mine):
        if time.monotonic() > end:
            return verdicts, len(mine) - done
        outcome = case.run(device)
        words = f"differs by {outcome.error:.2e}, {outcome.allowed:.1e} is allowed: {case.name}"
        verdicts.append(_Verdict(case.kernel, short(case.dtype), outcome.good, words))
    return verdicts, 0
