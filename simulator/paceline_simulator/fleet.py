"""Routers and replicas together, from the first arrival to the last answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline_router.choice.load import ReplicaLoad
from paceline_router.choice.policies import ChoicePolicy, make_chooser

from .engine import Model, Replica, Request

POLL_SECONDS = 1.0
LIMIT = 1024
"""Requests of one router at one replica, as in the router's settings."""


@dataclass
class Outcome:
    """What a run gave.

    Attributes:
        requests: with their times.
        hit_rate: prompt tokens found in replicas' caches over all.
        imbalance: the most requests at one replica over the mean, averaged over seconds with at least one request a
            replica; None where there was no such second.
        busy: seconds that each replica computed, over the length of the run.
        sent: requests by replica.
    """

    requests: list[Request]
    hit_rate: float
    imbalance: float | None
    busy: list[float]
    sent: list[int]

    @property
    def ttft(self) -> list[float]:
        """Seconds from arrival to the first token."""
        return [request.first_token - request.arrival for request in self.requests]

    @property
    def tpot(self) -> list[float]:
        """Seconds for each further token, of requests that have any."""
        return [
            (request.done - request.first_token) / (request.output_tokens - 1)
            for request in self.requests
            if request.output_tokens > 1
        ]


@dataclass
class _Router:
    """What one router knows."""

    policy: ChoicePolicy[ReplicaLoad]
    loads: tuple[ReplicaLoad, ...]
    turn: int = 0


@dataclass
class Fleet:
    """Replicas behind routers that know of each other only what replicas report.

    Attributes:
        policy: by name, see `paceline_router.choice.policies`.
        routers: requests come to one of them at random.
    """

    policy: str
    replicas: int
    routers: int = 1
    model: Model = field(default_factory=Model)
    seed: int = 0
    tune: Callable[[Any], None] | None = None

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Serve all requests, in the order of their arrival."""
        chance = random.Random(self.seed)
        replicas = [Replica(self.model) for _ in range(self.replicas)]
        routers = [self._router() for _ in range(self.routers)]
        ratios: list[float] = []
        poll = POLL_SECONDS
        for request in requests:
            while poll <= request.arrival:
                self._until(poll, replicas, routers)
                self._poll(poll, replicas, routers, ratios)
                poll += POLL_SECONDS
            self._until(request.arrival, replicas, routers)
            request.router = chance.randrange(self.routers)
            self._send(request, routers[request.router], replicas)
        while not all(replica.idle and not replica.events for replica in replicas):
            self._until(poll, replicas, routers)
            for router in routers:
                for load in router.loads:
                    load.does_not_report(poll)
            poll += POLL_SECONDS
        length = max(request.done for request in requests) - requests[0].arrival
        total = sum(request.prompt_tokens for request in requests)
        return Outcome(
            list(requests),
            sum(replica.hits for replica in replicas) / total,
            sum(ratios) / len(ratios) if ratios else None,
            [replica.busy / length for replica in replicas],
            [sum(request.replica == number for request in requests) for number in range(self.replicas)],
        )

    def _router(self) -> _Router:
        policy = make_chooser(self.policy)
        if self.tune is not None:
            self.tune(policy)
        return _Router(policy, tuple(ReplicaLoad(0.0, f"replica-{number}") for number in range(self.replicas)))

    def _until(self, now: float, replicas: list[Replica], routers: list[_Router]) -> None:
        """Let time pass, and the routers hear of what has happened."""
        for number, replica in enumerate(replicas):
            replica.advance(now)
            events = replica.events
            while events and events[0][0] <= now:
                _, request, report = events.popleft()
                load = routers[request.router].loads[number]
                if report is not None:
                    load.take(*report, now)
                    load.answered(request.prompt_tokens, request.estimate, request.mark)
                else:
                    load.end(
                        request.prompt_tokens, request.expected_output, request.estimate, request.mark, answered=True
                    )

    def _poll(self, now: float, replicas: list[Replica], routers: list[_Router], ratios: list[float]) -> None:
        counts = []
        for number, replica in enumerate(replicas):
            report = replica.report()
            counts.append(report[0] + report[1])
            for router in routers:
                router.loads[number].take(*report, now)
        total = sum(counts)
        if total >= len(counts):
            ratios.append(max(counts) * len(counts) / total)

    def _send(self, request: Request, router: _Router, replicas: list[Replica]) -> None:
        router.turn += 1
        policy = router.policy
        load = policy.choose(
            router.loads,
            request.text(),
            request.session,
            request.prompt_tokens,
            request.expected_output,
            request.arrival,
            router.turn,
            LIMIT,
        )
        assert load is not None, "a thousand requests at every replica"
        request.replica = router.loads.index(load)
        request.estimate = policy.cached
        request.mark = load.begin(request.prompt_tokens, request.expected_output, request.estimate)
        replicas[request.replica].offer(request)
