"""Local clusters for tests: made in a temporary folder, always taken down, side by side with any other."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline_local import install, lifecycle, state
from paceline_local.cluster import Cluster
from paceline_local.progress import Progress, silent
from paceline_local.state import Shape


@contextmanager
def temporary_cluster(
    *,
    nodes: int = 0,
    gpus_per_node: int = 0,
    paceline: bool = False,
    prometheus: bool = False,
    directory: Path | None = None,
    progress: Progress = silent,
) -> Iterator[Cluster]:
    """A local cluster for the time of a `with` block.

    Control plane only takes about four seconds; with nodes, pods run too. Temporary clusters of processes that were
    killed are cleared away first.

    Args:
        nodes: Number of nodes; without any, pods stay Pending.
        gpus_per_node: `nvidia.com/gpu` of each node.
        paceline: Install Paceline from the chart, as `paceline local up` does; needs a node.
        prometheus: Run Prometheus in it; needs a node.
        directory: Folder for its state, which must be empty or absent; a temporary one by default.
        progress: Told what is done.

    Yields:
        The cluster; `cluster.kubeconfig` for clients, `cluster.kubectl("get", "pods")` for commands.
    """
    clear_abandoned()
    scratch = None if directory is not None else Path(tempfile.mkdtemp(prefix="paceline-local-test-"))
    folder = directory or scratch
    wanted = Shape(nodes=nodes, gpus_per_node=gpus_per_node, bare=not paceline, prometheus=prometheus)
    try:
        cluster = lifecycle.start_instance(folder, lambda _: wanted, progress, temporary=True)
        if paceline:
            install.install_paceline(cluster, progress)
        if prometheus:
            install.install_prometheus(cluster, progress)
        yield cluster
    finally:
        lifecycle.down(folder, progress)
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def clear_abandoned() -> None:
    """Take down temporary clusters whose maker was killed before it could."""
    for directory in state.abandoned():
        lifecycle.down(directory)
