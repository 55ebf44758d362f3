"""A claim that only one node may have, under a service that wants more. Pure."""

from __future__ import annotations

from paceline_crds.rollout import RolloutStrategy
from paceline_kube import JsonObject

from .render import Desired

_SHARED = frozenset({"ReadOnlyMany", "ReadWriteMany"})


def claims_of(desired: Desired) -> list[str]:
    """Names of the claims that the pods of a revision mount, each once."""
    volumes = [volume for pool in desired.pools for volume in pool.pod_template["spec"]["volumes"]]
    names = [(volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in volumes]
    return list(dict.fromkeys(str(name) for name in names if name))


def warning(claim: JsonObject, desired: Desired) -> str:
    """What to tell of a claim; empty where several nodes may have it, or one replica at a time does."""
    modes = [str(mode) for mode in (claim.get("spec") or {}).get("accessModes") or ()]
    if not modes or _SHARED.intersection(modes):
        return ""
    replicas = sum(desired.replicas.values())
    if replicas < 2 and desired.strategy is RolloutStrategy.RECREATE:
        return ""
    why = f"{replicas} replicas" if replicas > 1 else "an update, which starts new replicas beside the old ones,"
    return (
        f"the claim {claim['metadata']['name']} is {', '.join(modes)}, so {why} may find it attached to another node: "
        "use a claim with ReadOnlyMany or ReadWriteMany, or one replica with spec.rollout.strategy: Recreate"
    )
