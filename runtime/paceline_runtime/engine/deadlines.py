"""Drops work that can no longer be in time."""

from __future__ import annotations

import heapq

from paceline_runtime.messages import FinishReason

from .books import Books
from .ending import Finished
from .request import Request, RequestState
from .story import Numbers


class Deadlines:
    """Looks at each request when it may have become hopeless, never at all of them."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._heap: list[tuple[float, int, Request, float]] = []

    def watch(self, request: Request) -> None:
        """A request came in."""
        if request.deadline is not None:
            if len(self._heap) > 2 * len(self._books.requests) + 64:
                # Most have ended, long before their deadlines.
                self._heap = [entry for entry in self._heap if entry[2].state is not RequestState.FINISHED]
                heapq.heapify(self._heap)
            self._push(request, request.deadline)

    def drop(self, now: float) -> list[tuple[Request, Finished]]:
        """End the requests that cannot be in time any more: waiting ones when less is left than their own work takes
        at least, running ones at their deadline."""
        ended = []
        while self._heap and self._heap[0][0] < now:
            _, _, request, deadline = heapq.heappop(self._heap)
            if request.state is RequestState.FINISHED:
                continue
            own, left = self._own_seconds(request), deadline - now
            if deadline - own >= now:
                heapq.heappush(self._heap, (deadline - own, request.sequence, request, deadline))
                continue
            message = (
                f"{left:.3f} s remain until its deadline and its own work takes at least {own:.3f} s"
                if left > 0
                else f"its deadline passed {-left:.3f} s ago, with {request.num_output} tokens made"
            )
            numbers: Numbers = {"left": left, "ownWork": own, "outputTokens": request.num_output}
            for heir in request.forks[:1]:  # takes its place, and is as late
                heapq.heappush(self._heap, (deadline - own, heir.sequence, heir, deadline))
            self._books.remove(request)
            self._books.story.dropped(request, "Deadline", message, numbers, now)
            ended.append((request, Finished(FinishReason.DEADLINE, message=message)))
        return ended

    def _push(self, request: Request, deadline: float) -> None:
        heapq.heappush(self._heap, (deadline - self._own_seconds(request), request.sequence, request, deadline))

    def _own_seconds(self, request: Request) -> float:
        if request.state is not RequestState.WAITING:
            return 0.0
        blocks = self._books.blocks
        new = len(request.tokens) - len(blocks.match(request).found) * blocks.block_size
        return self._books.rates.own_seconds(new, 1)
