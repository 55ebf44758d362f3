"""Loopback addresses of pods: each pod has one for its life, and a freed one rests as long as possible. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable


class AddressesExhausted(Exception):
    """Every address of the range is in use."""


class AddressPool:
    """Addresses of one range, without its first two (network and node) and its last."""

    def __init__(self, network: str, reserved: Iterable[str] = ()) -> None:
        """`network` in CIDR form; `reserved` addresses are never given out."""
        hosts = [str(host) for host in ipaddress.ip_network(network).hosts()]
        blocked = set(reserved)
        self._free = dict.fromkeys(host for host in hosts if host not in blocked)
        self._used: dict[str, str] = {}
        self._range = set(self._free)

    def acquire(self, owner: str) -> str:
        """The owner's address: the one it has, else the one that has been free the longest.

        Raises:
            AddressesExhausted: None is free.
        """
        if owner in self._used:
            return self._used[owner]
        if not self._free:
            raise AddressesExhausted(f"all {len(self._range)} addresses of this node are in use")
        address = next(iter(self._free))
        del self._free[address]
        self._used[owner] = address
        return address

    def claim(self, owner: str, address: str) -> bool:
        """Give the owner this very address, if it is in the range and free (or its own already)."""
        if self._used.get(owner) == address:
            return True
        if owner in self._used or address not in self._free:
            return False
        del self._free[address]
        self._used[owner] = address
        return True

    def release(self, owner: str) -> None:
        """Take the owner's address back, if it has one."""
        address = self._used.pop(owner, None)
        if address is not None:
            self._free[address] = None

    @property
    def used(self) -> dict[str, str]:
        """Owner → address."""
        return dict(self._used)
