"""The advice to split as a condition of a service's status: no figures, which would make every look a change of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline_router.shape.split import LARGE_SHARE, Answer

TYPE = "SplitAdvised"
MOST_CHARACTERS = 1024
"""Of a message: a condition's own bound is 32 KiB, and people read it in one line."""


def condition_of(pools: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The condition of a service.

    Args:
        pools: its part of `split.split_page`.

    Returns:
        `type`, `status`, `reason` and `message` as in the status, and `requests`: how many the advice stands on, so
        that of several routers the one that saw most can be believed. `False` needs a clear answer for every shape of
        every pool; one that is not known yet makes it `Unknown`.
    """
    advised = {pool: page["split"] for pool, page in sorted(pools.items()) if page["split"]}
    answers = {finding["answer"] for page in pools.values() for finding in page["shapes"]}
    if advised:
        parts = "; ".join(f"pool {pool}: {', '.join(shapes)}" for pool, shapes in advised.items())
        status, reason = "True", "ShapeSlowsOthers"
        message = (
            f"A pool of their own is advised for shapes that are over {LARGE_SHARE:.0%} of a pool's requests or tokens "
            f"and make the others' P99 worse ({parts}). `paceline plan split` has the figures; spec.pools does it."
        )
    elif answers == {Answer.NO.value}:
        status, reason = "False", "NoClearEffect"
        message = f"No shape is both over {LARGE_SHARE:.0%} of its pool and a clear burden for the others."
    else:
        status, reason = "Unknown", "NotEnoughRequests"
        message = "There were too few requests in the last hour to tell; `paceline plan split` says what is missing."
    return {
        "type": TYPE,
        "status": status,
        "reason": reason,
        "message": message if len(message) <= MOST_CHARACTERS else message[: MOST_CHARACTERS - 1] + "…",
        "requests": sum(page["requests"] for page in pools.values()),
    }
