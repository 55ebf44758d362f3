"""The wait for a turn at the gate: for one of the tenant's slots, for room in the fleet, or for a replica to start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline_router.flow import words
from paceline_router.flow.holding import MAX_HELD_BYTES
from paceline_router.flow.record import Record
from paceline_router.wire.answers import Refusal

if TYPE_CHECKING:
    from paceline_router.table.routes import Lane


class Waiting(Record):
    """An exchange at the gate."""

    __slots__ = ()

    def begin(self, lane: Lane) -> None:
        """Send the request to a replica of `lane`, or let it wait, or answer why it cannot go."""
        self.lane = lane
        living = self.living
        if not lane.backends and self.by_hand is not None:
            self._answer(words.none_ready(living.route, lane, self.by_hand), "none_ready")
            return
        now = self.started_at
        try:
            room = bool(lane.backends) and (living.unbounded or living.room())
            goes = living.gate.enter(self, room, now)
        except Refusal as refusal:
            self._no_place(refusal)
            return
        if goes:
            # As `_attempt`, without the call.
            backend = self._plane.choose_for(self, now)
            if backend is not None:
                self._start_at(backend, now)
            else:
                self._none_takes_it(now)
        else:
            self._parked()
            if lane.backends:
                self._plane.pump(living)  # whoever is next, if only the order made this one wait

    def _wait_again(self, now: float) -> None:
        """Give the slot back and wait: no replica can take the request now."""
        self.living.gate.put_back(self, now)
        self._parked()

    def _parked(self) -> None:
        self.waits = True
        living = self.living
        living.held_bytes += len(self._request.body)
        if living.held_bytes > MAX_HELD_BYTES:
            self._answer(words.too_many_wait(living.route, living.gate.queued), "hold_full")
        elif self.tenant.running < self.tenant.slots and self._patience() is None:
            self._none_ready()

    def _no_place(self, refusal: Refusal) -> None:
        living = self.living
        if living.backends:
            self._answer(refusal, "tenant_queue")
        else:
            self._answer(words.too_many_wait(living.route, living.gate.queued), "hold_full")

    def _none_ready(self) -> None:
        self._say_none_ready("overloaded" if self.lane.backends else "none_ready")

    def _say_none_ready(self, reason: str) -> None:
        living = self.living
        waited = living.gate.oldest_wait(self._plane.now())
        self._answer(words.none_ready(living.route, self.lane, self.by_hand, waited), reason)

    def release(self, now: float) -> bool:
        """Go on after a wait, with the slot that the gate gave; False when there is no replica for it after all."""
        self.waits = False
        self.living.held_bytes -= len(self._request.body)
        self.lane = self._lane_again()
        backend = self._plane.choose_for(self, now)
        if backend is None:
            self._wait_again(now)
            return False
        self.admitted_at = now
        self._start_at(backend, now)
        return True

    def _check_wait(self, now: float) -> None:
        """End a wait that is too long: for a replica to be ready by the spec's hold, for a turn by the gate's bound."""
        living, tenant = self.living, self.tenant
        waited = now - self.parked_at
        if tenant.running >= tenant.slots:
            if waited >= living.gate.max_wait:
                self._answer(living.gate.refusal(self, now), "tenant_queue")
            return
        patience = self._patience()
        if patience is not None and waited < patience:
            return
        if living.backends:
            self._say_none_ready("overloaded")
        elif patience is None:
            self._none_ready()
        else:
            self._say_none_ready("hold_expired")

    def _patience(self) -> float | None:
        """Seconds that it may wait for a replica; None where it may not wait."""
        return self.living.patience()
