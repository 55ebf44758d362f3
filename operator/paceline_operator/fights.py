"""Whether somebody else writes over our statuses again and again, and how long to wait then. Pure, but for the clock.

Two installations over the same services, or a tool that puts an older status back, would otherwise write as fast as
the API server answers: each write wakes the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline_kube import Key

MOST_SECONDS = 60.0
FORGIVEN_SECONDS = 300.0
"""After so long without another fight the next one starts small again."""

TOLD_AFTER = 3
"""Times in a row; once or twice is somebody who restores a backup."""

WORDS = (
    "somebody else writes over this status again and again: is a second Paceline operator installed that serves this "
    "namespace too? Give one of them other namespaces (--namespace), or remove it"
)


@dataclass(frozen=True, slots=True)
class _Told:
    digest: int
    at: float
    times: int
    """In a row that the same had to be told anew."""


class Fights:
    """What was told of each service, and how often it had to be told again though nothing had changed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds; it only has to move forward."""
        self._clock = clock
        self._told: dict[Key, _Told] = {}

    def wait(self, service: Key, status: Mapping[str, Any]) -> float:
        """Seconds until this status, which is not the stored one, should be written; zero where it is news."""
        told = self._told.get(service)
        if told is None or told.digest != _digest(status) or not told.times:
            return 0.0
        return max(0.0, told.at + min(MOST_SECONDS, 2.0 ** (told.times - 1)) - self._clock())

    def wrote(self, service: Key, status: Mapping[str, Any]) -> bool:
        """The status was written. Gives whether people should know that somebody writes over it."""
        digest, now, told = _digest(status), self._clock(), self._told.get(service)
        again = told is not None and told.digest == digest and now - told.at < FORGIVEN_SECONDS
        times = told.times + 1 if told is not None and again else 0
        self._told[service] = _Told(digest, now, min(times, 16))
        return times >= TOLD_AFTER

    def forget(self, service: Key) -> None:
        """The service is gone."""
        self._told.pop(service, None)


def _digest(status: Mapping[str, Any]) -> int:
    """Of all but the times, which follow from what was stored before."""
    conditions = [{**c, "lastTransitionTime": ""} for c in status.get("conditions") or ()]
    return hash(json.dumps({**status, "conditions": conditions}, sort_keys=True))
