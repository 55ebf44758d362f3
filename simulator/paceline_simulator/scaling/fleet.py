"""Replicas that start, serve, drain and fail while a policy says how many there should be."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline_autoscaler.capacity import Objectives
from paceline_simulator.engine import Model, Replica, Request, Serving

from .dispatch import Dispatch, LeastWork
from .view import Pod, Scaler, View

TICK = 1.0
"""Seconds between looks at what has become ready or empty."""

SCRAPE = 15.0
"""Seconds between two scrapes of what routers count of their answers."""


def kept(request: Request, objectives: Objectives) -> bool:
    """Whether a request was answered within the objectives."""
    if request.done < 0:
        return False
    if objectives.ttft is not None and request.first_token - request.arrival > objectives.ttft:
        return False
    if objectives.tpot is None or request.output_tokens < 2:
        return True
    return (request.done - request.first_token) / (request.output_tokens - 1) <= objectives.tpot


@dataclass(frozen=True)
class Conditions:
    """What happens to the fleet, whoever scales it.

    Attributes:
        start_up: seconds until a new replica serves, on average; single ones differ by a tenth (standard deviation).
        outages: (from, to) in which the metrics system does not answer.
        failures: times at which the replica with the most requests dies; it is started again.
    """

    start_up: float = 90.0
    outages: tuple[tuple[float, float], ...] = ()
    failures: tuple[float, ...] = ()
    most: int = 64


@dataclass(eq=False)
class _Member:
    replica: Serving
    created: float
    ready_at: float
    draining: bool = False


@dataclass
class Run:
    """What a run gave.

    Attributes:
        requests: with their times; one that a dead replica had begun to answer has no end.
        spans: (created, removed) of every replica, in seconds.
        changes: (time, number) of every change of the number asked for, from the first one.
        end: when the last answer was over.
    """

    requests: list[Request]
    spans: list[tuple[float, float]] = field(default_factory=list)
    changes: list[tuple[float, int]] = field(default_factory=list)
    end: float = 0.0

    def gpu_hours(self, since: float, until: float) -> float:
        """Hours of replicas, starting and draining ones included, between two times."""
        return sum(max(0.0, min(end, until) - max(start, since)) for start, end in self.spans) / 3600.0

    def flaps(self, since: float, until: float, within: float = 300.0) -> int:
        """Changes of direction less than `within` seconds after a change the other way, between two times."""
        count = 0
        last: tuple[float, int] | None = None
        for (_, before), (at, after) in itertools.pairwise(self.changes):
            way = 1 if after > before else -1
            if last is not None and last[1] != way and at - last[0] < within and since <= at < until:
                count += 1
            last = (at, way)
        return count


class ScaledFleet:
    """One run. Requests go to the replica with the least work ahead of it, or as `dispatch` chooses; each replica is
    computed as `make` makes it, else quickly. Answers are held against `objectives`, for whoever asks for that.
    """

    def __init__(
        self,
        model: Model,
        scaler: Scaler,
        conditions: Conditions,
        first: int,
        seed: int,
        dispatch: Dispatch | None = None,
        make: Callable[[], Serving] | None = None,
        objectives: Objectives | None = None,
    ) -> None:
        self._objectives = objectives or Objectives()
        self._unjudged: list[Request] = []
        self._judged = (0, 0)  # requests answered or lost, and those of them within the objectives
        self._dispatch = dispatch or LeastWork(model)
        self._make = make or (lambda: Replica(model))
        self._scaler = scaler
        self._conditions = conditions
        self._chance = random.Random(seed)
        self._members = [_Member(self._make(), 0.0, 0.0) for _ in range(first)]
        self._desired = first
        self._held: deque[Request] = deque()
        self._gone = (0.0, 0.0)  # prompt and answer tokens of replicas that are gone
        self._arrived = 0
        self._starts: list[float] = []
        self._open: list[_Member] = []
        self._serving: list[Serving] = []
        self._see_who_serves(0.0)
        self._failures = deque(sorted(conditions.failures))

    def run(self, requests: Sequence[Request]) -> Run:
        """Serve all requests, in the order of their arrival."""
        outcome = Run(list(requests), [], [(0.0, self._desired)])
        tick = TICK
        for request in requests:
            while tick <= request.arrival:
                self._tick(tick, outcome)
                tick += TICK
            self._arrived += 1
            self._unjudged.append(request)
            self._send(request, request.arrival)
        last = requests[-1].arrival
        while self._held or any(not member.replica.idle for member in self._members):
            self._tick(tick, outcome)
            tick += TICK
            if tick > last + 3600.0:
                break  # whatever has no answer after an hour has none
        outcome.end = tick
        outcome.spans += [(member.created, tick) for member in self._members]
        return outcome

    def _send(self, request: Request, now: float) -> None:
        replicas = self._serving
        for replica in replicas:
            if replica.now < now:
                replica.advance(now)
        best = self._dispatch.choose(replicas, request, now)
        if best is None:
            self._held.append(request)
        else:
            best.offer(request)

    def _see_who_serves(self, now: float) -> None:
        self._open = [member for member in self._members if member.ready_at <= now and not member.draining]
        self._serving = [member.replica for member in self._open]

    def _tick(self, now: float, outcome: Run) -> None:
        while self._failures and self._failures[0] <= now:
            self._failures.popleft()
            self._fail(now, outcome)
        for member in self._members:
            member.replica.advance(now)
        self._dispatch.look([member.replica for member in self._members if member.ready_at <= now], now)
        if now % SCRAPE == 0:
            self._judge(now)
        self._see_who_serves(now)
        for _ in range(len(self._held) if self._open else 0):
            self._send(self._held.popleft(), now)
        for member in [m for m in self._members if m.draining and m.replica.idle]:
            self._remove(member, now, outcome)
        if now % self._scaler.period == 0:
            wanted = min(self._conditions.most, max(0, self._scaler.decide(self._view(now))))
            if wanted != self._desired:
                outcome.changes.append((now, wanted))
                self._resize(wanted, now)

    def _view(self, now: float) -> View:
        pods = []
        for member in self._members:
            if not member.draining:
                ready = member.ready_at <= now
                replica = member.replica
                running, waiting = (replica.running, replica.queued) if ready else (None, None)
                pods.append(Pod(member.created, ready, running, waiting))
        replicas = [member.replica for member in self._members]
        worked = [replica.worked for replica in replicas]
        return View(
            now,
            self._desired,
            tuple(pods),
            len(self._held),
            self._arrived,
            self._gone[0] + sum(prompt for prompt, _ in worked),
            self._gone[1] + sum(answer for _, answer in worked),
            sum(replica.ahead for replica in replicas),
            tuple(self._starts[-20:]),
            not any(start <= now < end for start, end in self._conditions.outages),
            *self._judged,
        )

    def _judge(self, now: float) -> None:
        """Count the requests that were answered since the last scrape."""
        over = [request for request in self._unjudged if 0 <= request.done <= now]
        self._unjudged = [request for request in self._unjudged if not 0 <= request.done <= now]
        answered, good = self._judged
        self._judged = (answered + len(over), good + sum(kept(request, self._objectives) for request in over))

    def _resize(self, wanted: int, now: float) -> None:
        self._desired = wanted
        staying = [member for member in self._members if not member.draining]
        for _ in range(wanted - len(staying)):
            self._start(now)
        # First those that do not serve yet, then those with the least to lose.
        order = sorted(staying, key=lambda m: (m.ready_at <= now, m.replica.running + m.replica.queued, -m.created))
        for member in order[: max(0, len(staying) - wanted)]:
            member.draining = True
        self._see_who_serves(now)

    def _start(self, now: float) -> None:
        mean = self._conditions.start_up
        took = max(0.5 * mean, self._chance.gauss(mean, 0.1 * mean))
        replica = self._make()
        replica.now = now
        self._members.append(_Member(replica, now, now + took))
        self._starts.append(took)

    def _remove(self, member: _Member, now: float, outcome: Run) -> None:
        self._members.remove(member)
        self._dispatch.forget(member.replica)
        prompt, answer = member.replica.worked
        self._gone = (self._gone[0] + prompt, self._gone[1] + answer)
        outcome.spans.append((member.created, now))

    def _fail(self, now: float, outcome: Run) -> None:
        """A replica dies. What it had not begun to answer is sent again; what it had is lost."""
        if not self._open:
            return
        member = max(self._open, key=lambda m: m.replica.running + m.replica.queued)
        member.replica.advance(now)
        unfinished = member.replica.unfinished()
        again = [request for request in unfinished if request.first_token < 0]
        lost = {id(request) for request in unfinished if request.first_token >= 0}
        self._unjudged = [request for request in self._unjudged if id(request) not in lost]
        self._judged = (self._judged[0] + len(lost), self._judged[1])
        self._remove(member, now, outcome)
        self._see_who_serves(now)
        self._start(now)
        for request in sorted(again, key=lambda one: one.arrival):
            request.left = request.cached_tokens = 0
            self._send(request, now)
