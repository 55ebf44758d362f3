"""A whole Paceline: real API server, a node, the chart, the operator, the router, and the engine with a real model."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from e2e_support import Fleet

from paceline_local.testing import temporary_cluster


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """One cluster with Paceline and Prometheus for all end-to-end tests; each works in a namespace of its own."""
    with temporary_cluster(nodes=1, paceline=True, prometheus=True, progress=print) as cluster:
        yield Fleet(cluster)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What failed is told together with how its cluster was."""
    report = yield
    arguments: dict[str, object] = getattr(item, "funcargs", {})
    fleet = arguments.get("fleet")
    if report.when == "call" and report.failed and isinstance(fleet, Fleet):
        report.sections.append(("the cluster", fleet.account()))
    return report
