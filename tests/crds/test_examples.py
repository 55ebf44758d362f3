"""Every file in examples/ is what it says: accepted by the models, by the CRD's rules and by the API server."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_crds import crd
from paceline_crds.service import InferenceService
from paceline_local.cluster import Cluster
from paceline_router.table.crd_rules import broken_rules

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def services(path: Path) -> list[dict[str, Any]]:
    return [document for document in documents(path) if document["kind"] == "InferenceService"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.stem))
def test_every_example_has_a_service_that_the_models_and_the_rules_accept(path: Path) -> None:
    found = services(path)
    assert found
    for service in found:
        InferenceService.from_object(service)
        assert list(broken_rules(service)) == []


def test_the_examples_can_be_applied_beside_each_other() -> None:
    found = [service for path in EXAMPLES for service in services(path)]
    assert len({service["metadata"]["name"] for service in found}) == len(found)
    assert len({service["spec"]["model"]["servedName"] for service in found}) == len(found)


def test_the_secret_of_the_tenants_has_the_keys_that_its_comment_names() -> None:
    (path,) = (path for path in EXAMPLES if path.stem == "tenants")
    (secret,) = (document for document in documents(path) if document["kind"] == "Secret")
    (service,) = services(path)
    assert service["spec"]["tenancy"]["identity"]["secretName"] == secret["metadata"]["name"]
    assert {tenant["name"] for tenant in service["spec"]["tenancy"]["tenants"]} == secret["stringData"].keys()
    for tenant, digest in secret["stringData"].items():
        key = f"sk-example-{tenant}"
        assert key in path.read_text(encoding="utf-8")
        assert digest == hashlib.sha256(key.encode()).hexdigest()


@pytest.mark.cluster
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.stem))
def test_the_api_server_accepts_every_example(control_plane: Cluster, path: Path) -> None:
    control_plane.apply("---\n".join(crd.files().values()))
    control_plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    control_plane.apply(json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}}))
    control_plane.kubectl("apply", "--dry-run=server", "-f", str(path))
