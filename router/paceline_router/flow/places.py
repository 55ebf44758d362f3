"""What follows from where a request goes, made once for a replica in a lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline_router.flow import words

if TYPE_CHECKING:
    from paceline_router.table.routes import Lane, Route


class Place:
    """A replica in a lane, of one table.

    Attributes:
        lane, route: for which it was made.
        served: the name of the model there. Replicas of different revisions may have different names, and know only
            their own.
        labels: the header lines that tell the client where its answer comes from.
        pool, revision: the same for the books; empty where not known.
    """

    __slots__ = ("labels", "lane", "pool", "revision", "route", "served")

    def __init__(self, lane: Lane, route: Route, key: str) -> None:
        self.lane = lane
        self.route = route
        self.served = lane.served.get(key) or route.served_name
        labels = self.labels = lane.labels.get(key, b"")
        self.pool, self.revision = words.PLACES.get(labels) or words.place_of(labels)
