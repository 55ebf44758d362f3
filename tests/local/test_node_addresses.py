"""Addresses of pods and Services."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paceline_local.node.addresses import AddressesExhausted, AddressPool

OWNERS = st.sampled_from([f"pod-{n}" for n in range(8)])


class Addresses(RuleBasedStateMachine):
    """Owners come and go on a range of five addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = AddressPool("127.1.1.0/29", reserved=["127.1.1.1"])
        self.model: dict[str, str] = {}
        self.freed: list[str] = []

    @rule(owner=OWNERS)
    def acquire(self, owner: str) -> None:
        try:
            address = self.pool.acquire(owner)
        except AddressesExhausted:
            assert len(self.model) == 5
            assert owner not in self.model
            return
        assert self.model.setdefault(owner, address) == address

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        self.pool.release(owner)
        self.model.pop(owner, None)

    @rule(owner=OWNERS, number=st.integers(1, 8))
    def claim(self, owner: str, number: int) -> None:
        address = f"127.1.1.{number}"
        free = 2 <= number <= 6 and address not in self.model.values() and owner not in self.model
        assert self.pool.claim(owner, address) is (free or self.model.get(owner) == address)
        if free:
            self.model[owner] = address

    @invariant()
    def nobody_shares(self) -> None:
        assert self.pool.used == self.model
        assert len(set(self.model.values())) == len(self.model)
        assert "127.1.1.1" not in self.model.values()


TestAddresses = Addresses.TestCase


def test_a_freed_address_rests_as_long_as_possible() -> None:
    pool = AddressPool("127.1.1.0/29")
    first = pool.acquire("a")
    pool.release("a")
    given = [pool.acquire(f"b{n}") for n in range(6)]
    assert given[-1] == first
    with pytest.raises(AddressesExhausted):
        pool.acquire("c")
