"""Metric labels for tenants: bounded, and not changing back and forth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

OTHER = "_other"
NONE = "_none"
"""Requests that name no tenant."""

SEATS = 20
KEPT_SECONDS = 600.0
"""A tenant that got a label of its own keeps it for at least so long."""

_CLEARLY = 2.0
"""How many times the use of a seated tenant another one must have to take its seat."""


class TenantLabels:
    """`label(name)` for every tenant: the named ones (in the spec) by name, 20 others by name, the rest `_other`.

    Seats are taken in the order of arrival at first, so that in a small installation everybody has a name at once. From
    then on `refresh` gives at most one seat in ten minutes to a tenant that uses clearly more than the least of the
    seated ones. So the number of names ever shown grows by at most 144 a day, whatever clients call themselves.
    """

    def __init__(self, seats: int = SEATS) -> None:
        self._seats = seats
        self._named: frozenset[str] = frozenset()
        self._seated: dict[str, None] = {}
        self._changed_at: float | None = None

    def use(self, names: Iterable[str]) -> None:
        """These tenants have a label of their own from now on."""
        self._named = frozenset(names)
        for name in self._named & self._seated.keys():
            del self._seated[name]

    def label(self, name: str) -> str:
        """The label of a tenant. What begins like our own words never becomes one."""
        if name in self._named or name in self._seated:
            return name
        if not name:
            return NONE
        if name.startswith("_") or len(self._seated) >= self._seats:
            return OTHER
        self._seated[name] = None
        return name

    def shows(self, label: str) -> bool:
        """Whether a label can still be that of a tenant."""
        return label in (NONE, OTHER) or self._is_shown(label)

    def refresh(self, use: Mapping[str, float], now: float) -> bool:
        """Look whether another tenant deserves a seat. True when labels have changed.

        Args:
            use: tokens, or whatever measures use, since the last call that was due; by name. Absent is none.
            now: monotonic seconds.
        """
        if not self.due(now):
            return False
        self._changed_at = now
        if len(self._seated) < self._seats:
            return False
        least = min(self._seated, key=lambda name: use.get(name, 0.0))
        others = (name for name in use if not self._is_shown(name) and name and not name.startswith("_"))
        most = max(others, key=lambda name: use[name], default=None)
        if most is None or use[most] <= _CLEARLY * use.get(least, 0.0):
            return False
        del self._seated[least]
        self._seated[most] = None
        return True

    def due(self, now: float) -> bool:
        """Whether `refresh` would look."""
        if self._changed_at is None:
            self._changed_at = now
        return now - self._changed_at >= KEPT_SECONDS

    def _is_shown(self, name: str) -> bool:
        return name in self._named or name in self._seated
