"""Requests to simulate: from a trace, or made for one question."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from .engine import BLOCK_TOKENS, Request

BLOCK_BYTES = 2048
"""Text of a trace's block of 512 tokens: 4 bytes a token. The router's blocks divide it, so that a common beginning of
blocks is a common beginning of text, and nothing else is."""

OPENING_BLOCKS = 3
"""Blocks from which a prompt that another continues counts as a conversation's opening: fewer are a system prompt."""

ANSWER = b'}"assistant"'
"""What a router sees where the model's first answer begins in a prompt."""

EXPECTED_OUTPUT = 350
"""What routers believe of every answer: about the mean of the conversation trace. No policy knows the real length."""


class TraceError(ValueError):
    """The trace cannot be read; the message says where and why."""


def text_of(blocks: Sequence[int], answers: Collection[int] = ()) -> Callable[[], bytes]:
    """What makes the text of a prompt.

    Args:
        blocks: whole ones.
        answers: blocks in which a conversation's first answer begins.
    """

    def make() -> bytes:
        parts = [b"%016x" % block * (BLOCK_BYTES // 16) for block in blocks]
        for number, block in enumerate(blocks):
            if block in answers:
                parts[number] = ANSWER + parts[number][len(ANSWER) :]
        return b"".join(parts) + b"}"

    return make


def first_answers(prompts: Iterable[Sequence[int]]) -> set[int]:
    """The blocks in which the first answer of a conversation begins: a later prompt goes on there, after all whole
    blocks of an earlier one. The trace does not say so, but a prompt that continues another is a next turn.
    """
    openings: set[int] = set()
    found: set[int] = set()
    for blocks in prompts:
        chain = 0
        for number, block in enumerate(blocks):
            if number >= OPENING_BLOCKS and chain in openings:
                found.add(block)
                break
            chain = hash((chain, block))
        else:
            openings.add(chain)
    return found


def read_mooncake(path: Path, jitter: float, seed: int, speed: float = 1.0, limit: int | None = None) -> list[Request]:
    """Read a trace of Mooncake's form (`timestamp` in ms, `input_length`, `output_length`, `hash_ids`).

    Args:
        jitter: each arrival is later by up to so many seconds, at random: the trace has them in bursts of 3 s.
        speed: 2 makes the same requests arrive in half the time.
        limit: only so many of the first requests.

    Raises:
        TraceError: it is missing or has another form.
    """
    chance = random.Random(seed)
    requests = []
    answers: set[int] = set()
    try:
        with path.open() as lines:
            for number, line in enumerate(lines):
                if limit is not None and number >= limit:
                    break
                entry = json.loads(line)
                arrival = (entry["timestamp"] / 1000.0 + chance.uniform(0.0, jitter)) / speed
                tokens = max(1, int(entry["input_length"]))
                blocks = tuple(entry["hash_ids"])[: tokens // BLOCK_TOKENS]
                text = text_of(blocks, answers)
                output = max(1, int(entry["output_length"]))
                requests.append(Request(number, arrival, tokens, output, blocks, text, None, EXPECTED_OUTPUT))
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(
            f"{path}, line {number + 1}: not a request of a Mooncake trace (timestamp, input_length, "
            f"output_length, hash_ids): {error}"
        ) from error
    answers |= first_answers(request.blocks for request in requests)
    requests.sort(key=lambda request: request.arrival)
    return requests


def shared_prompt(seed: int, sessions: int = 200, prefix_tokens: int = 3072, rate: float = 8.0) -> list[Request]:
    """Sessions that share a long system prompt and nothing else, one request each, at random times (Poisson)."""
    chance = random.Random(seed)
    shared = prefix_tokens // BLOCK_TOKENS
    arrival = 0.0
    requests = []
    for number in range(sessions):
        arrival += chance.expovariate(rate)
        own = chance.randint(1, 2)
        blocks = (*range(shared), *(1_000_000 + number * 8 + part for part in range(own)))
        tokens = len(blocks) * BLOCK_TOKENS
        requests.append(
            Request(
                number,
                arrival,
                tokens,
                chance.randint(50, 300),
                blocks,
                text_of(blocks),
                b"session-%d" % number,
                EXPECTED_OUTPUT // 2,
            )
        )
    return requests
