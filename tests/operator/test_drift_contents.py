"""ConfigMaps of the user that pods take variables from: a content that running replicas have not seen is drift."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from paceline_crds.service import InferenceService
from paceline_kube import CONFIGMAPS, INFERENCESERVICES, PODS, ApiError, JsonObject
from paceline_operator import children
from paceline_operator.actions import child_name
from paceline_operator.drift.compare import Drift, World, compare
from paceline_operator.drift.contents import Contents, config_maps_of, written_at
from paceline_operator.observed import Observed
from paceline_operator.render import Carried, render

KEY = ("demo", "chat")
ENV = [
    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "tuning", "key": "a"}}},
    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "b"}}},
]
BODY = {
    "metadata": {"name": "chat", "namespace": "demo"},
    "spec": {"model": {"source": "package://m"}, "pod": {"env": ENV}},
}
[POOL] = render(InferenceService.from_object(BODY), Carried(), "r:1").pools


def config_map(at: str, label_at: str = "") -> JsonObject:
    fields = [{"manager": "user", "time": at, "fieldsV1": {"f:data": {"f:a": {}}}}]
    if label_at:
        fields.append({"manager": "other", "time": label_at, "fieldsV1": {"f:metadata": {"f:labels": {}}}})
    return {"metadata": {"name": "tuning", "creationTimestamp": "2026-11-30T09:00:00Z", "managedFields": fields}}


def drift(started: str | None, **contents: str) -> Drift:
    template = children.deployment(Observed("demo", "chat", "u", 1), child_name("chat", POOL), POOL, 1)["spec"][
        "template"
    ]
    pod = copy.deepcopy({"metadata": {"name": "p", "uid": "u", **template["metadata"]}, "spec": template["spec"]})
    if started is not None:
        state = {"name": "runtime", "state": {"running": {"startedAt": started}}}
        pod["status"] = {"containerStatuses": [state]}
    return compare(World("chat", {POOL.hash: POOL}, frozenset([POOL.hash]), pods=(pod,), contents=contents))


def test_only_config_maps_that_variables_come_from_are_looked_at() -> None:
    assert config_maps_of(POOL.pod_template) == {"tuning"}


def test_a_content_counts_by_its_last_writer_and_a_label_of_another_one_does_not() -> None:
    assert written_at(config_map("2026-11-30T10:00:00Z")) == "2026-11-30T10:00:00Z"
    assert written_at(config_map("2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z")) == "2026-11-30T10:00:00Z"
    assert written_at({"metadata": {"creationTimestamp": "2026-11-30T09:00:00Z"}}) == "2026-11-30T09:00:00Z"


def test_a_replica_that_started_before_the_content_was_written_has_drifted() -> None:
    [item] = drift("2026-11-30T10:00:00Z", tuning="2026-11-30T10:05:00Z").items
    assert (item.subject, item.field, item.replace) == ("p", "env from ConfigMap/tuning", True)
    assert "10:05:00Z" in item.desired
    assert "10:00:00Z" in item.actual
    assert drift("2026-11-30T10:06:00Z", tuning="2026-11-30T10:05:00Z").items == ()
    assert drift("2026-11-30T10:05:00Z", tuning="2026-11-30T10:05:00Z").items == (), "in the same second: not known"
    assert drift(None, tuning="2026-11-30T10:05:00Z").items == (), "it has not started: it will see it"
    assert drift("2026-11-30T10:00:00Z").items == (), "what cannot be read is not known"


async def test_a_config_map_is_asked_for_seldom_and_what_was_known_outlasts_an_error() -> None:
    now, asked, answers = 0.0, [], {"tuning": config_map("2026-11-30T10:00:00Z")}

    async def get(namespace: str, name: str) -> JsonObject:
        asked.append(f"{namespace}/{name}")
        if name not in answers:
            raise ApiError(404, "NotFound", "there is none")
        return answers[name]

    contents = Contents(get, lambda: now, 600.0)
    assert await contents.ask(KEY, ["tuning", "absent"]) == {"tuning": "2026-11-30T10:00:00Z"}
    now = 599.0
    assert await contents.ask(KEY, ["tuning", "absent"]) == {"tuning": "2026-11-30T10:00:00Z"}
    assert asked == ["demo/absent", "demo/tuning"]
    now = 601.0
    answers.clear()
    assert await contents.ask(KEY, ["tuning"]) == {"tuning": "2026-11-30T10:00:00Z"}
    assert await contents.ask(KEY, []) == {}
    assert asked == ["demo/absent", "demo/tuning", "demo/tuning"]


@pytest.mark.cluster
async def test_an_edit_of_a_config_map_is_told_on_the_service(world, make_service) -> None:
    def running(obj: JsonObject) -> dict[str, Any]:
        started = {"running": {"startedAt": "2026-11-01T10:00:00Z"}}
        container = {"name": "runtime", "ready": True, "restartCount": 0, "image": "i", "imageID": "", "state": started}
        kinds = ("PodScheduled", "ContainersReady", "Ready")
        conditions = [{"type": kind, "status": "True"} for kind in kinds]
        return {"phase": "Running", "conditions": conditions, "containerStatuses": [container]}

    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "tuning"}, "data": {"a": "1"}}
    await world.client.create(CONFIGMAPS, body, world.namespace)
    async with world.operator(drift_seconds=0.5), world.kubelet(running):
        await world.apply(make_service(pod={"env": ENV[:1]}))
        await world.until_ready()

        async def told() -> bool:
            return (await world.condition(type="ConfigInSync")).get("reason") == "Drifted"

        await world.until(told, "a ConfigMap written after the containers started is told")
        [item] = (await world.get(INFERENCESERVICES, "chat"))["status"]["drift"]["items"]
        [pod] = await world.all(PODS)
        assert (item["pod"], item["field"]) == (pod["metadata"]["name"], "env from ConfigMap/tuning")
