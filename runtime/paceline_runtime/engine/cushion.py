"""Blocks that new requests leave free so that running ones can grow; as many as experience shows.

How long answers become is not known at admission. Each preemption for want of blocks says that too many were let in,
and widens the cushion by a step; each step of the engine without one narrows it a little. On the lengths of ShareGPT
this halves what is computed twice, for one percent more steps (`paceline bench preemption`).
"""

from __future__ import annotations

WIDEN_SHARE = 1 / 50
"""Of all blocks, for each preemption."""
NARROW_SHARE = 1 / 256
"""Of the cushion itself, with each step."""


class Cushion:
    """Between 0 and `most` blocks.

    Args:
        num_blocks: in the whole cache.
        percent: of them, at most.
    """

    def __init__(self, num_blocks: int, percent: int) -> None:
        self._most = num_blocks * percent / 100
        self._step = num_blocks * WIDEN_SHARE
        self._width = 0.0

    @property
    def blocks(self) -> int:
        """To be left free by new requests now."""
        return int(self._width)

    def widen(self) -> None:
        """A request was preempted because another one found no block."""
        self._width = min(self._width + self._step, self._most)

    def narrow(self) -> None:
        """A step began."""
        self._width -= self._width * NARROW_SHARE
