"""Looks that come round, in the process that is to look."""

from __future__ import annotations

import asyncio
import logging

import pytest

from paceline_operator import rounds
from paceline_operator.rounds import come_round


async def test_a_look_that_fails_is_logged_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    looks: list[int] = []
    twice = asyncio.Event()

    async def look() -> None:
        looks.append(1)
        if len(looks) == 1:
            raise ValueError("router gone")
        twice.set()

    with caplog.at_level(logging.ERROR):
        task = asyncio.create_task(come_round(look, active=lambda: True, interval=0, failure="not asked"))
        await asyncio.wait_for(twice.wait(), 60)
        task.cancel()
    assert "not asked" in caplog.text
    assert "router gone" in caplog.text


async def test_only_the_process_that_is_to_look_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "IDLE_SECONDS", 0)
    order: list[str] = []
    looked = asyncio.Event()

    def active() -> bool:
        order.append("asked")
        return len(order) > 3

    async def look() -> None:
        order.append("looked")
        looked.set()

    task = asyncio.create_task(come_round(look, active=active, interval=60, failure="not asked"))
    await asyncio.wait_for(looked.wait(), 60)
    task.cancel()
    assert order == ["asked", "asked", "asked", "asked", "looked"]
