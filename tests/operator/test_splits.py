"""The routers' advice on pools by shape, as a condition of the service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline_crds.conditions import ConditionType, Reason
from paceline_operator.drift.compare import Drift
from paceline_operator.failures import Problem
from paceline_operator.observed import Observed
from paceline_operator.situation import Situation
from paceline_operator.splits import REASONS, SplitKeeper, advice
from paceline_operator.status import status_of, with_last_looks
from paceline_router.shape.split_condition import condition_of

CHAT = ("demo", "chat")
BARE = Situation(Observed("demo", "chat", "u", 1), None, Problem(Reason.INVALID_SPEC, "no"))


def page(*answers: str, requests: int = 4000) -> dict[str, Any]:
    """What a router says, made by the router's own function."""
    shapes = [{"shape": f"Shape{n}", "answer": answer} for n, answer in enumerate(answers)]
    split = [found["shape"] for found in shapes if found["answer"] == "yes"]
    pools = {"default": {"requests": requests, "split": split, "shapes": shapes}}
    return {"services": {"demo/chat": pools}, "conditions": {"demo/chat": condition_of(pools)}}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (["no", "yes"], ("True", Reason.SHAPE_SLOWS_OTHERS)),
        (["no", "no"], ("False", Reason.NO_CLEAR_EFFECT)),
        (["no", "not known"], ("Unknown", Reason.NOT_ENOUGH_REQUESTS)),
        ([], ("Unknown", Reason.NOT_ENOUGH_REQUESTS)),
    ],
)
def test_what_the_router_says_is_understood(answers: list[str], said: tuple[str, Reason]) -> None:
    found = advice([page(*answers)])[CHAT]
    assert (found.status, found.reason) == said
    assert found.reason in REASONS
    assert found.message


def test_of_several_routers_the_one_that_saw_most_is_believed() -> None:
    few, many = page("yes", requests=600), page("no", requests=9000)
    assert advice([few, many]) == advice([many, few]) == advice([many])


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"conditions": []},
        {"conditions": {"demo/chat": None}},
        {
            "conditions": {
                "demo/chat": {"type": "SplitAdvised", "status": "Maybe", "reason": "x", "message": "", "requests": 1}
            }
        },
        {"conditions": {"demo/chat": {**condition_of({}), "reason": "OfANewerRelease"}}},
        {"conditions": {"demo/chat": {**condition_of({}), "type": "Ready"}}},
    ],
)
def test_an_answer_of_another_form_is_no_advice(odd: dict[str, Any]) -> None:
    assert advice([odd]) == {}
    assert advice([odd, page("no")]) == advice([page("no")])


async def test_a_service_is_looked_at_only_when_the_decision_changes() -> None:
    said: list[dict[str, Any]] = []
    told: list[Any] = []

    async def pages() -> list[dict[str, Any]]:
        return said

    keeper = SplitKeeper(pages=pages, changed=told.append)
    await keeper.look()
    assert keeper.of(CHAT) is None
    said[:] = [page("no", requests=1000)]
    await keeper.look()
    said[:] = [page("no", requests=2000)]
    await keeper.look()
    assert told == [CHAT], "more requests are no other decision"
    said[:] = [page("yes")]
    await keeper.look()
    said.clear()
    await keeper.look()
    found = keeper.of(CHAT)
    assert found is not None
    assert found.status == "True", "while no router can be asked, what was known stays"
    assert told == [CHAT, CHAT]


def test_the_advice_is_a_condition_and_outlasts_a_restart_of_the_operator() -> None:
    def conditions(status: dict[str, Any]) -> list[str]:
        return [c["type"] for c in status["conditions"]]

    known = replace(BARE, drift=Drift(checked=1, running=1), split=advice([page("yes")])[CHAT])
    before = status_of(known, (), 0.0, "http://r")
    assert conditions(before)[-2:] == ["ConfigInSync", "SplitAdvised"]
    for blind in (replace(known, split=None), replace(known, drift=None), replace(known, drift=None, split=None)):
        fresh = status_of(blind, before["conditions"], 99.0, "http://r")
        assert with_last_looks(fresh, before, blind) == before
    never = status_of(BARE, (), 0.0, "http://r")
    assert ConditionType.SPLIT_ADVISED not in conditions(with_last_looks(never, {}, BARE))
