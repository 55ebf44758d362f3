"""A slice of the Mooncake conversation trace, small enough for replicas on a CPU, with its shared prefixes kept.

The trace names the 512-token blocks of each prompt, so that equal numbers mean equal text. Whole conversations are
drawn, so that the share of turns that find their beginning somewhere is that of the trace; every length is divided.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TRACE_BLOCK = 512
SHRINK = 32
"""By which lengths are divided; a block then is the engine's default block of 16 tokens."""
BLOCK = TRACE_BLOCK // SHRINK
MOST_TOKENS = 1900
OUTPUT_COST = 4
"""Prompt tokens that take as long as one token of output, about."""


class TraceError(ValueError):
    """The trace cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: when it comes, in milliseconds of the trace; its blocks; and its lengths in tokens, divided."""

    at_ms: float
    blocks: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int

    @property
    def work(self) -> int:
        """What it costs without a cache, in prompt tokens."""
        return self.prompt_tokens + OUTPUT_COST * self.output_tokens


def read(path: Path) -> list[Turn]:
    """All requests of a trace that fit, in order.

    Raises:
        TraceError: the file is missing or not of that form.
    """
    turns = []
    try:
        for line in path.read_text().splitlines():
            raw = json.loads(line)
            prompt = max(1, raw["input_length"] // SHRINK)
            if prompt <= MOST_TOKENS:
                blocks = tuple(raw["hash_ids"])
                turns.append(Turn(raw["timestamp"], blocks, prompt, max(1, raw["output_length"] // SHRINK)))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise TraceError(f"{path} is not Mooncake's conversation trace: {exc}") from exc
    return sorted(turns, key=lambda turn: turn.at_ms)


def conversation(turn: Turn) -> tuple[int, ...]:
    """What tells conversations apart: the first block is the same for nearly all."""
    return turn.blocks[:2]


def draw(turns: Sequence[Turn], work: int, seed: int = 0) -> list[Turn]:
    """Whole conversations at random, until they are so much work (in prompt tokens, see `Turn.work`), in order."""
    by_key: dict[tuple[int, ...], list[Turn]] = {}
    for turn in turns:
        by_key.setdefault(conversation(turn), []).append(turn)
    keys = sorted(by_key)
    random.Random(seed).shuffle(keys)
    chosen: list[Turn] = []
    done = 0
    for key in keys:
        if done >= work:
            break
        chosen += by_key[key]
        done += sum(turn.work for turn in by_key[key])
    return sorted(chosen, key=lambda turn: turn.at_ms)


def reusable(turns: Iterable[Turn]) -> float:
    """Share of prompt tokens that an endless cache in one place would have, 0 to 1."""
    seen: set[tuple[int, ...]] = set()
    hits = total = 0
    for turn in turns:
        found = 0
        for length in range(1, len(turn.blocks) + 1):
            if turn.blocks[:length] not in seen:
                break
            found = length
        seen.update(turn.blocks[:length] for length in range(1, len(turn.blocks) + 1))
        hits += min(found * BLOCK, turn.prompt_tokens)
        total += turn.prompt_tokens
    return hits / total if total else 0.0


def arrivals(turns: Sequence[Turn], seconds: float) -> list[float]:
    """When each comes, in seconds from the first: the trace's own gaps, squeezed into `seconds`."""
    first, last = turns[0].at_ms, turns[-1].at_ms
    scale = seconds / (last - first) if last > first else 0.0
    return [(turn.at_ms - first) * scale for turn in turns]


def text(turn: Turn, words: Sequence[str], salt: str) -> str:
    """The prompt, of words that are one token each with a space before; equal blocks have equal words.

    Args:
        turn: the request.
        words: to draw from.
        salt: another one makes another text of the same structure.
    """
    return "".join(f" {word}" for word in itertools.islice(_words(turn, words, salt), turn.prompt_tokens))


def _words(turn: Turn, words: Sequence[str], salt: str) -> Iterator[str]:
    for block in turn.blocks:
        yield from random.Random(f"{salt} {block}").choices(words, k=BLOCK)
