"""What a request that has ended tells about the shapes that were there when it came."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline_router.flow.record import Record
    from paceline_router.shape.interference import Interference


def leave(watched: Interference, record: Record, output: int | None, now: float) -> None:
    """Count it. Latencies are those at the replica: what it waited for before is nobody's shape.

    Args:
        output: tokens of its answer, as far as known.
    """
    ttft = tpot = None
    first = record.first_byte_at
    if first and record.stream and record.outcome == "2xx":
        ttft = first - record.sent_at
        if output is not None and output > 1:
            tpot = (record.ended_at - first) / (output - 1)
    prompt = record.prompt_tokens
    tokens = (record.asked.shaped.prompt_tokens if prompt is None else prompt) + (output or 0)
    watched.leave(record.shape, record.watch, ttft, tpot, tokens, now)
