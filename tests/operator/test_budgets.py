"""Disruption budgets: one for each pool, nobody else's touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline_crds.service import InferenceService
from paceline_operator.actions import ApplyBudget, Delete, Phase
from paceline_operator.budgets import budgets
from paceline_operator.children import budget, budget_name
from paceline_operator.gather import ownership
from paceline_operator.observed import BudgetView, Observed, Ownership
from paceline_operator.render import Carried, Desired, render

SEEN = Observed("demo", "chat", "uid", 1)
NAME = budget_name("chat", "default")


def desired(**spec: Any) -> Desired:
    body = {"model": {"source": "package://m"}, **spec}
    obj = {"metadata": {"name": "chat", "namespace": "demo"}, "spec": body}
    return render(InferenceService.from_object(obj), Carried(), "r:1")


def view(name: str, owner: Ownership) -> BudgetView:
    return BudgetView(name, "u", "7", "default", owner)


def test_each_pool_has_one_and_a_pool_that_is_gone_has_none() -> None:
    asked = desired(pools=[{"name": "long"}])
    long = budget_name("chat", "long")
    assert budgets(SEEN, asked, Phase.SETTLED) == (ApplyBudget(NAME, "default"), ApplyBudget(long, "long"))
    both = replace(SEEN, budgets=(view(NAME, Ownership.OURS), view(long, Ownership.OURS)))
    assert budgets(both, asked, Phase.SETTLED) == ()
    assert budgets(both, desired(), Phase.SETTLED) == (Delete("budget", long, "u", "7"),)


def test_an_orphan_is_taken_over_and_what_others_made_is_left() -> None:
    assert budgets(replace(SEEN, budgets=(view(NAME, Ownership.ORPHAN),)), desired(), Phase.SETTLED) == (
        ApplyBudget(NAME, "default"),
    )
    foreign = (view(NAME, Ownership.FOREIGN), view("theirs", Ownership.FOREIGN))
    assert budgets(replace(SEEN, budgets=foreign), desired(), Phase.SETTLED) == ()


@pytest.mark.parametrize("phase", [Phase.SUSPENDED, Phase.BLOCKED])
def test_while_nothing_is_changed_budgets_are_not_either(phase: Phase) -> None:
    assert budgets(SEEN, desired(), phase) == ()


def test_what_was_made_is_known_again_without_its_owner() -> None:
    made = budget(SEEN, NAME, "default")
    assert ownership(made, "uid", "chat") is Ownership.OURS
    del made["metadata"]["ownerReferences"]
    assert ownership(made, "uid", "chat") is Ownership.ORPHAN
    assert ownership(made, "uid", "other") is Ownership.FOREIGN


def test_names_of_pools_and_services_never_meet() -> None:
    assert budget_name("a-b", "c") != budget_name("a", "b-c")
