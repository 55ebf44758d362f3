"""Two writers of one status: each gives way, and people are told; what is news is written at once."""

from __future__ import annotations

from typing import Any

from paceline_operator.fights import FORGIVEN_SECONDS, MOST_SECONDS, TOLD_AFTER, Fights

CHAT = ("demo", "chat")


def status(url: str = "http://a", at: str = "t") -> dict[str, Any]:
    return {"address": {"url": url}, "conditions": [{"type": "Ready", "lastTransitionTime": at}]}


class Fight:
    """We write whenever we may; somebody writes over it at once."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.fights = Fights(lambda: self.now)
        self.told = 0
        self.writes = 0

    def go_on(self, seconds: float, of: dict[str, Any]) -> None:
        end = self.now + seconds
        while self.now < end:
            pause = self.fights.wait(CHAT, of)
            if pause <= 0:
                self.told += self.fights.wrote(CHAT, of)
                self.writes += 1
            self.now += max(pause, 0.01)


def test_whoever_writes_over_a_status_again_and_again_is_answered_less_and_less_often_and_told() -> None:
    fight = Fight()
    fight.go_on(600, status())
    assert fight.writes <= 10 + 600 / MOST_SECONDS
    assert fight.told == fight.writes - TOLD_AFTER


def test_what_is_news_is_written_at_once_in_the_middle_of_a_fight() -> None:
    fight = Fight()
    fight.go_on(100, status())
    fight.fights.wrote(CHAT, status())
    assert fight.fights.wait(CHAT, status()) > 1
    assert fight.fights.wait(CHAT, status("http://b")) == 0


def test_times_alone_are_no_news() -> None:
    fight = Fight()
    fight.go_on(100, status())
    fight.fights.wrote(CHAT, status())
    assert fight.fights.wait(CHAT, status(at="another")) > 1


def test_a_status_that_was_deleted_comes_back_at_once_and_a_fight_is_forgiven_in_time() -> None:
    fight = Fight()
    assert not fight.fights.wrote(CHAT, status())
    assert fight.fights.wait(CHAT, status()) == 0
    fight.go_on(100, status())
    fight.now += FORGIVEN_SECONDS
    assert fight.fights.wait(CHAT, status()) == 0
    assert not fight.fights.wrote(CHAT, status())
    assert fight.fights.wait(CHAT, status()) == 0
