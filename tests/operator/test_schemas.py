"""CRDs of the cluster that are older than the operator: told, worked with, and brought up with objects stored."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_crds.conditions import Reason
from paceline_crds.crd import inference_revision_crd, inference_service_crd, to_yaml
from paceline_crds.revision import InferenceRevisionSpec
from paceline_crds.service import InferenceService
from paceline_kube import INFERENCEREVISIONS, INFERENCESERVICES, PODS, ApiError, JsonObject
from paceline_operator import children
from paceline_operator.observed import Observed
from paceline_operator.render import Carried, render
from paceline_operator.schemas import SchemaKeeper, lacks, missing, words

PREVIOUS = Path(__file__).parents[1] / "support" / "previous_release" / "inferencerevisions.yaml"
"""The revisions' CRD before they had a status and the ledger's words."""


def without(crd: JsonObject, *path: str) -> JsonObject:
    """A CRD whose schema lacks one field."""
    older = copy.deepcopy(crd)
    inner = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in path[:-1]:
        inner = inner["properties"][name]
    del inner["properties"][path[-1]]
    return older


def test_fields_that_are_missing_are_named_by_their_paths() -> None:
    ours = {"properties": {"a": {"properties": {"b": {}, "c": {}}}, "l": {"items": {"properties": {"x": {}}}}, "n": {}}}
    served = {"properties": {"a": {"properties": {"b": {}}}, "l": {"items": {"properties": {}}}}}
    assert list(missing(ours, served)) == ["a.c", "l[].x", "n"]
    assert list(missing(ours, ours)) == []
    assert list(missing(served, ours)) == [], "a newer schema has all that an older operator knows"
    assert list(missing(ours, {"x-kubernetes-preserve-unknown-fields": True})) == []


def test_a_crd_of_this_release_lacks_nothing_and_one_of_the_previous_says_what() -> None:
    for crd in (inference_service_crd(), inference_revision_crd()):
        assert lacks(crd, crd) == ()
    previous = yaml.safe_load(PREVIOUS.read_text(encoding="utf-8"))
    assert lacks(inference_revision_crd(), previous) == (
        "InferenceRevision spec.pools[].config.parameters.kvCacheQuantization",
        "InferenceRevision spec.pools[].ledger",
        "InferenceRevision status",
        "InferenceRevision /status",
    )
    other = copy.deepcopy(inference_service_crd())
    other["spec"]["versions"][0]["name"] = "v1"
    assert lacks(inference_service_crd(), other) == ("InferenceService version v1alpha1",)


@pytest.mark.parametrize(("asked", "recorded"), [({}, False), ({"quantization": "INT8"}, True)])
def test_a_record_has_what_older_crds_lack_only_where_it_was_asked_for_and_reads_back_the_same(
    make_service: Any, asked: dict[str, str], recorded: bool
) -> None:
    service = make_service(runtime={"kvCache": {"memory": "1Gi", **asked}})
    desired = render(InferenceService.from_object(service), Carried(), "paceline.io/runtime:0.1.0")
    spec = children.revision(Observed("demo", "chat", "uid", 1), desired)["spec"]
    config = spec["pools"][0]["config"]
    assert ("kvCacheQuantization" in config["parameters"]) is recorded
    assert ("kvCacheQuantization" in config["origins"]) is recorded
    assert InferenceRevisionSpec.model_validate_json(json.dumps(spec)).pools[0].config == desired.pools[0].config


def test_people_are_told_some_of_it_and_what_to_do() -> None:
    said = words(tuple(f"InferenceService spec.f{n}" for n in range(7)))
    assert "spec.f4 and 2 more" in said
    assert "kubectl apply --server-side" in said


async def test_what_cannot_be_read_is_not_known_and_what_was_known_stays() -> None:
    served = {crd["metadata"]["name"]: crd for crd in (inference_service_crd(), inference_revision_crd())}
    told: list[int] = []

    async def crd(name: str) -> JsonObject:
        if name not in served:
            raise ApiError(403, "Forbidden", "no")
        return served[name]

    keeper = SchemaKeeper(crd=crd, changed=lambda: told.append(1))
    await keeper.look()
    assert (keeper.lacks, told) == ((), [])
    name = "inferenceservices.paceline.io"
    served[name] = without(served[name], "spec", "suspend")
    await keeper.look()
    await keeper.look()
    assert (keeper.lacks, told) == (("InferenceService spec.suspend",), [1])
    del served[name]
    await keeper.look()
    assert keeper.lacks == ("InferenceService spec.suspend",)


@pytest.fixture
async def previous(cluster: Any) -> AsyncIterator[None]:
    """The CRDs of the previous release, and those of this one afterwards, whatever happens."""

    def apply(crd: str) -> None:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=crd)

    apply(PREVIOUS.read_text(encoding="utf-8"))
    apply(to_yaml(without(inference_service_crd(), "spec", "runtime", "tenantMaxSeqs")))
    try:
        yield
    finally:
        for crd in (inference_service_crd(), inference_revision_crd()):
            apply(to_yaml(crd))


def made_by_the_previous_release(service: JsonObject) -> JsonObject:
    """The revision that it left of a service: without what only this one writes."""
    carried = Carried(hash_version=2)
    desired = render(InferenceService.from_object(service), carried, "paceline.io/runtime:0.1.0")
    metadata = service["metadata"]
    observed = Observed(metadata["namespace"], metadata["name"], metadata["uid"], 1)
    return children.revision(observed, desired)


@pytest.mark.cluster
async def test_over_the_crds_of_the_previous_release_it_works_on_and_says_so_and_an_upgrade_of_them_restarts_nothing(
    world: Any, make_service: Any, cluster: Any, previous: None
) -> None:
    async def looked(operator: Any, found: bool) -> bool:
        await operator.schemas.look()
        return bool(await world.condition(type="CRDOutdated")) is found

    async def refused() -> bool:
        return bool((await world.condition("young")).get("reason") == Reason.FIELDS_MISSING)

    service = await world.apply(make_service(replicas=2, runtime={"maxNumSeqs": 8}))
    left = made_by_the_previous_release(service)
    await world.client.create(INFERENCEREVISIONS, left, world.namespace)
    async with world.operator() as operator, world.kubelet():
        await world.until_ready()
        await world.until(lambda: looked(operator, True), "the condition CRDOutdated is there")
        condition = await world.condition(type="CRDOutdated")
        assert (condition["status"], condition["reason"]) == ("True", Reason.FIELDS_MISSING)
        assert "InferenceService spec.runtime.tenantMaxSeqs" in condition["message"]
        assert "InferenceRevision spec.pools[].ledger" in condition["message"]
        # What the old schema can hold goes on, edits included.
        await world.apply(make_service(replicas=2, runtime={"maxNumSeqs": 4}))
        edited = await world.until_ready()
        pods = {pod["metadata"]["uid"] for pod in await world.all(PODS) if not pod["metadata"].get("deletionTimestamp")}
        # A new service would need a record that the schema cannot hold: it is refused, and nothing is made by halves.
        await world.apply(make_service(name="young"))
        await world.until(refused, "a record that would be incomplete is refused")
        assert "unknown field" in (await world.condition("young"))["message"]
        assert [r for r in await world.all(INFERENCEREVISIONS) if r["spec"]["service"] == "young"] == []

        for crd in (inference_service_crd(), inference_revision_crd()):
            cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=to_yaml(crd))
        await world.until(lambda: looked(operator, False), "the condition CRDOutdated is gone")
        await world.until_ready("young")
        # Stored objects of the previous release are as good as new ones: an edit that concerns no pod restarts none.
        await world.apply(make_service(replicas=2, runtime={"maxNumSeqs": 4}, revisionHistoryLimit=3))
        after = await world.until_ready()
        assert after["status"]["currentRevision"] == edited["status"]["currentRevision"]
        assert pods <= {pod["metadata"]["uid"] for pod in await world.all(PODS)}
        kept = {r["metadata"]["name"] for r in await world.all(INFERENCEREVISIONS) if r["spec"]["service"] == "chat"}
        assert kept == {left["metadata"]["name"], edited["status"]["currentRevision"]}
        assert operator.errors == []
    assert "CRDOutdated" in operator.told.reasons()


@pytest.mark.cluster
async def test_an_operator_of_the_previous_release_passes_over_what_a_newer_one_has_written(
    world: Any, make_service: Any, cluster: Any
) -> None:
    """As after a roll-back of the chart: its models do not know a field that is stored."""
    newer = copy.deepcopy(inference_service_crd())
    spec = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["fromTheFuture"] = {"type": "integer"}
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=to_yaml(newer))
    try:

        async def stored() -> bool:
            try:
                return "fromTheFuture" in (await world.apply(make_service(fromTheFuture=3)))["spec"]
            except ApiError:
                return False

        await world.until(stored, "a field of the newer schema is stored")
        async with world.operator() as operator, world.kubelet():
            ready = await world.until_ready()
            await operator.schemas.look()
            assert operator.schemas.lacks == ()
            assert ready["spec"]["fromTheFuture"] == 3
            assert operator.errors == []
        await world.client.delete(INFERENCESERVICES, "chat", world.namespace)
    finally:
        cluster.kubectl(
            "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=to_yaml(inference_service_crd())
        )
