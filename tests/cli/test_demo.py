"""What `paceline demo` reads of a manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline_cli.demo.first import DemoError, service_in

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("name", "model"), [("smollm2", "smollm2"), ("tenants", "smollm2-tenants")])
def test_the_service_is_found_among_other_objects(name: str, model: str) -> None:
    service = service_in(EXAMPLES / f"{name}.yaml")
    assert (service.namespace, service.model) == ("demo", model)


@pytest.mark.parametrize(
    ("text", "words"), [("kind: Secret\n", "0 InferenceServices"), ("{", "cannot be read as YAML")]
)
def test_a_manifest_without_one_service_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "manifest.yaml"
    path.write_text(text)
    with pytest.raises(DemoError, match=words):
        service_in(path)
