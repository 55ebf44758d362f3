"""What is done to routers and replicas while clients ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .clients import Outcome, Tally
from .fleet import Fleet

FOLLOWED = 1.3
"""Seconds within which a router has read a changed file."""
PAUSE = 1.0


@dataclass(frozen=True)
class Fault:
    """One thing that happens under load.

    Attributes:
        name: in the table.
        act: does it; returns when it is over.
        allowed: outcomes beside *answered* that are right here. Planned operations allow none.
    """

    name: str
    act: Callable[[Fleet], Awaitable[None]]
    allowed: frozenset[Outcome] = frozenset()

    def right(self, tally: Tally) -> bool:
        """Whether every request has an outcome that is right here."""
        return set(+tally.seen) <= {Outcome.ANSWERED, *self.allowed} and tally.sent == tally.seen.total()


async def nothing(fleet: Fleet) -> None:
    await asyncio.sleep(PAUSE)


async def kill_one(fleet: Fleet) -> None:
    replica = fleet.replicas[0]
    fleet.kill(replica)
    await asyncio.sleep(PAUSE)
    await fleet.revive(replica)


async def kill_all(fleet: Fleet) -> None:
    replicas = list(fleet.replicas)
    for replica in replicas:
        fleet.kill(replica)
    await asyncio.sleep(PAUSE)
    for replica in replicas:
        await fleet.revive(replica)


async def drain_unannounced(fleet: Fleet) -> None:
    """The replica hears of its end before the router does."""
    replica = fleet.replicas[0]
    fleet.terminate(replica)
    await fleet.revive(replica)


async def roll_replicas(fleet: Fleet) -> None:
    """One after the other: another one beside it, draining in the table, told to end, out of the table."""
    for replica in list(fleet.replicas):
        await fleet.add_replica()
        replica.draining = True
        fleet.write()
        await asyncio.sleep(FOLLOWED)
        fleet.terminate(replica)
        await asyncio.to_thread(replica.process.wait, 30)
        fleet.replicas.remove(replica)
        fleet.write()


async def add_one(fleet: Fleet) -> None:
    await fleet.add_replica()
    fleet.write()
    await asyncio.sleep(FOLLOWED + PAUSE)


async def remove_one(fleet: Fleet) -> None:
    """Out of the table while requests run there, and ended when they have."""
    replica = fleet.replicas[0]
    replica.listed = False
    fleet.write()
    await asyncio.sleep(FOLLOWED)
    fleet.terminate(replica)
    await asyncio.to_thread(replica.process.wait, 30)
    fleet.replicas.remove(replica)


async def reload_table(fleet: Fleet) -> None:
    """The file again and again, in another order, and once in a form that nobody can read."""
    for turn in range(20):
        fleet.replicas.reverse()
        fleet.write()
        if turn == 10:
            fleet.routes.write_text("services: [")
        await asyncio.sleep(0.2)
    fleet.write()
    await asyncio.sleep(FOLLOWED)


async def roll_router(fleet: Fleet) -> None:
    """Another one beside it, then the old one is told to end. Twice."""
    for _ in range(2):
        old = fleet.ports[0]
        await fleet.add_router()
        await fleet.retire_router(old)


BROKEN = frozenset({Outcome.ERROR_EVENT})
ANY_WORDS = frozenset(Outcome) - {Outcome.LOST}

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("none", nothing),
        Fault("replica killed", kill_one, BROKEN),
        Fault("all replicas killed", kill_all, ANY_WORDS),
        Fault("replica drains unannounced", drain_unannounced),
        Fault("replicas rolled", roll_replicas),
        Fault("replica added", add_one),
        Fault("replica removed", remove_one),
        Fault("table reloaded", reload_table),
        Fault("router rolled", roll_router),
    )
}
