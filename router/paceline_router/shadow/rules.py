"""Which requests are copied. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

from paceline_router.table.policy import SHAPES

if TYPE_CHECKING:
    from paceline_router.flow.admission import Admitted
    from paceline_router.table.records import Shadow

PATHS: Final = frozenset([b"/v1/chat/completions", b"/v1/completions"])
"""What a model answers; the others are answered by a tokeniser."""

MAX_BODY: Final = 2 * 1024 * 1024
"""Bytes of the largest request that is copied."""

_SPREAD: Final = 2654435761
"""Knuth's multiplicative hash (The Art of Computer Programming 3, 6.4): ids count up, and the CRC of neighbours is
alike.
"""


def sampled(request_id: bytes, percent: int) -> bool:
    """Whether a request belongs to the share that is copied. The same id always gets the same answer."""
    return (crc32(request_id) * _SPREAD & 0xFFFFFFFF) * 100 < percent << 32


def unfit(shadow: Shadow, asked: Admitted, *, by_hand: bool) -> str | None:
    """Why a request of the sampled share is not copied, as one of `counts.SKIPPED`; None where it is.

    Args:
        by_hand: the client asked for a revision by name.
    """
    shaped = asked.shaped
    if by_hand:
        return "by_hand"
    if asked.tenant.name in shadow.opt_out_tenants:
        return "opt_out"
    if shadow.shapes is not None and SHAPES[shaped.shape].value not in shadow.shapes:
        return "shape"
    if shaped.n > 1:
        return "several_choices"
    if len(asked.raw) > MAX_BODY:
        return "body_too_large"
    if shaped.prompt_tokens > shadow.max_prompt_tokens:
        return "prompt_too_long"
    answer = shaped.output_tokens if shaped.max_tokens is None else shaped.max_tokens
    return "answer_too_long" if answer > shadow.max_tokens else None
