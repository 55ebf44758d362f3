"""What a rollout remembers: small enough for an annotation, complete enough to go on from after a restart."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from .asked import Order, Step
from .capacity import Capacity, Split, Way, split

SHADOW_STEP = -1

MOST_ORDERS = 16
"""That are remembered; the state is a part of an annotation."""

_ONE_REPLICA = Step(1, 0.0, 0.0, replicas=1)


class Phase(enum.StrEnum):
    """Where a rollout is.

    IDLE: all traffic at the base, nothing is rolled out (`rejected` says which revision was).
    BLOCKED: a rollout is asked for and cannot begin; `reason` and `message` say why.
    PREPARING: the candidate's replicas for the coming step get ready; the traffic is as it was.
    SHADOW: the candidate gets copies, and no request of its own.
    MOVING: the step's traffic is asked for, and not yet followed by every router.
    JUDGING: every router follows it.
    HELD: a gate was worse and `onBreach` is Pause; a person decides.
    FINISHING: all traffic at the candidate; the base is kept until the hold ends.
    ROLLING_BACK: the traffic goes back, and the candidate's replicas stay until every router has left them.
    """

    IDLE = "Idle"
    BLOCKED = "Blocked"
    PREPARING = "Preparing"
    SHADOW = "Shadow"
    MOVING = "Moving"
    JUDGING = "Judging"
    HELD = "Held"
    FINISHING = "Finishing"
    ROLLING_BACK = "RollingBack"


@dataclass(frozen=True, slots=True)
class State:
    """Of one service. Starts as `State(base=...)`.

    Attributes:
        base: the revision that serves, and that a rollback goes back to.
        candidate: the revision that is rolled out; empty in IDLE and BLOCKED.
        step: index in `steps` of the step that is prepared, moved to or judged; -1 is the shadow step.
        weight: the candidate's whole percent, as asked of the routers.
        generation: of that traffic; grows with each change of it.
        since, begun: seconds since the epoch at which the phase and the rollout began.
        steps, way: of this rollout, fixed when it began, so that a weight always means the same.
        rejected: a revision that was rolled back, and is not begun again by itself while the spec asks for it.
        handled: id of the last order that was followed.
        earlier: ids that were given to orders that were followed, newest last: one that comes back, as when Git is
            taken back or applied over another order, is not followed again.
        reason, message: why it is where it is.
        by: who gave the order that brought it there; empty where it came there by itself.
    """

    base: str
    phase: Phase = Phase.IDLE
    candidate: str = ""
    step: int = SHADOW_STEP
    weight: int = 0
    generation: int = 0
    since: float = 0.0
    begun: float = 0.0
    steps: tuple[Step, ...] = ()
    way: Way = Way.WARM
    rejected: str = ""
    handled: str = ""
    reason: str = "AsAsked"
    message: str = ""
    by: str = ""
    earlier: tuple[str, ...] = ()

    def followed(self, order: Order) -> bool:
        """Whether this order was followed already."""
        return order.id == self.handled or (order.named and order.id in self.earlier)

    def following(self, order: Order) -> State:
        """With this order followed."""
        rest = tuple(one for one in self.earlier if one != order.id)
        earlier = (*rest, order.id)[-MOST_ORDERS:] if order.named else rest
        return replace(self, handled=order.id, earlier=earlier)

    def serving(self, base: str) -> State:
        """All traffic at `base`, and nothing under way; orders that were followed stay so."""
        return State(base, generation=self.generation, handled=self.handled, earlier=self.earlier)

    @property
    def traffic(self) -> dict[str, int]:
        """Whole percent by revision: one revision or two, 100 together."""
        shares = {self.base: 100 - self.weight, self.candidate: self.weight}
        return {revision: weight for revision, weight in shares.items() if weight}

    @property
    def shadows(self) -> bool:
        """Whether routers copy requests to the candidate now."""
        return self.phase is Phase.SHADOW

    def replicas(self, total: int) -> Split:
        """What each revision should have, of `total` that the load asks for."""
        if not self.candidate:
            return Split(total, 0)
        capacity = Capacity(self.way, 0, self.steps, "")
        if self.phase is Phase.ROLLING_BACK:
            # The base is made whole at once; the candidate keeps what it had until routers have left it.
            return Split(total, split(capacity, total, None, self._prepared_for).candidate)
        coming = self._prepared_for if self.phase in (Phase.PREPARING, Phase.SHADOW) else None
        return split(capacity, total, self.now_at, coming)

    @property
    def _prepared_for(self) -> Step:
        return _ONE_REPLICA if self.step == SHADOW_STEP else self.steps[self.step]

    @property
    def now_at(self) -> Step | None:
        """The step whose traffic is asked for; None while all of it is at the base."""
        return next((step for step in self.steps if step.weight == self.weight), None) if self.weight else None

    @property
    def remembers(self) -> bool:
        """Whether there is anything to remember beside where the traffic goes."""
        return bool(self.candidate or self.rejected or self.handled or self.phase is Phase.BLOCKED)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_value(), separators=(",", ":"))

    def to_value(self) -> dict[str, Any]:
        """As a part of the annotation `paceline.io/rollout`."""
        value = asdict(self)
        for name in ("by", "earlier"):
            if not value[name]:
                del value[name]  # a release before this one knows of no such field
        return value

    @classmethod
    def from_json(cls, text: str) -> State:
        """Read what `to_json` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ValueError(f"this is no state of a rollout: {error}") from None
        return cls.from_value(found)

    @classmethod
    def from_value(cls, found: Any) -> State:
        """Read what `to_value` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            value = dict(found)
            steps = tuple(Step(**step) for step in value.pop("steps"))
            value.pop("shapes", None)  # written by earlier releases, always empty
            phase, way = Phase(value.pop("phase")), Way(value.pop("way"))
            earlier = tuple(str(one) for one in value.pop("earlier", ()))
            return cls(**value, steps=steps, phase=phase, way=way, earlier=earlier)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this is no state of a rollout: {error}") from None


def at(state: State, phase: Phase, now: float, reason: str, message: str) -> State:
    """The same rollout in another phase."""
    return replace(state, phase=phase, since=now, reason=reason, message=message)


def with_weight(state: State, weight: int) -> State:
    """Ask the routers for another share; the same one is no change."""
    return state if weight == state.weight else replace(state, weight=weight, generation=state.generation + 1)
