"""The record of the traffic is put back where somebody takes it away: what serves goes on getting the requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline_crds.names import ANNOTATION_ROLLOUT, LABEL_SERVICE
from paceline_kube import DEPLOYMENTS, INFERENCEREVISIONS, INFERENCESERVICES, Change, JsonObject
from paceline_operator.observed import Entry, Observed, Ownership, RevisionView, Traffic
from paceline_operator.records import Records, record_of

CHAT = ("demo", "chat")


def text(generation: int, name: str) -> str:
    return Traffic(generation, name, (Entry("default", name),), 5.0).to_json()


def revision(name: str, record: str | None, uid: str = "u") -> JsonObject:
    owner = {"uid": "service", "controller": True}
    annotations = {} if record is None else {ANNOTATION_ROLLOUT: record}
    return {
        "metadata": {"name": name, "uid": uid, "annotations": annotations, "ownerReferences": [owner]},
        "spec": {"service": "chat"},
    }


def deleted(obj: JsonObject) -> Change:
    return Change("deleted", ("demo", obj["metadata"]["name"]), obj, None)


def modified(old: JsonObject, new: JsonObject) -> Change:
    return Change("modified", ("demo", old["metadata"]["name"]), old, new)


def seen(*records: tuple[str, int], uid: str = "service") -> Observed:
    views = (
        RevisionView(name, "u", "1", "", Ownership.OURS, None, record_of(revision(name, text(generation, name))))
        for name, generation in records
    )
    return Observed("demo", "chat", uid, 1, revisions=tuple(views))


SERVES = revision("chat-b", text(7, "chat-b"))


@pytest.mark.parametrize(
    "change",
    [
        deleted(SERVES),
        modified(SERVES, revision("chat-b", None)),
        modified(SERVES, revision("chat-b", "by hand")),
        modified(SERVES, revision("chat-b", text(2, "chat-b"))),
        modified(SERVES, revision("chat-b", text(9, "chat-b"), uid="another")),
    ],
    ids=["deleted", "taken off", "overwritten", "set back", "another object of the name"],
)
def test_a_record_that_was_taken_away_is_kept_until_one_as_new_counts(change: Change) -> None:
    records = Records()
    records.see(CHAT, change)
    for _ in range(2):
        assert records.lost(CHAT, seen(("chat-a", 3))) == SERVES
        assert records.lost(CHAT, seen()) == SERVES
    assert records.lost(CHAT, seen(("chat-b", 7))) is None
    assert records.lost(CHAT, seen(("chat-a", 3))) is None, "it was there again, and what goes now is another matter"


def test_of_several_that_were_taken_away_the_newest_counts() -> None:
    records = Records()
    for obj in (SERVES, revision("chat-a", text(3, "chat-a")), revision("chat-c", None)):
        records.see(CHAT, deleted(obj))
    assert records.lost(CHAT, seen()) == SERVES


def test_nothing_is_put_back_of_another_service_of_the_name_or_of_one_that_is_gone() -> None:
    records = Records()
    records.see(CHAT, deleted(SERVES))
    assert records.lost(CHAT, seen(uid="made anew")) is None
    records.see(CHAT, deleted(SERVES))
    records.forget(CHAT)
    assert records.lost(CHAT, seen()) is None


def test_a_change_that_leaves_the_record_or_renews_it_takes_nothing_away() -> None:
    records = Records()
    records.see(CHAT, modified(SERVES, {**SERVES, "status": {}}))
    records.see(CHAT, modified(SERVES, revision("chat-b", text(8, "chat-b"))))
    records.see(CHAT, deleted(revision("chat-a", None)))
    assert records.lost(CHAT, seen()) is None


@pytest.mark.parametrize(
    "odd",
    [
        '{"generation":Infinity,"movedAt":1,"weights":[{"pool":"p","revision":"chat-b","weight":100}]}',
        '{"generation":1e300,"movedAt":1,"weights":[{"pool":"p","revision":"chat-b","weight":100}]}',
        '{"generation":0,"movedAt":1,"weights":[{"pool":"p","revision":"chat-b","weight":100}]}',
        '{"generation":5,"movedAt":NaN,"weights":[{"pool":"p","revision":"chat-b","weight":100}]}',
        '{"generation":5,"movedAt":1,"weights":[{"pool":"p","revision":"chat-b","weight":101}]}',
        '{"generation":5,"movedAt":1,"weights":[{"pool":"p","revision":"chat-x","weight":100}]}',
        '{"generation":5,"movedAt":1,"weights":[]}',
        "[" * 100_000,
    ],
)
def test_a_record_written_by_hand_that_says_nothing_sound_is_none(odd: str) -> None:
    assert Traffic.from_json("chat-b", odd) is None


NO_LABEL = {LABEL_SERVICE: None}
"""Without it the informers, which look for the label, do not see the revision any more."""

SITUATIONS: dict[str, dict[str, Any]] = {
    "pinned": {"runtime": {"maxNumSeqs": 9}},
    "suspended": {"runtime": {"maxNumSeqs": 9}, "suspend": True},
    "a spec that cannot be rendered": {"model": {"source": "hf://org/name", "cacheVolumeName": "absent"}},
    "a revision that does not get ready": {"pod": {"nodeSelector": {"no": "such-node"}}},
}


@pytest.mark.cluster
@pytest.mark.parametrize("how", ["revision deleted", "record taken off", "label taken off"])
@pytest.mark.parametrize("situation", SITUATIONS)
async def test_what_serves_goes_on_getting_requests_though_its_record_is_taken_away(
    world, make_service, situation: str, how: str
) -> None:
    def only_the_first_two(pod: JsonObject) -> JsonObject | None:
        return {"phase": "Pending"} if pod["spec"].get("nodeSelector") else None

    async with world.operator() as operator, world.kubelet(only_the_first_two):
        await world.apply(make_service())
        await world.until_ready()
        await world.apply(make_service(runtime={"maxNumSeqs": 8}))
        before = (await world.until_ready())["status"]
        serves = before["currentRevision"]

        async def alone() -> bool:
            return len(await world.all(DEPLOYMENTS)) == 1

        await world.until(alone, "the first revision has no replica left")
        asked = dict(SITUATIONS[situation])
        if situation == "pinned":
            asked["rollout"] = {"order": {"revision": serves, "action": "Pin"}}
        edited = await world.apply(make_service(**asked))

        async def judged() -> bool:
            status = (await world.get(INFERENCESERVICES, "chat"))["status"]
            return bool(status["observedGeneration"] == edited["metadata"]["generation"])

        await world.until(judged, "the status speaks of the change")
        if how == "revision deleted":
            await world.client.delete(INFERENCEREVISIONS, serves, world.namespace)
        else:
            taken = {"annotations": {ANNOTATION_ROLLOUT: None}} if how == "record taken off" else {"labels": NO_LABEL}
            patch = {"metadata": taken}
            await world.client.patch(INFERENCEREVISIONS, serves, patch, world.namespace, field_manager="admin")

        async def back() -> bool:
            kept = {r["metadata"]["name"]: r for r in await world.all(INFERENCEREVISIONS)}
            labels = kept[serves]["metadata"].get("labels") or {} if serves in kept else {}
            return LABEL_SERVICE in labels and record_of(kept[serves]) is not None

        await world.until(back, "the record is there again")
        for _ in range(3):
            await operator.reconciler.reconcile(world.namespace, "chat")
        after = (await world.get(INFERENCESERVICES, "chat"))["status"]
        assert after["traffic"] == before["traffic"]
        assert (await world.condition(type="TrafficReady"))["status"] == "True"
        assert "TrafficRecordRestored" in operator.told.reasons()
        assert operator.errors == [], json.dumps([str(e) for e in operator.errors])
