"""Models that the benchmarks build for themselves, small ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline_bench.models import model_folder

# As in the runtime's tests: a second thread would only wait for the first.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of built models with the tiny one in it."""
    folder = tmp_path_factory.mktemp("bench-cache")
    model_folder("tiny", folder)
    return folder


@pytest.fixture(scope="session")
def tiny(cache: Path) -> Path:
    """The tiny model's folder."""
    return model_folder("tiny", cache)
