"""Results for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from .comparison import OURS, Case

HEADINGS = {
    "tokens_per_s": "tokens/s",
    "cpu_ms_per_token": "CPU ms/token",
    "roofline_percent": "of the roofline",
    "ttft_ms_p50": "TTFT p50 ms",
    "tpot_ms_p50": "TPOT p50 ms",
}
RATIO, COST = "tokens_per_s", "cpu_ms_per_token"
WIDE = 160


def comparison(title: str, cases: Sequence[Case]) -> Table:
    """One line per case and system: medians with their range, and ours over theirs turn by turn.

    `by CPU` compares the CPU time of a token: on a machine that others use too it is the steadier figure.
    """
    metrics = list(dict.fromkeys(metric for case in cases for metric in case.metrics))
    headings = ["", "system", *(HEADINGS[metric] for metric in metrics), "paceline is", "by CPU", "same answers"]
    table = Table(*headings, title=title)
    for case in cases:
        size = next(name for name in ("batch", "streams") if name in case.params)
        label = f"{size} {case.params[size]}"
        for system, samples in case.samples.items():
            cells = []
            for metric in metrics:
                values = [sample.values[metric] for sample in samples]
                cell = _number(statistics.median(values))
                spread = f" ({_number(min(values))}-{_number(max(values))})" if metric == RATIO else ""
                cells.append(f"{cell}%" if metric == "roofline_percent" else cell + spread)
            ratio, cost, same = "", "", ""
            if system in case.peers():
                ratios = case.ratios(system, RATIO)
                ratio = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})"
                if COST in metrics:
                    cost = f"{1 / statistics.median(case.ratios(system, COST)):.2f}x"
                counted = case.same_answers(system)
                same = "not compared" if counted is None else f"{counted[0]} of {counted[1]}"
            table.add_row(label, system, *cells, ratio, cost, same, style="bold" if system == OURS else None)
            label = ""
        table.add_section()
    return table


def show(table: Table) -> None:
    """Print a table on stdout; into a file or a pipe as wide as it is."""
    console = Console()
    (console if console.is_terminal else Console(width=WIDE)).print(table)


def _number(value: float) -> str:
    return f"{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"
