"""Whether each service can be served, for `GET /v1/paceline/status` and a metric. The router's own readiness is
something else: a router that has its table is ready, however its services fare.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline_router.flow.dataplane import DataPlane
    from paceline_router.flow.living import Living


class State(enum.StrEnum):
    """How a service fares, as this router sees it."""

    SERVING = "Serving"
    DEGRADED = "Degraded"
    UNREACHABLE = "Unreachable"
    NOT_READY = "NotReady"
    NO_REPLICAS = "NoReplicas"


WORDS: Mapping[State, str] = {
    State.SERVING: "every ready replica answers",
    State.DEGRADED: "some ready replicas do not answer",
    State.UNREACHABLE: "replicas are ready in the table, and none answers this router: see what is between them",
    State.NOT_READY: "there are replicas, and none of them is ready yet",
    State.NO_REPLICAS: "there is no replica",
}


def state_of(replicas: int, ready: int, answering: int) -> State:
    """How a service with so many replicas fares.

    Args:
        ready: of them by the table, draining ones not among them.
        answering: of those that this router has not found dead.
    """
    if answering:
        return State.SERVING if answering >= ready else State.DEGRADED
    if ready:
        return State.UNREACHABLE
    return State.NOT_READY if replicas else State.NO_REPLICAS


def answering(living: Living) -> int:
    """Ready replicas that answer, or of which nothing else is known."""
    return sum(backend.answers for backend in living.backends)


def status_page(plane: DataPlane) -> dict[str, Any]:
    """The body of `GET /v1/paceline/status`."""
    return {
        "ready": plane.ready,
        "services": {
            key: _service(living.route.known, len(living.backends), answering(living), *held(living, plane.now()))
            for key, living in list(plane.living.items())
        },
    }


def held(living: Living, now: float) -> tuple[dict[str, int], float]:
    """How many requests wait by the pool that is to take them, and for how many seconds the first of them has."""
    waiting = living.gate.waiting()
    oldest = max((now - one.parked_at for one in waiting), default=0.0)
    return dict(Counter(one.asked.wanted for one in waiting)), max(0.0, oldest)


def _service(replicas: int, ready: int, answer: int, by_pool: Mapping[str, int], oldest: float) -> dict[str, Any]:
    state = state_of(replicas, ready, answer)
    return {
        "state": state.value,
        "available": bool(answer),
        "replicas": replicas,
        "ready": ready,
        "answering": answer,
        "held": sum(by_pool.values()),
        "heldByPool": dict(by_pool),
        "oldestWaitSeconds": round(oldest, 3),
        "message": WORDS[state],
    }


def merge_status(pages: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The body for several processes: what the one says that sees least, since the kernel may give it any request."""
    services: dict[str, Any] = {}
    for key in pages[0]["services"]:
        seen = [page["services"][key] for page in pages if key in page["services"]]
        if len(seen) == len(pages):
            replicas, ready, answer = (
                min(service[name] for service in seen) for name in ("replicas", "ready", "answering")
            )
            by_pool = sum((Counter(service["heldByPool"]) for service in seen), Counter[str]())
            oldest = max(service["oldestWaitSeconds"] for service in seen)
            services[key] = _service(replicas, ready, answer, by_pool, oldest)
    return {"ready": all(page["ready"] for page in pages), "services": services}
