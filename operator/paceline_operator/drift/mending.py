"""Which repair a pass takes, and what is remembered of it until the next one."""

from __future__ import annotations

import time

from paceline_crds.service import DriftPolicy
from paceline_kube import Key
from paceline_operator.actions import Phase
from paceline_operator.observed import Observed
from paceline_operator.render import Desired

from .compare import Drift
from .repair import Last, Repair, after, repair


class Mender:
    """Repairs of every service. The interval between two is counted on a clock that nobody sets."""

    def __init__(self) -> None:
        self._last: dict[Key, Last] = {}

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._last.pop(key, None)

    def next(self, key: Key, phase: Phase, observed: Observed, desired: Desired, drift: Drift | None) -> Repair:
        """The next repair, once nothing else is under way."""
        if desired.drift_policy is not DriftPolicy.REPAIR or drift is None or phase is not Phase.SETTLED:
            return Repair()
        return repair(observed, drift, time.monotonic(), self._last.get(key))

    def taken(self, key: Key, mending: Repair, observed: Observed, drift: Drift | None) -> str:
        """A repair was taken.

        Returns:
            Words where what it mends comes back each time; else nothing.
        """
        if not mending.costs or drift is None:
            return ""
        self._last[key] = last = after(mending, observed, drift, time.monotonic(), self._last.get(key))
        return last.futile
