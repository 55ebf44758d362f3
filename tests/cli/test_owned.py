"""Fields by their managers: what an apply has to send along, and whose a field is."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline_cli.owned import conflicts, merged, owned_by, owners, without
from paceline_kube import Conflict

FIELDS = {
    "f:metadata": {"f:annotations": {"f:a": {}}},
    "f:spec": {
        "f:model": {"f:source": {}},
        "f:pools": {'k:{"name":"long"}': {".": {}, "f:name": {}, "f:replicas": {}}},
        "f:rollout": {"f:order": {"f:action": {}, "f:revision": {}}},
    },
}
OBJ: dict[str, Any] = {
    "metadata": {
        "annotations": {"a": "1", "b": "2"},
        "managedFields": [
            {"manager": "argocd-controller", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
            {"manager": "paceline-cli", "operation": "Apply", "fieldsV1": FIELDS},
            {"manager": "paceline-cli", "operation": "Update", "fieldsV1": {"f:spec": {"f:suspend": {}}}},
            {"manager": "operator", "operation": "Apply", "subresource": "status", "fieldsV1": {"f:spec": {}}},
        ],
    },
    "spec": {
        "model": {"source": "s", "servedName": "n"},
        "replicas": 2,
        "suspend": False,
        "pools": [{"name": "other", "replicas": 3}, {"name": "long", "replicas": 0, "shapes": ["VeryLong"]}],
        "rollout": {"strategy": "Recreate", "order": {"revision": "chat-a", "action": "Pin"}},
    },
}


def test_exactly_what_a_manager_has_applied_is_found() -> None:
    assert owned_by(OBJ, "paceline-cli") == {
        "metadata": {"annotations": {"a": "1"}},
        "spec": {
            "model": {"source": "s"},
            "pools": [{"name": "long", "replicas": 0}],
            "rollout": {"order": {"revision": "chat-a", "action": "Pin"}},
        },
    }


def test_a_map_that_was_applied_empty_is_not_taken_for_all_that_others_put_in() -> None:
    def obj(others: dict[str, Any]) -> dict[str, Any]:
        mine = {"f:metadata": {"f:annotations": {}}, "f:spec": {"f:affinity": {}}}
        return {
            "metadata": {
                "annotations": {"a": "1"},
                "managedFields": [
                    {"manager": "me", "operation": "Apply", "fieldsV1": mine},
                    {"manager": "other", "operation": "Update", "fieldsV1": others},
                ],
            },
            "spec": {"affinity": {"nodeAffinity": {"x": 1}}},
        }

    in_parts = owned_by(obj({"f:metadata": {"f:annotations": {"f:a": {}}}}), "me")
    assert in_parts == {"metadata": {"annotations": {}}, "spec": {"affinity": {"nodeAffinity": {"x": 1}}}}


def test_who_never_applied_owns_nothing() -> None:
    assert owned_by(OBJ, "kubectl") == {}
    assert owned_by({"metadata": {}}, "paceline-cli") == {}


def test_owners_of_a_field_and_of_what_is_below_it() -> None:
    assert owners(OBJ, ("spec", "rollout", "order")) == ["paceline-cli"]
    assert owners(OBJ, ("spec",)) == ["argocd-controller", "paceline-cli"]
    assert owners(OBJ, ("spec", "routing")) == []


def test_a_field_goes_with_the_maps_that_it_leaves_empty() -> None:
    obj = {"spec": {"rollout": {"order": {"revision": "a"}}, "replicas": 0}}
    before = copy.deepcopy(obj)
    assert without(obj, ("spec", "rollout", "order")) == {"spec": {"replicas": 0}}
    assert without(obj, ("metadata", "annotations", "x")) == obj
    assert obj == before


def test_conflicts_name_the_managers_and_their_fields() -> None:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "argocd" using v1',
            "field": ".a",
        },
        {"reason": "FieldManagerConflict", "message": 'conflict with "argocd"', "field": ".b"},
        {"reason": "FieldManagerConflict", "message": 'conflict with "flux"', "field": ".c"},
    ]
    assert conflicts(Conflict(409, "Conflict", "", {"causes": causes})) == {"argocd": [".a", ".b"], "flux": [".c"]}
    assert conflicts(Conflict(409, "Conflict", "modified")) == {}


values = st.recursive(
    st.integers() | st.booleans() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abcd"), values, max_size=3)


def fields_of(value: Any) -> dict[str, Any]:
    """What the API server notes for a manager that has applied `value`."""
    return {f"f:{key}": fields_of(inner) for key, inner in value.items()} if isinstance(value, dict) else {}


@given(objects, objects)
def test_what_was_applied_is_what_is_extracted_whatever_others_wrote(ours: Any, others: Any) -> None:
    live = merged(json.loads(json.dumps(others)), ours)
    entry = {"manager": "me", "operation": "Apply", "fieldsV1": fields_of({"spec": ours})}
    obj = {"metadata": {"managedFields": [entry]}, "spec": live}
    found = owned_by(obj, "me")
    assert merged({"spec": live}, found) == {"spec": live}
    assert found.get("spec", ours) == ours or ours == {}
