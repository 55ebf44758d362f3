"""`python -m paceline_router.shape.replay`: requests as JSON lines on stdin, decisions as JSON lines on stdout.

For evaluation on traces, where time is a column: a shaper decides on each request at its arrival and learns from it at
its end, in the order of those times. With the argument `prior` it learns nothing.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Iterator

import msgspec

from paceline_router.shape.classes import classify
from paceline_router.shape.output_length import Basis
from paceline_router.shape.shaper import Shaped, Shaper
from paceline_router.table.policy import SHAPES
from paceline_router.wire.requests import Body

PATH = b"/v1/chat/completions"
_OPEN, _CLOSE = b'[{"role":"user","content":"', b'"}]'
_FILLER = b"the whole city had turned out to see the regatta and the band was playing by noon "


class Line(msgspec.Struct):
    """One request of a trace.

    Attributes:
        at, ends: seconds.
        prompt_tokens, output_tokens: as they turned out.
        text: raw JSON of the messages; empty where the trace has no texts, and then `text_bytes` of prose stand for it.
    """

    at: float
    ends: float
    prompt_tokens: int
    output_tokens: int
    text: str = ""
    text_bytes: int = 0
    tenant: str = ""
    version: str = ""
    max_tokens: int | None = None


class Decision(msgspec.Struct):
    """What was decided at arrival, and what would have been decided with the lengths known.

    Attributes:
        basis: what the expected output stood on.
    """

    shape: str
    hindsight: str
    basis: str
    prompt_tokens: int
    prompt_low: int
    prompt_high: int
    output_tokens: int
    output_high: int


def replay(lines: Iterable[Line], learn: bool = True) -> Iterator[Decision]:
    """Decide on requests, which come in order of arrival."""
    shaper = Shaper()
    running: list[tuple[float, int, Line, Shaped]] = []
    for number, line in enumerate(lines):
        while running and running[0][0] <= line.at:
            _, _, ended, shaped = heapq.heappop(running)
            shaper.learn(shaped, ended.prompt_tokens, ended.output_tokens)
        text = line.text.encode() or _text(line.text_bytes)
        body = Body(max_tokens=line.max_tokens)
        shaped = shaper.shape(body, text, line.tenant, PATH, line.version)
        if learn:
            heapq.heappush(running, (line.ends, number, line, shaped))
        true = classify(line.prompt_tokens, line.output_tokens, shaped.turns, shaped.structure, shaper.thresholds)
        yield Decision(
            SHAPES[shaped.shape].value,
            SHAPES[true].value,
            Basis(shaped.basis).label,
            shaped.prompt_tokens,
            shaped.prompt_low,
            shaped.prompt_high,
            shaped.output_tokens,
            shaped.output_high,
        )


def _text(size: int) -> bytes:
    inner = max(0, size - len(_OPEN) - len(_CLOSE))
    return _OPEN + (_FILLER * (inner // len(_FILLER) + 1))[:inner] + _CLOSE


def main() -> None:
    """The command."""
    decode = msgspec.json.Decoder(Line).decode
    encode = msgspec.json.Encoder().encode
    lines = (decode(raw) for raw in sys.stdin.buffer)
    for decision in replay(lines, learn=sys.argv[1:] != ["prior"]):
        sys.stdout.buffer.write(encode(decision) + b"\n")


if __name__ == "__main__":
    main()
