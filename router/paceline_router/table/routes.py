"""The table made ready for the data path: who serves a name, and which replicas a share of its requests may go to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from paceline_crds.names import DEFAULT_POOL
from paceline_router.flow.backend import Backend
from paceline_router.table.policy import SPILL_TIMES_SEQS
from paceline_router.table.records import Limits, Replica, Revision, Service, Table

FULL_PERCENT: Final = 100

GOLDEN: Final = 0.6180339887498949
"""Multiples of it, modulo one, spread evenly however few there are: weights hold over ten requests, not only over
thousands.
"""


@dataclass(frozen=True, slots=True)
class Group:
    """The replicas of one pool in a lane.

    Attributes:
        backends: ready replicas.
        max_model_len: the longest request that any of them takes, in tokens; None where not known.
        bound: requests at each replica from which the pool is full; None where not known.
        shared_prefixes: in all of them tenants find each other's cached prefixes.
    """

    pool: str
    backends: tuple[Backend, ...]
    max_model_len: int | None = None
    bound: int | None = None
    shared_prefixes: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """A share of a service's requests and the replicas it may go to.

    Attributes:
        until: upper end of the share on the scale from 0 to 1.
        backends: ready replicas of all pools.
        labels: by replica uid, the header lines that say which pool and revision answered.
        fallback: why replicas other than the asked-for ones serve this share; None when they do.
        served: by replica uid, the name its model has there; absent where the replica's revision is not known.
    """

    until: float
    backends: tuple[Backend, ...]
    labels: Mapping[str, bytes]
    fallback: str | None = None
    served: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)
    """By pool."""
    order: tuple[Group, ...] = ()
    """The same in the order in which they take what others cannot: `default` first."""


@dataclass(frozen=True, slots=True)
class Route:
    """One service, as the data path needs it.

    Attributes:
        revisions: by revision name, the lane with only that revision's ready replicas (for `x-paceline-revision`).
        draining, known: counts of replicas, for the words of a 503.
        names: what clients call the model: the served names of the revisions that get traffic, the one with the most
            of it first; that of the spec where no such revision is known.
        other_names: those of the spec and of the other revisions, by which only those revisions are reached by hand.
        apart: uids of replicas that get copies of requests and nobody's own, but for those that name their revision.
        start_up: seconds that the slowest measured start of what gets the traffic took; None where none was measured.
    """

    service: Service
    lanes: tuple[Lane, ...]
    revisions: Mapping[str, Lane]
    known: int = 0
    draining: int = 0
    names: tuple[str, ...] = ()
    other_names: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()
    start_up: float | None = None

    @property
    def served_name(self) -> str:
        """The first of the names that clients use."""
        return self.names[0] if self.names else self.service.served_name

    def lane(self, turn: int, sticky: bytes | None = None) -> Lane:
        """The lane of a request.

        Args:
            turn: a number that grows with each request; spreads those that stick to nothing.
            sticky: what the request sticks by: all with the same bytes get the same lane from every router, and as a
                weight grows they only ever move towards that version.
        """
        lanes = self.lanes
        if len(lanes) > 1:
            point = turn * GOLDEN % 1.0 if sticky is None else crc32(sticky) / 4294967296.0
            for lane in lanes:
                if point < lane.until:
                    return lane
        return lanes[-1]


@dataclass(frozen=True, slots=True)
class Routes:
    """All services by the names clients use.

    Attributes:
        by_model: by every name that clients use and by `namespace/name`. A name belongs to its oldest service.
        by_other_name: by names that are not in use: to come, or of revisions that get no traffic.
        models: what `GET /v1/models` lists, each service once: its served name, or `namespace/name` where that is
            another's.
    """

    by_model: Mapping[str, Route] = field(default_factory=dict)
    by_key: Mapping[str, Route] = field(default_factory=dict)
    models: Mapping[str, Route] = field(default_factory=dict)
    by_other_name: Mapping[str, Route] = field(default_factory=dict)


def revision_of(table: Table, replica: Replica) -> str | None:
    """The revision a replica serves: the one that gets traffic if several share its pool hash, else the newest.

    None when no revision with its pool hash is known.
    """
    if replica.revision is not None:
        return replica.revision
    matching = [
        revision
        for revision in table.revisions.values()
        if revision.service == replica.service and revision.hashes.get(replica.pool) == replica.pool_hash
    ]
    if not matching:
        return None
    service = table.services.get(replica.service)
    serving = {share.revision for share in service.traffic if share.weight > 0} if service else set()
    return max(matching, key=lambda revision: (revision.name in serving, revision.created, revision.name)).name


def compile_routes(
    table: Table,
    backend_of: Callable[[Replica], Backend],
    before: Routes | None = None,
    changed: Collection[str] | None = None,
) -> Routes:
    """Routes for every service of the table.

    Args:
        backend_of: gives the living counterpart of a replica.
        before: the routes so far; those of services that are not in `changed` are taken over.
        changed: services of which a record has changed; None: perhaps all.
    """
    keep = before.by_key if before is not None and changed is not None else {}
    stale = None if not keep else set(changed or ())

    def anew(records: Iterable[Replica] | Iterable[Revision]) -> Iterable[Replica | Revision]:
        return records if stale is None else (record for record in records if record.service in stale)

    replicas: dict[str, list[Replica]] = {}
    for replica in anew(table.replicas.values()):
        replicas.setdefault(replica.service, []).append(replica)  # type: ignore[arg-type]
    revisions: dict[str, dict[str, Revision]] = {}
    for revision in anew(table.revisions.values()):
        revisions.setdefault(revision.service, {})[revision.name] = revision  # type: ignore[assignment]
    by_model: dict[str, Route] = {}
    by_key: dict[str, Route] = {}
    models: dict[str, Route] = {}
    by_other_name: dict[str, Route] = {}
    for service in sorted(table.services.values(), key=lambda service: (service.order, service.key)):
        kept = keep.get(service.key) if stale is None or service.key not in stale else None
        route = kept or _route(
            table, service, replicas.get(service.key, []), revisions.get(service.key, {}), backend_of
        )
        by_key[service.key] = route
        # A served name may look like somebody's namespace/name; the address of a service is never taken from it.
        free = [name for name in route.names if name not in by_model and name not in table.services]
        by_model.update(dict.fromkeys(free, route))
        models[free[0] if free else service.key] = route
        for name in route.other_names:
            by_other_name.setdefault(name, route)
    return Routes(by_model={**by_model, **by_key}, by_key=by_key, models=models, by_other_name=by_other_name)


def _route(
    table: Table,
    service: Service,
    replicas: list[Replica],
    revisions: Mapping[str, Revision],
    backend_of: Callable[[Replica], Backend],
) -> Route:
    ready = sorted((replica for replica in replicas if replica.ready), key=lambda replica: replica.uid)
    backends = {replica.uid: backend_of(replica) for replica in ready}
    served_by = {replica.uid: revision_of(table, replica) for replica in ready}
    served_as: dict[str, str] = {}
    limits: dict[str, Limits] = {}
    for replica in ready:
        made_by = revisions.get(served_by[replica.uid] or "")
        # Revisions that share a pool hash share the name too, so it does not matter which one is found.
        if made_by is not None and replica.pool in made_by.served:
            served_as[replica.uid] = made_by.served[replica.pool]
        known = made_by.limits.get(replica.pool) if made_by is not None else None
        limits[replica.uid] = known or replica.limits

    def groups(chosen: list[Replica]) -> dict[str, Group]:
        pools: dict[str, list[Replica]] = {}
        for replica in chosen:
            pools.setdefault(replica.pool, []).append(replica)
        return {
            pool: _group(pool, [(backends[r.uid], limits[r.uid]) for r in members])
            for pool, members in sorted(pools.items(), key=lambda item: (item[0] != DEFAULT_POOL, item[0]))
        }

    def lane(
        chosen: list[Replica], until: float = 1.0, revision: str | None = None, fallback: str | None = None
    ) -> Lane:
        by_pool = groups(chosen)
        return Lane(
            until,
            tuple(backends[replica.uid] for replica in chosen),
            {replica.uid: _labels(replica.pool, revision or served_by[replica.uid]) for replica in chosen},
            fallback,
            served_as,
            by_pool,
            tuple(by_pool.values()),
        )

    def of_revision(replica: Replica, revision: str) -> bool:
        if replica.revision is not None:
            return replica.revision == revision
        found = revisions.get(revision)
        return found is not None and found.hashes.get(replica.pool) == replica.pool_hash

    known_revisions = set(revisions) | {replica.revision for replica in replicas if replica.revision is not None}
    by_revision = {
        name: lane([replica for replica in ready if of_revision(replica, name)], revision=name)
        for name in sorted(known_revisions)
    }
    apart = _apart(service, ready, of_revision)
    serves = [replica for replica in ready if replica.uid not in apart]
    lanes: list[Lane] = []
    for until, shares in _shares(service):
        chosen = [r for r in ready if any(r.pool == pool and of_revision(r, name) for pool, name in shares.items())]
        if chosen:
            named = set(shares.values())
            lanes.append(lane(chosen, until, revision=next(iter(named)) if len(named) == 1 else None))
        else:
            # The other revisions that get traffic come before those that get none.
            named = {share.revision for share in service.traffic if share.weight > 0}
            chosen = [replica for replica in ready if any(of_revision(replica, name) for name in named)]
            asked = ", ".join(sorted(set(shares.values())))
            reason = f"no replica of revision {asked} is ready, another one of the service answers"
            lanes.append(lane(chosen or serves, until, fallback=reason))
    in_use = _names_in_use(service, revisions)
    known_names = {service.served_name} | {name for made in revisions.values() for name in made.served.values()}
    return Route(
        service,
        tuple(lanes) or (lane(serves),),
        by_revision,
        known=len(replicas),
        draining=sum(replica.draining for replica in replicas),
        names=in_use,
        other_names=frozenset(known_names.difference(in_use)),
        apart=apart,
        start_up=_start_up(service, revisions),
    )


def _start_up(service: Service, revisions: Mapping[str, Revision]) -> float | None:
    served = [(share.pool, revisions.get(share.revision)) for share in service.traffic if share.weight > 0]
    took = [made.start_up[pool] for pool, made in served if made is not None and pool in made.start_up]
    return max(took, default=None)


def _apart(service: Service, ready: list[Replica], of_revision: Callable[[Replica, str], bool]) -> frozenset[str]:
    """The replicas of a revision that gets copies and no share of the traffic: also where no other replica is left,
    its answers are nobody's.
    """
    shadow = service.shadow
    serving = {share.revision for share in service.traffic if share.weight > 0}
    if shadow is None or shadow.revision in serving:
        return frozenset()
    return frozenset(
        replica.uid
        for replica in ready
        if of_revision(replica, shadow.revision) and not any(of_revision(replica, name) for name in serving)
    )


def _group(pool: str, members: list[tuple[Backend, Limits]]) -> Group:
    lengths = [limits.max_model_len for _, limits in members]
    batches = [limits.max_num_seqs for _, limits in members if limits.max_num_seqs is not None]
    return Group(
        pool,
        tuple(backend for backend, _ in members),
        max_model_len=None if None in lengths else max(length for length in lengths if length is not None),
        bound=SPILL_TIMES_SEQS * max(batches) if batches else None,
        shared_prefixes=all(limits.shared_prefixes for _, limits in members),
    )


def _names_in_use(service: Service, revisions: Mapping[str, Revision]) -> tuple[str, ...]:
    """The served names of the revisions that get traffic, most traffic first; never empty.

    The spec may already have another name, which no replica that gets requests knows.
    """
    weights: dict[str, int] = {}
    for share in service.traffic:
        made = revisions.get(share.revision)
        if share.weight > 0 and made is not None and share.pool in made.served:
            name = made.served[share.pool]
            weights[name] = weights.get(name, 0) + share.weight
    return tuple(sorted(weights, key=lambda name: (-weights[name], name))) or (service.served_name,)


def _shares(service: Service) -> list[tuple[float, dict[str, str]]]:
    """Cut the scale from 0 to 1 so that within each piece every pool has one revision, or none: `[(upper end, {pool:
    revision})]`.

    A revision without some pool keeps its share of the requests: they go to its other pools, and not to another
    revision that has that pool.
    """
    weights: dict[str, dict[str, int]] = {}
    for share in service.traffic:
        if share.weight > 0:
            mine = weights.setdefault(share.pool, {})
            mine[share.revision] = mine.get(share.revision, 0) + share.weight
    most = {share.revision: share.weight for share in service.traffic if share.weight > 0}
    pools: dict[str, list[tuple[float, str | None]]] = {}
    for pool, mine in weights.items():
        missing = FULL_PERCENT - sum(mine.values())
        pieces: list[tuple[int, str | None]] = []
        reached = 0
        for revision, weight in most.items():
            if revision in mine:
                reached += mine[revision]
                pieces.append((reached, revision))
            elif missing > 0:
                gap = min(weight, missing)
                missing -= gap
                reached += gap
                pieces.append((reached, None))
        pools[pool] = [(end / reached, revision) for end, revision in pieces]
    ends = sorted({end for pieces in pools.values() for end, _ in pieces})
    return [(end, _within(pools, end)) for end in ends]


def _within(pools: Mapping[str, Sequence[tuple[float, str | None]]], end: float) -> dict[str, str]:
    found = {pool: next(name for upper, name in pieces if upper >= end) for pool, pieces in pools.items()}
    return {pool: name for pool, name in found.items() if name is not None}


def _labels(pool: str, revision: str | None) -> bytes:
    lines = b"x-paceline-pool: %b\r\n" % pool.encode("latin-1", "replace")
    if revision is not None:
        lines += b"x-paceline-revision: %b\r\n" % revision.encode("latin-1", "replace")
    return lines
