"""How much memory a container's processes hold: a cheap look at all of them, and an exact one where that is close."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ProcessMemory:
    """One process: its parent and its resident memory in bytes, shared pages counted in full."""

    parent: int
    resident: int


def snapshot() -> dict[int, ProcessMemory]:
    """All processes of this machine by pid, read once for all containers."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rsplit(b")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(name)] = ProcessMemory(int(fields[1]), int(fields[21]) * PAGE)
    return found


def descendants(table: Mapping[int, ProcessMemory], root: int) -> set[int]:
    """All processes below `root`, without it."""
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)

    found: set[int] = set()
    left = [root]
    while left:
        # Not read at one instant, the table may hold a pid twice used: so no process is followed twice.
        fresh = set(children.get(left.pop(), ())) - found - {root}
        found |= fresh
        left += fresh
    return found


def held_bytes(table: Mapping[int, ProcessMemory], root: int, limit: int) -> int:
    """Bytes held below `root`, exact where they may be more than `limit`, else an upper bound that is not.

    Exact is what the kernel could not drop: anonymous and shared memory, shared pages in proportion, no mapped files.
    That is dear to ask for (the kernel walks the page tables), so it is asked only where the resident sum is over.
    """
    family = descendants(table, root)
    resident = sum(table[pid].resident for pid in family)
    return resident if resident <= limit else sum(anonymous_bytes(pid) for pid in family)


def anonymous_bytes(pid: int) -> int:
    """Proportional anonymous and shared memory of one process; 0 when it has ended meanwhile."""
    total = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return total
