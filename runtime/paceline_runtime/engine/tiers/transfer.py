"""Whole blocks on their way between memories: what the scheduler asks for, and what came of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class Memory(enum.StrEnum):
    """Where a block may lie."""

    DEVICE = "device"
    """The KV cache that the model reads."""
    HOST = "host"
    DISK = "disk"


class Place(NamedTuple):
    """One block's worth of room: a number from 0 in that memory."""

    memory: Memory
    number: int


class Transfer(NamedTuple):
    """Copy one block.

    Attributes:
        key: hash of its content. A mover writes it down beside what it stores, and hands nothing out under another.
    """

    source: Place
    target: Place
    key: bytes


@dataclass(frozen=True, slots=True)
class MoveReport:
    """What came of one step's transfers.

    Attributes:
        failed: those whose source did not hold what it should (their targets are not to be read).
        seconds: wall time by direction; each direction that was asked for is there.
    """

    failed: tuple[Transfer, ...] = ()
    seconds: Mapping[tuple[Memory, Memory], float] = field(default_factory=dict)


class BlockMover(Protocol):
    """Executes transfers. Within one step they never depend on each other: no place is written twice, or both read and
    written; so any order is right, also all at once."""

    def execute(self, transfers: Sequence[Transfer]) -> MoveReport:
        """Do them all; returns when the targets may be read and the sources written."""
        ...
