"""Which version a request belongs to, at first and when it is sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline_crds.routing import Stickiness

if TYPE_CHECKING:
    from paceline_router.flow.record import Record
    from paceline_router.table.routes import Lane


def sticky_by(exchange: Record) -> bytes | None:
    """What keeps a request on one version while traffic is split; None: it sticks to nothing."""
    stickiness = exchange.living.policy.stickiness
    if stickiness is Stickiness.NONE:
        return None
    session = exchange.session if stickiness is Stickiness.SESSION else None
    return session if session is not None else exchange.tenant.wire or None


def lane_again(exchange: Record) -> Lane:
    """The lane for a further attempt, or after a wait: of the table of now, and of the version that the request had,
    unless that has no replica left for it.
    """
    route = exchange.living.route
    revision = exchange.by_hand
    if revision is not None:
        return route.revisions.get(revision) or exchange.lane
    if exchange.revision:
        lane = route.revisions.get(exchange.revision)
        if lane is not None and any(backend not in exchange.tried for backend in lane.backends):
            return lane
    return route.lane(exchange.turn, sticky_by(exchange))
