"""Volumes that only one node may have are told of before a replica waits for one."""

from __future__ import annotations

from typing import Any

import pytest

from paceline_crds.service import InferenceService
from paceline_operator.claims import claims_of, warning
from paceline_operator.render import Carried, Desired, render

RECREATE = {"strategy": "Recreate"}


def desired(**spec: Any) -> Desired:
    body = {"model": {"source": "pvc://models/llama"}, **spec}
    obj = {"metadata": {"name": "chat", "namespace": "demo"}, "spec": body}
    return render(InferenceService.from_object(obj), Carried(), "r:1")


def claim(*modes: str) -> Any:
    return {"metadata": {"name": "models"}, "spec": {"accessModes": list(modes)}}


def test_the_claims_of_a_revision_are_those_of_the_model_and_of_the_users_volumes() -> None:
    volumes = [{"name": "lora", "persistentVolumeClaim": {"claimName": "adapters"}}, {"name": "x", "emptyDir": {}}]
    assert claims_of(desired(pod={"volumes": volumes}, pools=[{"name": "long"}])) == ["models", "adapters"]


@pytest.mark.parametrize(
    ("modes", "spec", "words"),
    [
        (["ReadWriteOnce"], {"replicas": 2}, "so 2 replicas may"),
        (["ReadWriteOnce"], {"replicas": 2, "rollout": RECREATE}, "so 2 replicas may"),
        (["ReadWriteOncePod"], {"replicas": 1}, "so an update, which starts"),
        (["ReadWriteOnce"], {"pools": [{"name": "long"}]}, "so 2 replicas may"),
    ],
)
def test_a_claim_for_one_node_is_warned_of(modes: list[str], spec: dict[str, Any], words: str) -> None:
    told = warning(claim(*modes), desired(**spec))
    assert words in told
    assert "use a claim with ReadOnlyMany" in told


@pytest.mark.parametrize(
    ("modes", "spec"),
    [
        (["ReadWriteOnce"], {"replicas": 1, "rollout": RECREATE}),
        (["ReadWriteOnce", "ReadOnlyMany"], {"replicas": 4}),
        (["ReadWriteMany"], {"replicas": 4}),
        ([], {"replicas": 4}),
    ],
)
def test_what_fits_is_not_warned_of(modes: list[str], spec: dict[str, Any]) -> None:
    assert warning(claim(*modes), desired(**spec)) == ""
