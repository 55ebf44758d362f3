from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from paceline_crds import crd
from paceline_crds.base import Model
from paceline_crds.schema import SchemaError, structural_schema

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["crds", "charts/paceline/files/crds"])
def test_committed_crds_are_those_the_models_generate(folder: str) -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / folder).glob("*.yaml")}
    assert committed == crd.files(), "run `make crds`"


def test_no_spec_field_is_a_float() -> None:
    def walk(node: dict[str, Any], path: str) -> None:
        assert node.get("type") != "number", path
        for name, child in node.get("properties", {}).items():
            walk(child, f"{path}.{name}")
        if "items" in node:
            walk(node["items"], f"{path}[]")

    version = crd.inference_service_crd()["spec"]["versions"][0]
    walk(version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec")


def test_every_integer_of_the_spec_has_bounds() -> None:
    def walk(node: dict[str, Any], path: str) -> None:
        if node.get("type") == "integer":
            assert "maximum" in node, path
            assert "minimum" in node, path
        for name, child in node.get("properties", {}).items():
            walk(child, f"{path}.{name}")
        if "items" in node:
            walk(node["items"], f"{path}[]")

    version = crd.inference_service_crd()["spec"]["versions"][0]
    walk(version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec")


def test_nothing_has_a_default_inside_a_list() -> None:
    """Tools that compare a list as one whole would find what the API server fills in changed for ever."""

    def walk(node: dict[str, Any], path: str, inside: bool) -> None:
        assert not (inside and "default" in node), path
        for name, child in node.get("properties", {}).items():
            walk(child, f"{path}.{name}", inside)
        if "items" in node:
            walk(node["items"], f"{path}[]", True)

    version = crd.inference_service_crd()["spec"]["versions"][0]
    walk(version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec", False)


def test_a_field_without_a_description_is_refused_at_generation() -> None:
    class Bare(Model):
        field: int

    with pytest.raises(SchemaError, match="description"):
        structural_schema(Bare)


def test_a_field_of_two_types_is_refused_at_generation() -> None:
    class Two(Model):
        field: Annotated[int | list[int], Field(description="x")]

    with pytest.raises(SchemaError, match="one type"):
        structural_schema(Two)
