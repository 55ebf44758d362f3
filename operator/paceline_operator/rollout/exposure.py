"""Which request shapes a new revision meets first: the candidate's share of all requests, dealt out in order. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A request shape of a service.

    Attributes:
        share: of its requests, 0 to 1; None where that is not known.
        sensitive: its answers matter most (as the spec says), so that it comes last.
    """

    name: str
    share: float | None
    sensitive: bool = False


Dealt = tuple[tuple[str, float], ...]
"""Shapes in order, with their shares of requests; 0 for those that only the last step meets."""


def dealt(shapes: Iterable[Shape]) -> Dealt:
    """The order: those with the most requests first, since they are known soonest and spare the others; sensitive ones
    after them; and last, without a share, those of which none is known.
    """

    def place(shape: Shape) -> tuple[bool, bool, float, str]:
        share = shape.share or 0.0
        return (share <= 0.0, shape.sensitive, -share, shape.name)

    return tuple((shape.name, shape.share or 0.0) for shape in sorted(shapes, key=place))


def exposure(order: Dealt, weight: int) -> Mapping[str, int]:
    """The candidate's whole percent of each shape, where it should get `weight` percent of all requests.

    A shape gets something when the one before it has all. So no shape's percent falls as the weight rises, and the sum
    over shapes is the weight, but for whole percents (rounded down, at least 1 where something is left to deal).
    """
    if weight >= 100:
        return {name: 100 for name, _ in order}
    whole = sum(share for _, share in order)
    left = weight / 100.0 * whole
    found = dict.fromkeys((name for name, _ in order), 0)
    for name, share in order:
        if share <= 0.0 or left <= 1e-9 * whole:
            break
        percent = 100 if left >= share * (1.0 - 1e-9) else max(1, math.floor(100.0 * left / share + 1e-6))
        found[name] = percent
        if percent < 100:
            break
        left -= share
    return found
