"""The kept revisions of a service: which served when, and what each one changed. Pure, but for `kept_of`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline_crds.names import (
    ANNOTATION_ASKED_BY,
    ANNOTATION_CHANGE_CAUSE,
    ANNOTATION_ORDER_CAUSE,
    CONTAINER_RUNTIME,
    LABEL_SERVICE,
    derived_name,
)
from paceline_crds.revision import Baseline, InferenceRevision, RevisionPool
from paceline_kube import INFERENCEREVISIONS, JsonObject, KubeClient
from paceline_operator.drift.fields import differences
from paceline_operator.gather import RevisionReader, gather
from paceline_operator.observed import Ownership, Range, Traffic

from .services import order_of, serving, status_of

TEMPLATE_PREFIXES = (f"spec.containers[{CONTAINER_RUNTIME}].", "spec.", "metadata.")


@dataclass(frozen=True, slots=True)
class Kept:
    """A kept revision.

    Attributes:
        parsed: None where this release cannot read it.
        traffic: the record of when the traffic last moved while it was the one that serves; None where it never was.
        start_ups: (fastest, slowest) seconds that replicas took to get ready, by pool, as far as measured.
        baselines: what routers measured of its requests while it served, by pool.
        verdict: of the last step of its rollout, as in its status; empty where it was never judged.
        timeline: the decisions of its rollout, the oldest first.
    """

    name: str
    created: str
    parsed: InferenceRevision | None
    traffic: Traffic | None
    by: str
    why: str
    start_ups: Mapping[str, Range] = field(default_factory=dict)
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    verdict: Mapping[str, Any] = field(default_factory=dict)
    timeline: Sequence[Mapping[str, Any]] = ()

    @property
    def pools(self) -> tuple[RevisionPool, ...]:
        """Its pools as rendered."""
        return () if self.parsed is None else tuple(self.parsed.spec.pools)


@dataclass(frozen=True, slots=True)
class Change:
    """A field that differs between two revisions, as text."""

    pool: str
    field: str
    before: str
    after: str

    def words(self, with_pool: bool) -> str:
        """`maxNumSeqs 32 → 8`."""
        said = f"{self.field} {self.before} → {self.after}".lstrip()
        return f"{self.pool}: {said}" if with_pool else said


async def kept_of(client: KubeClient, service: JsonObject) -> list[Kept]:
    """The revisions of a service, newest first."""
    metadata = service["metadata"]
    selector = f"{LABEL_SERVICE}={derived_name(metadata['name'])}"
    listed = await client.list(INFERENCEREVISIONS, metadata["namespace"], label_selector=selector)
    return read(service, listed.items)


def read(service: JsonObject, revisions: Sequence[JsonObject]) -> list[Kept]:
    """The revisions that belong to the service, newest first."""
    observed = gather(service, read=RevisionReader(), revisions=revisions, deployments=(), config_maps=(), pods=())
    annotations = {obj["metadata"]["name"]: obj["metadata"].get("annotations") or {} for obj in revisions}
    rollouts = {obj["metadata"]["name"]: (obj.get("status") or {}).get("rollout") or {} for obj in revisions}
    found = [
        Kept(
            view.name,
            view.created,
            view.parsed,
            view.traffic,
            annotations[view.name].get(ANNOTATION_ASKED_BY, ""),
            _why(annotations[view.name]),
            {pool.name: view.start_ups[pool.hash] for pool in view.pools if pool.hash in view.start_ups},
            view.baselines,
            rollouts[view.name].get("verdict") or {},
            rollouts[view.name].get("timeline") or (),
        )
        for view in observed.revisions
        if view.owner is not Ownership.FOREIGN
    ]
    return sorted(found, key=lambda kept: (kept.created, kept.name), reverse=True)


def _why(annotations: Mapping[str, str]) -> str:
    """Why it was made, and why it was ordered back."""
    made, ordered = (annotations.get(name, "") for name in (ANNOTATION_CHANGE_CAUSE, ANNOTATION_ORDER_CAUSE))
    return "; ".join(words for words in (made, f"ordered back: {ordered}" if ordered else "") if words)


def states(kept: Kept, service: JsonObject) -> list[str]:
    """What a revision is at this moment: serving, asked for, taking over by steps, rejected, pinned; else only kept."""
    order = order_of(service) or {}
    rollout = status_of(service).get("rollout") or {}
    found = []
    if kept.name == serving(service):
        found.append("serving")
    if kept.name == status_of(service).get("updatedRevision") and "serving" not in found:
        found.append("asked for")
    if kept.name == rollout.get("revision") and rollout.get("phase") not in (None, "Blocked"):
        found.append("rejected" if rollout["phase"] in ("Idle", "RollingBack") else "taking over")
    if kept.name == order.get("revision"):
        found.append("pinned")
    return found or ["kept"]


def before(kept: Sequence[Kept], current: str | None) -> Kept | None:
    """What served before `current`: the record of the traffic with the next lower generation that is still kept."""
    served = sorted((k for k in kept if k.traffic is not None), key=lambda k: _generation(k), reverse=True)
    now = next((k for k in served if k.name == current), None)
    return next((k for k in served if now is not None and _generation(k) < _generation(now)), None)


def _generation(kept: Kept) -> int:
    return kept.traffic.generation if kept.traffic is not None else 0


def changes(old: Sequence[RevisionPool], new: Sequence[RevisionPool]) -> list[Change]:
    """What `new` has otherwise than `old`, pool by pool."""
    was, now = {pool.name: pool for pool in old}, {pool.name: pool for pool in new}
    found: list[Change] = []
    for name in sorted({*was, *now}):
        if name not in was:
            found.append(Change(name, "pool", "absent", "added"))
        elif name not in now:
            found.append(Change(name, "pool", "there", "removed"))
        elif was[name].hash != now[name].hash:
            found += _changes_of_pool(was[name], now[name])
    return found


def _changes_of_pool(old: RevisionPool, new: RevisionPool) -> Iterator[Change]:
    yield from _by_field(old.name, {"image": old.image}, {"image": new.image})
    yield from _by_field(old.name, {"model": _model(old)}, {"model": _model(new)})
    yield from _by_field(old.name, _parameters(old), _parameters(new))
    for change in _by_field(old.name, old.pod_template, new.pod_template):
        short = change.field
        for prefix in TEMPLATE_PREFIXES:
            short = short.removeprefix(prefix)
        # The image stands in the template a second time.
        if change.field != f"{TEMPLATE_PREFIXES[0]}image":
            yield Change(change.pool, short, change.before, change.after)


def _model(pool: RevisionPool) -> dict[str, Any]:
    return pool.config.model.model_dump(mode="json")


def _parameters(pool: RevisionPool) -> dict[str, Any]:
    return pool.config.parameters.model_dump(mode="json")


def _by_field(pool: str, old: Any, new: Any) -> Iterator[Change]:
    """Differences either way: what only one side has counts as well."""
    seen = set()
    for found in differences(old, new):
        seen.add(found.field)
        yield Change(pool, found.field, found.desired, found.actual)
    for found in differences(new, old):
        if found.field not in seen:
            yield Change(pool, found.field, found.actual, found.desired)


def words_of(found: Sequence[Change], pools: int, limit: int | None = None) -> str:
    """Changes on one line; `limit` shows only the first ones."""
    shown_ones = [change.words(with_pool=pools > 1) for change in found[:limit]]
    rest = len(found) - len(shown_ones)
    return ", ".join([*shown_ones, *([f"and {rest} more"] if rest > 0 else [])])
