"""Which replica a request goes to: quickly by its work alone, or by the router's own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paceline_router.choice.load import ReplicaLoad
from paceline_router.choice.policies import make_chooser
from paceline_simulator.engine import Model, Request, Serving
from paceline_simulator.fleet import LIMIT

RUNNING_MS = 5.0
"""What a running request counts for, in ms of prompt work."""


class Dispatch(Protocol):
    """A way to choose, with its memory."""

    def choose(self, replicas: Sequence[Serving], request: Request, now: float) -> Serving | None:
        """One of the replicas, all of them computed up to `now`; None where none takes the request."""

    def look(self, replicas: Sequence[Serving], now: float) -> None:
        """Once a second: hear of what has happened at replicas that have requests."""

    def forget(self, replica: Serving) -> None:
        """A replica is gone."""


class LeastWork:
    """The replica with the least work ahead, which a router cannot know so well; prefixes are left out."""

    def __init__(self, model: Model) -> None:
        self._token = model.dense_token

    def choose(self, replicas: Sequence[Serving], request: Request, now: float) -> Serving | None:
        """The first of those with the least."""
        best: Serving | None = None
        least = 0.0
        for replica in replicas:
            ahead = replica.ahead * self._token + replica.running * RUNNING_MS
            if best is None or ahead < least:
                best, least = replica, ahead
        return best

    def look(self, replicas: Sequence[Serving], now: float) -> None:
        """Nothing is remembered."""
        for replica in replicas:
            replica.events.clear()

    def forget(self, replica: Serving) -> None:
        """Nothing is remembered."""


class RouterChoice:
    """One router's real choice by cost, on what replicas report; new replicas warm up as there."""

    def __init__(self) -> None:
        self._policy = make_chooser("cost")
        self._loads: dict[int, ReplicaLoad] = {}
        self._turn = 0

    def choose(self, replicas: Sequence[Serving], request: Request, now: float) -> Serving | None:
        """The router's."""
        for replica in replicas:
            self._hear(replica, now)
        loads = tuple(self._load(replica, now) for replica in replicas)
        if not loads:
            return None
        self._turn += 1
        load = self._policy.choose(
            loads,
            request.text(),
            request.session,
            request.prompt_tokens,
            request.expected_output,
            now,
            self._turn,
            LIMIT,
        )
        if load is None:
            return None
        request.estimate = self._policy.cached
        request.mark = load.begin(request.prompt_tokens, request.expected_output, request.estimate)
        return replicas[loads.index(load)]

    def look(self, replicas: Sequence[Serving], now: float) -> None:
        """Poll every replica's load."""
        for replica in replicas:
            self._hear(replica, now)
            self._load(replica, now).take(*replica.report(), now)

    def forget(self, replica: Serving) -> None:
        """Its load is nobody's."""
        self._loads.pop(id(replica), None)

    def _load(self, replica: Serving, now: float) -> ReplicaLoad:
        load = self._loads.get(id(replica))
        if load is None:
            load = self._loads[id(replica)] = ReplicaLoad(now, f"replica-{id(replica)}")
        return load

    def _hear(self, replica: Serving, now: float) -> None:
        load = self._load(replica, now)
        events = replica.events
        while events and events[0][0] <= now:
            _, request, report = events.popleft()
            if report is not None:
                load.take(*report, now)
                load.answered(request.prompt_tokens, request.estimate, request.mark)
            else:
                load.end(request.prompt_tokens, request.expected_output, request.estimate, request.mark, answered=True)
