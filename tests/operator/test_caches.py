from typing import Any

import pytest

from paceline_crds.names import LABEL_SERVICE, derived_name
from paceline_kube import Store
from paceline_operator.caches import owners
from paceline_operator.reconcile import service_indexes

LONG = "a-service-with-a-name-that-is-far-too-long-to-be-the-value-of-a-label-in-kubernetes"


def meta(namespace: str = "demo", **labels: str) -> dict[str, Any]:
    return {"name": "child", "namespace": namespace, "labels": {LABEL_SERVICE: labels["of"]} if labels else {}}


@pytest.fixture
def services() -> Store:
    store = Store(service_indexes())
    for namespace, name in (("demo", "chat"), ("other", "chat"), ("demo", LONG)):
        store.put({"metadata": {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}"}})
    return store


def test_a_child_wakes_the_service_of_its_own_namespace(services: Store) -> None:
    assert owners(meta(of="chat"), services) == [("demo", "chat")]
    assert owners(meta("other", of="chat"), services) == [("other", "chat")]


def test_a_cut_label_still_finds_its_service(services: Store) -> None:
    assert derived_name(LONG) != LONG
    assert owners(meta(of=derived_name(LONG)), services) == [("demo", LONG)]


@pytest.mark.parametrize("metadata", [meta(), meta(of="unknown"), {"name": "x"}, {"name": "x", "labels": None}])
def test_a_stranger_wakes_nobody(services: Store, metadata: dict[str, Any]) -> None:
    assert owners(metadata, services) == []
