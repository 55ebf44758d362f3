"""Who keeps a served name, whom a change concerns, and what is said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_kube import Change, Store
from paceline_operator.served_names import Conflict, concerned, conflict_of, served_name, served_name_indexes


def service(key: str, name: str | None = None, created: int = 0, uid: str = "") -> dict[str, Any]:
    namespace, _, of = key.partition("/")
    metadata = {
        "namespace": namespace,
        "name": of,
        "uid": uid or f"uid-{key}",
        "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
    }
    return {"metadata": metadata, "spec": {"model": {} if name is None else {"servedName": name}}}


def store_of(*services: dict[str, Any]) -> Store:
    store = Store(served_name_indexes())
    for obj in services:
        store.put(obj)
    return store


def conflict(of: dict[str, Any], *others: dict[str, Any]) -> Conflict:
    found = conflict_of(of, store_of(of, *others))
    assert found is not None
    return found


def modified(old: dict[str, Any], new: dict[str, Any]) -> Change:
    return Change("modified", (new["metadata"]["namespace"], new["metadata"]["name"]), old, new)


def added(new: dict[str, Any]) -> Change:
    return Change("added", (new["metadata"]["namespace"], new["metadata"]["name"]), None, new)


def deleted(old: dict[str, Any]) -> Change:
    return Change("deleted", (old["metadata"]["namespace"], old["metadata"]["name"]), old, None)


def test_the_name_of_the_service_is_the_default() -> None:
    assert served_name(service("a/chat")) == "chat"
    assert served_name(service("a/chat", "acme/M")) == "acme/M"


@pytest.mark.parametrize("spec", [None, {}, {"model": None}, {"model": 3}, {"model": {"servedName": ["x"]}}])
def test_a_spec_of_another_release_still_claims_a_name(spec: Any) -> None:
    assert served_name({**service("a/chat"), "spec": spec}) == "chat"


def test_names_of_ones_own_are_no_conflict() -> None:
    first, second = service("a/chat", "acme/m"), service("b/chat", "acme/M")
    assert conflict_of(first, store_of(first, second)) is None


def test_the_older_service_keeps_the_name_and_both_are_told() -> None:
    old, young = service("a/chat", "acme/m", 1), service("b/chat", "acme/m", 2)
    kept, taken = conflict(old, young), conflict(young, old)
    assert kept.keeps
    assert kept.message == (
        'this service keeps the served name "acme/m": b/chat asked for it too, and can be reached by namespace/name '
        "and by path only"
    )
    assert not taken.keeps
    assert taken.message == (
        'the served name "acme/m" is kept by a/chat, which is older, and requests for it go there: reach this service '
        'by model "b/chat" or the path /b/chat/v1, or give it a spec.model.servedName of its own'
    )


def test_default_names_meet_across_namespaces() -> None:
    old, young = service("a/chat", created=1), service("b/chat", created=2)
    assert conflict(old, young).keeps
    assert not conflict(young, old).keeps


def test_an_address_is_kept_by_its_service_whatever_its_age() -> None:
    addressed, older = service("a/chat", "chat", 9), service("b/other", "a/chat", 1)
    taken = conflict(older, addressed)
    assert not taken.keeps
    assert "kept by a/chat, which has it as its address" in taken.message
    assert conflict_of(addressed, store_of(addressed, older)) is None, "it loses nothing"
    same = service("a/chat", "a/chat", 9)
    assert conflict(same, older).keeps


def test_of_many_others_some_are_named() -> None:
    old = service("a/chat", "m", 0)
    young = [service(f"b/s{i}", "m", i + 1) for i in range(8)]
    assert "b/s0, b/s1, b/s2, b/s3, b/s4 and 3 more asked" in conflict(old, *young).message


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc")), min_size=2, max_size=6), st.randoms())
def test_exactly_one_keeps_a_name_in_whatever_order_they_are_seen(ages: list[tuple[int, str]], random: Any) -> None:
    services = [service(f"ns/s{i}", "m", age, uid) for i, (age, uid) in enumerate(ages)]
    shuffled = list(services)
    random.shuffle(shuffled)
    store = store_of(*shuffled)
    found = [conflict_of(obj, store) for obj in services]
    assert all(found)
    [holder] = [c.own.service for c in found if c is not None and c.keeps]
    assert {c.others[0].service for c in found if c is not None and not c.keeps} == {holder}
    assert (ages[int(holder.removeprefix("ns/s"))]) == min(ages)


def test_a_service_that_comes_or_goes_concerns_those_of_its_name() -> None:
    mine, other, stranger = service("a/chat", "m"), service("b/chat", "m"), service("c/x", "n")
    assert concerned(added(mine), store_of(mine, other, stranger)) == [("b", "chat")]
    assert concerned(deleted(mine), store_of(other, stranger)) == [("b", "chat")]


def test_a_new_name_concerns_those_of_the_old_and_the_new_one() -> None:
    old, new = service("a/chat", "m"), service("a/chat", "n")
    store = store_of(new, service("b/chat", "m"), service("c/x", "n"), service("d/y", "o"))
    assert concerned(modified(old, new), store) == [("b", "chat"), ("c", "x")]


def test_any_other_change_concerns_nobody_else() -> None:
    old = service("a/chat", "m")
    new = {**old, "status": {"replicas": 1}}
    assert concerned(modified(old, new), store_of(new, service("b/chat", "m"))) == []


def test_a_service_made_anew_unseen_concerns_those_of_its_name() -> None:
    old, new = service("a/chat", "m", 1, "u1"), service("a/chat", "m", 5, "u2")
    assert concerned(modified(old, new), store_of(new, service("b/chat", "m", 3))) == [("b", "chat")]


def test_whoever_is_served_by_an_address_is_concerned_by_its_service() -> None:
    addressed, other = service("a/chat", "chat"), service("b/x", "a/chat")
    assert concerned(added(addressed), store_of(addressed, other)) == [("b", "x")]
    assert concerned(deleted(addressed), store_of(other)) == [("b", "x")]
