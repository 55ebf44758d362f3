"""How many replicas of a pool may be evicted at once, for instance while nodes are drained. Pure."""

from __future__ import annotations

from .actions import ApplyBudget, Delete, Phase
from .children import budget_name
from .observed import Observed, Ownership
from .render import Desired


def budgets(observed: Observed, desired: Desired, phase: Phase) -> tuple[ApplyBudget | Delete, ...]:
    """One budget for each pool that is asked for, none for others.

    An edit by hand stays, and so does a budget of somebody else under the name: a budget guards, nothing depends on it.
    """
    if phase in (Phase.SUSPENDED, Phase.BLOCKED):
        return ()
    wanted = {budget_name(observed.name, pool.name): pool.name for pool in desired.pools}
    there = {budget.name: budget for budget in observed.budgets}
    made = [
        ApplyBudget(name, pool)
        for name, pool in wanted.items()
        if name not in there or there[name].owner is Ownership.ORPHAN
    ]
    gone = [
        Delete("budget", budget.name, budget.uid, budget.resource_version)
        for budget in observed.budgets
        if budget.name not in wanted and budget.owner is not Ownership.FOREIGN and not budget.deleting
    ]
    return (*made, *gone)
