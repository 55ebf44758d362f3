"""What each tenant has in the queue and the batch, and how much it was served.

Fair shares follow start-time fair queueing (Goyal, Vin, Cheng 1996): each tenant has a virtual time that grows with the
tokens it was served, divided by its weight; the tenant furthest behind is next. One that comes back after a pause
starts where those who stayed are, so that nobody saves up time.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_IDLE = 4096
"""Tenants remembered that have nothing here now."""


@dataclass(slots=True)
class Tenant:
    """One of those who pay.

    Attributes:
        slots: the most answers in the batch at once; 0 is no bound.
        virtual: tokens served, divided by weight, on the clock that all share.
        waiting: answers in the queue.
        running: answers in the batch.
    """

    name: str
    weight: float = 1.0
    slots: int = 0
    virtual: float = 0.0
    waiting: int = 0
    running: int = 0

    @property
    def active(self) -> bool:
        """It has something here."""
        return self.waiting > 0 or self.running > 0

    def has_slots(self, count: int) -> bool:
        """Whether so many more answers may run. A request with more answers than the bound runs while nothing else of
        its tenant does: else it never would."""
        return not self.slots or not self.running or self.running + count <= self.slots


class Tenants:
    """All tenants that have something here, and some that had."""

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}

    def __getitem__(self, name: str) -> Tenant:
        """A tenant that has something here."""
        return self._tenants[name]

    def waiting(self, name: str) -> int:
        """Answers that a tenant has in the queue."""
        tenant = self._tenants.get(name)
        return tenant.waiting if tenant is not None else 0

    def arrive(self, name: str, weight: float, slots: int) -> Tenant:
        """A request of a tenant comes in; the newest weight and bound count."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name)
        if not tenant.active:
            others = [other.virtual for other in self._tenants.values() if other.active]
            tenant.virtual = max(tenant.virtual, min(others)) if others else tenant.virtual
        tenant.weight, tenant.slots = max(weight, 1e-6), slots
        return tenant

    def serve(self, name: str, tokens: int) -> None:
        """Enter tokens computed for a tenant, or about to be."""
        tenant = self._tenants[name]
        tenant.virtual += tokens / tenant.weight

    def rest(self, name: str) -> None:
        """Forget what need not be known once a tenant has nothing here."""
        if self._tenants[name].active:
            return
        if not any(tenant.active for tenant in self._tenants.values()):
            self._tenants.clear()  # there is nobody to be compared with
        elif len(self._tenants) > MAX_IDLE:
            idle = [tenant for tenant in self._tenants.values() if not tenant.active]
            for tenant in sorted(idle, key=lambda tenant: tenant.virtual)[: len(idle) // 2]:
                del self._tenants[tenant.name]
