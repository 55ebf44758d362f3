"""Newer images and defaults: only when somebody asks."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from paceline_crds.names import ANNOTATION_ASKED_BY, ANNOTATION_CHANGE_CAUSE, ANNOTATION_UPGRADE
from paceline_crds.revision import HASH_VERSION, InferenceRevision, InferenceRevisionSpec
from paceline_crds.service import InferenceService, ObjectMeta
from paceline_operator.provenance import asked_by, provenance
from paceline_operator.render import Carried, InvalidSpec, render
from paceline_operator.upgrades import Order, available, read_order, with_order

CARRIED = Carried(HASH_VERSION, MappingProxyType({"default": "r:1", "": "r:1"}))
ORDER = Order("2026-11-30T10:00:00Z", "r:2", HASH_VERSION)


def made(at: str) -> InferenceRevision:
    return InferenceRevision(
        metadata=ObjectMeta(name="chat-1", creation_timestamp=at), spec=InferenceRevisionSpec(service="chat", pools=[])
    )


def service(**spec: Any) -> InferenceService:
    body = {"model": {"source": "package://m"}, **spec}
    return InferenceService.from_object({"metadata": {"name": "chat", "namespace": "demo"}, "spec": body})


def test_an_order_holds_until_a_revision_is_made_after_it() -> None:
    assert with_order(CARRIED, None, [made("2026-11-30T09:00:00Z")]) == CARRIED
    assert with_order(CARRIED, ORDER, [made("2026-11-30T09:59:59Z")]).images == {"": "r:2"}
    assert with_order(CARRIED, ORDER, [made("2026-11-30T09:00:00Z"), made("2026-11-30T10:00:00Z")]) == CARRIED


def test_an_order_asks_for_an_image_by_name_whatever_the_operator_brings_meanwhile() -> None:
    carried = with_order(CARRIED, ORDER, [made("2026-11-30T09:00:00Z")])
    assert render(service(), carried, "r:3").pools[0].image == "r:2"


def test_what_the_spec_names_is_no_matter_of_upgrades() -> None:
    named = render(service(runtime={"image": "mine:1"}), CARRIED, "r:2")
    assert named.pools[0].image == "mine:1"
    assert available(named, "r:2") is None


def test_a_newer_image_is_available_until_it_runs() -> None:
    old = render(service(), CARRIED, "r:2")
    found = available(old, "r:2")
    assert found is not None
    assert (found.image, found.hash_version) == ("r:2", HASH_VERSION)
    new = render(service(), with_order(CARRIED, ORDER, []), "r:2")
    assert available(new, "r:2") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"at": "x"}', "cannot be read"),
        ('{"at": "x", "image": "r", "hashVersion": Infinity}', "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"at": "2026-01-01T00:00:00Z", "image": "r", "hashVersion": 99}', "does not have"),
    ],
)
def test_an_order_that_cannot_be_followed_says_what_to_do(text: str, words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        read_order({ANNOTATION_UPGRADE: text})


def test_an_order_is_read_back_as_written() -> None:
    text = json.dumps({"at": ORDER.at, "image": ORDER.image, "hashVersion": ORDER.hash_version})
    assert read_order({ANNOTATION_UPGRADE: text}) == ORDER
    assert read_order({}) is None


def entry(manager: str, time: str, part: str = "f:spec", **more: str) -> dict[str, Any]:
    return {"manager": manager, "time": time, "fieldsV1": {part: {}}, **more}


def test_a_revision_is_asked_for_by_the_last_writer_of_the_spec() -> None:
    fields = [
        entry("kubectl", "2026-01-01T00:00:00Z"),
        entry("argocd", "2026-01-03T00:00:00Z"),
        entry("labeller", "2026-01-09T00:00:00Z", part="f:metadata"),
        entry("paceline-operator", "2026-01-09T00:00:00Z", subresource="status"),
        entry("hpa", "2026-01-09T00:00:00Z", subresource="scale"),
    ]
    assert asked_by({"managedFields": fields}) == "argocd"
    assert asked_by({}) == ""


def test_a_stated_cause_goes_with_the_revision_cut_to_a_bound() -> None:
    found = provenance({"annotations": {ANNOTATION_CHANGE_CAUSE: "x" * 5000}, "managedFields": [entry("me", "t")]})
    assert found[ANNOTATION_ASKED_BY] == "me"
    assert len(found[ANNOTATION_CHANGE_CAUSE]) == 1024
    assert provenance({}) == {}


def test_a_revision_that_an_upgrade_makes_is_its_orderers_with_the_reason_given_there() -> None:
    order = {"at": ORDER.at, "image": "r:2", "hashVersion": HASH_VERSION, "why": "a fix"}
    annotation = {"f:annotations": {f"f:{ANNOTATION_UPGRADE}": {}}}
    metadata = {
        "annotations": {ANNOTATION_UPGRADE: json.dumps(order), ANNOTATION_CHANGE_CAUSE: "smaller batches"},
        "managedFields": [
            entry("kubectl", "2026-11-30T09:00:00Z"),
            {"manager": "paceline-cli", "time": ORDER.at, "fieldsV1": {"f:metadata": annotation}},
        ],
    }
    made_by_order = provenance(metadata, "2026-11-30T09:00:00Z")
    assert (made_by_order[ANNOTATION_ASKED_BY], made_by_order[ANNOTATION_CHANGE_CAUSE]) == ("paceline-cli", "a fix")
    later = provenance(metadata, ORDER.at)
    assert (later[ANNOTATION_ASKED_BY], later[ANNOTATION_CHANGE_CAUSE]) == ("kubectl", "smaller batches")
    silent = {
        **metadata,
        "annotations": {**metadata["annotations"], ANNOTATION_UPGRADE: json.dumps(order | {"why": ""})},
    }
    assert ANNOTATION_CHANGE_CAUSE not in provenance(silent, ""), (
        "the cause of an earlier edit is none of the upgrade's"
    )
