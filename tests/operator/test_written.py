"""Reading one's own writes before the informer shows them."""

from __future__ import annotations

from typing import Any

from paceline_kube import CONFIGMAPS, DEPLOYMENTS
from paceline_operator.written import KEEP_SECONDS, Written

SERVICE = ("demo", "chat")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def obj(version: int, uid: str = "u", name: str = "a") -> dict[str, Any]:
    metadata = {"namespace": "demo", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata}


def test_a_write_counts_until_the_cache_has_it() -> None:
    written = Written(Clock())
    written.put(SERVICE, DEPLOYMENTS, obj(10))
    assert written.view(SERVICE, DEPLOYMENTS, []) == [obj(10)]
    assert written.view(SERVICE, DEPLOYMENTS, [obj(9)]) == [obj(10)]
    assert written.pending(SERVICE)
    assert written.view(SERVICE, DEPLOYMENTS, [obj(11)]) == [obj(11)]
    assert not written.pending(SERVICE)
    assert written.view(SERVICE, DEPLOYMENTS, []) == []


def test_a_deletion_counts_until_the_cache_has_it() -> None:
    written = Written(Clock())
    written.remove(SERVICE, DEPLOYMENTS, obj(10))
    assert written.view(SERVICE, DEPLOYMENTS, [obj(10), obj(5, "v", "b")]) == [obj(5, "v", "b")]
    assert written.view(SERVICE, DEPLOYMENTS, [obj(12, "another")]) == [obj(12, "another")]
    assert not written.pending(SERVICE)


def test_a_write_that_never_shows_up_was_undone() -> None:
    clock = Clock()
    written = Written(clock)
    written.put(SERVICE, DEPLOYMENTS, obj(10))
    clock.now = KEEP_SECONDS + 1
    assert written.view(SERVICE, DEPLOYMENTS, []) == []


def test_kinds_and_services_are_apart() -> None:
    written = Written(Clock())
    written.put(SERVICE, DEPLOYMENTS, obj(10))
    assert written.view(SERVICE, CONFIGMAPS, []) == []
    assert written.view(("demo", "other"), DEPLOYMENTS, []) == []
    written.forget(SERVICE)
    assert written.view(SERVICE, DEPLOYMENTS, []) == []
