"""Memories below the KV cache: host memory, then disk. What lies where, and what is worth keeping; no tensors.

Everything is found by the full hash of a block's content and of all that came before it, so a block of another prompt
can never be taken for the one that is asked for.
"""

from .stack import TierStack
from .transfer import BlockMover, Memory, MoveReport, Place, Transfer

__all__ = ["BlockMover", "Memory", "MoveReport", "Place", "TierStack", "Transfer"]
