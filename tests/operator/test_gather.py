"""From raw objects to views: whose they are, what counts, what cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline_crds.service import InferenceService
from paceline_operator import children
from paceline_operator.actions import child_name
from paceline_operator.gather import RevisionReader, gather
from paceline_operator.observed import Entry, Observed, Ownership, Traffic
from paceline_operator.render import Carried, render

SERVICE = {
    "apiVersion": "paceline.io/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "chat", "namespace": "demo", "uid": "uid", "generation": 3},
    "spec": {"model": {"source": "package://m"}},
}
DESIRED = render(InferenceService.from_object(SERVICE), Carried(), "r:1")
EMPTY = Observed("demo", "chat", "uid", 3)
NAME = child_name("chat", DESIRED.pools[0])


def stored(obj: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """As it comes back from the API server."""
    obj = json.loads(json.dumps(obj))
    obj["metadata"] |= {"uid": f"uid-of-{obj['metadata']['name']}", "resourceVersion": "7", **metadata}
    return obj


def deployment(**metadata: Any) -> dict[str, Any]:
    return stored(children.deployment(EMPTY, NAME, DESIRED.pools[0], 2), **metadata)


def observe(**objects: list[dict[str, Any]]) -> Observed:
    kinds = {"revisions": [], "deployments": [], "config_maps": [], "pods": []} | objects
    return gather(SERVICE, read=RevisionReader(), **kinds)  # type: ignore[arg-type]


def test_our_own_children_are_recognised() -> None:
    config = stored(children.config_map(EMPTY, NAME, DESIRED.pools[0]))
    revision = stored(children.revision(EMPTY, DESIRED))
    seen = observe(deployments=[deployment()], config_maps=[config], revisions=[revision])
    [view] = seen.deployments
    assert (view.name, view.pool, view.hash, view.replicas) == (NAME, "default", DESIRED.pools[0].hash, 2)
    assert view.labelled
    assert {o.owner for o in (*seen.deployments, *seen.config_maps, *seen.revisions)} == {Ownership.OURS}
    assert seen.revisions[0].pools == DESIRED.pools
    assert seen.generation == 3


@pytest.mark.parametrize(
    ("references", "owner"),
    [
        ([], Ownership.ORPHAN),
        ([{"uid": "uid"}], Ownership.ORPHAN),
        ([{"uid": "a former one", "controller": True}], Ownership.FOREIGN),
        ([{"uid": "other"}, {"uid": "uid", "controller": True}], Ownership.OURS),
    ],
)
def test_the_controller_says_whose_an_object_is(references: list[dict[str, Any]], owner: Ownership) -> None:
    assert observe(deployments=[deployment(ownerReferences=references)]).deployments[0].owner is owner


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "mine"},
        {"labels": {"paceline.io/service": "chat"}},
        {"labels": deployment()["metadata"]["labels"] | {"app.kubernetes.io/managed-by": "Helm"}},
        {"labels": deployment()["metadata"]["labels"] | {"paceline.io/pool-hash": "0000000000"}},
        {"labels": None},
    ],
)
def test_an_object_that_only_carries_our_labels_is_not_ours(metadata: dict[str, Any]) -> None:
    unowned = {"ownerReferences": [], **metadata}
    config = stored(children.config_map(EMPTY, NAME, DESIRED.pools[0]), **unowned)
    seen = observe(deployments=[deployment(**unowned)], config_maps=[config])
    assert {o.owner for o in (*seen.deployments, *seen.config_maps)} == {Ownership.FOREIGN}


def test_a_revision_without_owner_is_taken_over_by_its_service_only() -> None:
    orphan = stored(children.revision(EMPTY, DESIRED), ownerReferences=[])
    other = json.loads(json.dumps(orphan))
    other["spec"]["service"] = "another"
    assert [r.owner for r in observe(revisions=[orphan]).revisions] == [Ownership.ORPHAN]
    assert [r.owner for r in observe(revisions=[other]).revisions] == [Ownership.FOREIGN]


@pytest.mark.parametrize("label", ["paceline.io/pool", "paceline.io/pool-hash", "app.kubernetes.io/managed-by"])
def test_a_label_of_ours_that_was_changed_is_noticed_and_the_hash_is_still_known(label: str) -> None:
    labels = deployment()["metadata"]["labels"] | {label: "changed"}
    [view] = observe(deployments=[deployment(labels=labels)]).deployments
    assert not view.labelled
    assert view.hash == DESIRED.pools[0].hash


def test_a_revision_of_another_release_that_cannot_be_read_is_there_all_the_same() -> None:
    revision = stored(children.revision(EMPTY, DESIRED))
    revision["spec"]["pools"][0]["config"]["parameters"]["blockSize"] = "sixteen"
    [view] = observe(revisions=[revision]).revisions
    assert (view.parsed, view.pools) == (None, ())


def test_the_highest_generation_of_the_traffic_is_valid() -> None:
    def revision(name: str, generation: int) -> dict[str, Any]:
        traffic = Traffic(generation, name, (Entry("default", name),), 5.0)
        body = children.revision(EMPTY, DESIRED)
        body["metadata"]["name"] = name
        return stored(body, annotations={"paceline.io/rollout": traffic.to_json()})

    seen = observe(revisions=[revision("chat-a", 3), revision("chat-b", 2)])
    assert seen.traffic == Traffic(3, "chat-a", (Entry("default", "chat-a"),), 5.0)
    broken = stored(children.revision(EMPTY, DESIRED), annotations={"paceline.io/rollout": "by hand"})
    assert observe(revisions=[broken]).traffic is None


def pod(phase: str = "Running", ready: bool = True, **metadata: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready)}]
    labels = {"paceline.io/pool": "default", "paceline.io/pool-hash": DESIRED.pools[0].hash}
    return {
        "metadata": {"name": "p", "labels": labels, **metadata},
        "status": {"phase": phase, "conditions": conditions},
    }


@pytest.mark.parametrize(
    ("obj", "ready", "exists"),
    [
        (pod(), 1, 1),
        (pod(ready=False), 0, 1),
        (pod(deletionTimestamp="2026-01-01T00:00:00Z"), 0, 1),
        (pod("Failed", ready=False), 0, 0),
        (pod("Failed"), 0, 0),
        ({"metadata": pod()["metadata"]}, 0, 1),
    ],
)
def test_which_pods_count(obj: dict[str, Any], ready: int, exists: int) -> None:
    seen = observe(pods=[obj])
    digest = DESIRED.pools[0].hash
    assert (seen.ready(digest), len(seen.pods_of(digest))) == (ready, exists)


def test_a_revision_is_parsed_once() -> None:
    read = RevisionReader(limit=1)
    revision, other = (stored(children.revision(EMPTY, DESIRED), uid=uid) for uid in ("a", "b"))
    first = read(revision)
    assert read(revision) is first
    read(other)
    again = read(revision)
    assert again == first
    assert again is not first
