"""What is compared for a service: its own objects as the caches have them."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from paceline_crds.names import LABEL_POOL_HASH
from paceline_crds.revision import RevisionPool
from paceline_kube import JsonObject
from paceline_operator.observed import Observed, Ownership

from .compare import Ranges, World


def world_of(
    observed: Observed,
    asked: Iterable[RevisionPool],
    deployments: Iterable[JsonObject],
    config_maps: Iterable[JsonObject],
    pods: Iterable[JsonObject],
    ranges: Ranges = MappingProxyType({}),
) -> World:
    """The objects that are ours, and pods that have not ended. The reports of replicas are added later.

    Args:
        asked: the pools of the spec; none where it cannot be rendered, and then what serves is compared all the same.
        ranges: see `World`.
    """
    ours = {d.name for d in observed.deployments if d.owner is Ownership.OURS and not d.deleting}
    configs = {c.name for c in observed.config_maps if c.owner is Ownership.OURS}
    living = {p.name for p in observed.pods if not p.terminating and not p.over}
    kept = [r for r in observed.revisions if r.owner is not Ownership.FOREIGN]
    traffic = observed.traffic
    serving = observed.revision(traffic.revision) if traffic else None
    wanted = {pool.hash for pool in asked} | {d.hash for d in observed.deployments}
    wanted |= {pool.hash for pool in serving.pools} if serving else set()
    there = tuple(pod for pod in pods if pod["metadata"]["name"] in living)
    if any(r.parsed is None for r in kept):
        # A newer release wrote it: any pod may be one of its own.
        wanted |= {str((pod["metadata"].get("labels") or {}).get(LABEL_POOL_HASH) or "") for pod in there}
    return World(
        service=observed.name,
        pools={pool.hash: pool for r in kept for pool in r.pools},
        wanted=frozenset(wanted),
        deployments=tuple(d for d in deployments if d["metadata"]["name"] in ours),
        config_maps=tuple(c for c in config_maps if c["metadata"]["name"] in configs),
        pods=there,
        ranges=ranges,
    )
