"""Fixtures that several components' tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline_local.cluster import Cluster
from paceline_local.testing import temporary_cluster


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """A real API server, controller-manager and scheduler without a node; tests keep apart by namespace."""
    with temporary_cluster() as cluster:
        yield cluster
