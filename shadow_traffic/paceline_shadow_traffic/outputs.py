"""Evidence from compared answers, for the verdict's gates on outputs. Pure."""

from __future__ import annotations

from .evidence import Seen, Signal
from .share import Share
from .tally import Side, Tally


def seen(candidate: Tally, itself: Tally) -> tuple[Seen, Seen]:
    """Base and candidate in one stretch of time.

    Args:
        candidate: comparisons of the base's answers with the candidate's.
        itself: comparisons of the base's answers with a second answer of the base to the same requests: two greedy
            answers of one version differ now and then too, and only what the candidate differs more is its own.
    """
    base, new = candidate.sides.base, candidate.sides.candidate
    return _seen(base, itself.different), _seen(new, candidate.different)


def _seen(side: Side, different: Share) -> Seen:
    shares = {
        Signal.OUTPUT_DIFFERENCE: different,
        Signal.REFUSALS: side.refused,
        Signal.JSON_INVALID: side.json_invalid,
        Signal.TOOL_CALLS_INVALID: side.tool_calls_invalid,
        Signal.TRUNCATED: side.truncated,
    }
    return Seen(length=side.length, shares=shares)
