"""What the tests of the reconciler share; see `operator_world`."""

from __future__ import annotations

from operator_world import cluster, crashed, make_service, world

__all__ = ["cluster", "crashed", "make_service", "world"]
