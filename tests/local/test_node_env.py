"""A container's environment as Kubernetes defines it."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_local.node.env import Facts, Ref, env_references, expand, field_value, resolve_env
from paceline_local.node.errors import ConfigError

FACTS = Facts("127.64.1.2", "127.64.1.1", "node-0", {"cpu": "4", "memory": "8Gi"})
POD = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"a/b": "c"}, "annotations": {"k": 'v"\n'}},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"memory": "64Mi"}}}], "serviceAccountName": "sa"},
}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)$(B)y", "x12y"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A $", "$A $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expanded


# Within a reference, which ends with the next parenthesis, doubled dollars are part of its name.
@given(st.text(alphabet="$)AB x"))
def test_without_variables_only_doubled_dollars_change(text: str) -> None:
    assert expand(text, {}) == text.replace("$$", "$")


def test_later_entries_see_earlier_ones_and_win_over_env_from() -> None:
    container = {
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}, {"secretRef": {"name": "s"}}],
        "env": [
            {"name": "P_X", "value": "mine"},
            {"name": "BOTH", "value": "$(P_X)-$(TOKEN)-$(LATER)"},
            {"name": "LATER", "value": "z"},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}},
        ],
    }
    objects = {
        Ref("ConfigMap", "cm"): {"data": {"X": "theirs", "Y": "y"}},
        Ref("Secret", "s"): {"data": {"TOKEN": base64.b64encode(b"t").decode()}},
    }
    env = resolve_env(container, POD, objects, FACTS, {"BASE": "b"})
    assert env == {
        "BASE": "b",
        "P_X": "mine",
        "P_Y": "y",
        "TOKEN": "t",
        "BOTH": "mine-t-$(LATER)",
        "LATER": "z",
        "IP": "127.64.1.2",
        "LABEL": "c",
    }
    assert env_references(container) == {Ref("ConfigMap", "cm"), Ref("Secret", "s")}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"configMapKeyRef": {"name": "cm", "key": "k"}}, 'configmap "cm" not found'),
        ({"secretKeyRef": {"name": "s", "key": "k"}}, "couldn't find key k in Secret ns/s"),
        ({"fileKeyRef": {"path": "x"}}, "fileKeyRef is not supported"),
    ],
)
def test_a_reference_that_leads_nowhere_is_said_in_words(source: dict, words: str) -> None:
    container = {"env": [{"name": "A", "valueFrom": source}]}
    objects = {Ref("Secret", "s"): {"data": {}}, Ref("ConfigMap", "cm"): None}
    with pytest.raises(ConfigError, match=words):
        resolve_env(container, POD, objects, FACTS, {})


def test_optional_references_leave_the_variable_out() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "cm", "optional": True}}],
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}}],
    }
    assert resolve_env(container, POD, {}, FACTS, {}) == {}


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.memory", "1Mi", "64"),
        ("limits.memory", None, str(64 << 20)),
        ("limits.memory", "60Mi", "2"),
        ("limits.cpu", None, "4"),
        ("requests.cpu", "1m", "0"),
    ],
)
def test_resources_are_rounded_up_and_fall_back_to_the_node(resource: str, divisor: str | None, value: str) -> None:
    ref = {"resource": resource, **({"divisor": divisor} if divisor else {})}
    container = {**POD["spec"]["containers"][0], "env": [{"name": "R", "valueFrom": {"resourceFieldRef": ref}}]}
    assert resolve_env(container, POD, {}, FACTS, {}) == {"R": value}


def test_all_annotations_are_quoted_one_a_line() -> None:
    assert field_value("metadata.annotations", POD, FACTS) == 'k="v\\"\\n"'
