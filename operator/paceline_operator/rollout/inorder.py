"""Pools in order: those that matter most get a new configuration when all others run it, by a rollout of its own. Pure.

Shapes have no weights of their own in a rollout; a shape that should go last gets a pool, and the pool goes last. Each
of the two rollouts has its steps, its evidence and its way back, and between them every pool serves what was judged.
"""

from __future__ import annotations

from dataclasses import replace

from paceline_crds.names import derived_name
from paceline_operator.hashing import revision_hash
from paceline_operator.observed import Observed
from paceline_operator.render import Desired


def in_order(desired: Desired, observed: Observed) -> Desired:
    """What is asked for first: where some pools go last and others change, the revision with the others' changes only.

    A pool that is new, or gone from the spec, waits for nothing; nor does anything wait where rendering itself has
    changed since the base, so that all pools are other ones.
    """
    last = frozenset(desired.rules.last_pools) if desired.rules is not None else frozenset()
    traffic = observed.traffic
    base = observed.revision(traffic.revision) if traffic is not None else None
    if not last or desired.pinned or base is None or base.parsed is None:
        return desired
    if base.parsed.spec.hash_version != desired.hash_version:
        return desired
    old = {pool.name: pool for pool in base.pools}
    pools = tuple(old.get(pool.name, pool) if pool.name in last else pool for pool in desired.pools)
    hashes = {pool.name: pool.hash for pool in pools}
    waiting = tuple(one.name for one, now in zip(desired.pools, pools, strict=True) if one.hash != now.hash)
    if not waiting or hashes == {pool.name: pool.hash for pool in base.pools}:
        return desired
    return replace(desired, revision=derived_name(observed.name, revision_hash(hashes)), pools=pools, waiting=waiting)
