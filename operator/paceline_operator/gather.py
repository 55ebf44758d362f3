"""From raw objects to `Observed`. Pure; the informers' stores are read in `observing`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from paceline_crds.names import (
    ANNOTATION_ROLLOUT,
    LABEL_MANAGED_BY,
    LABEL_POOL,
    LABEL_POOL_HASH,
    LABEL_SERVICE,
    MANAGED_BY,
    derived_name,
)
from paceline_crds.revision import InferenceRevision
from paceline_kube import CONFIGMAPS, DEPLOYMENTS, PODDISRUPTIONBUDGETS, PODS, JsonObject, Resource

from .children import budget_name
from .failures import deployment_problem, in_doubt, pod_problem
from .measured import baselines_of, canaries_of, start_ups_of
from .observed import (
    BudgetView,
    ConfigMapView,
    DeploymentView,
    Observed,
    Ownership,
    PodView,
    RevisionView,
    Traffic,
)
from .rollout.told import rollout_of
from .views import Views


class RevisionReader:
    """Parses revisions, each once: their spec never changes, and a pass needs all that are kept."""

    def __init__(self, limit: int = 10_000) -> None:
        """Keeps at most `limit` of them, the last read ones."""
        self._limit = limit
        self._parsed: OrderedDict[str, InferenceRevision | None] = OrderedDict()

    def __call__(self, obj: JsonObject) -> InferenceRevision | None:
        """The revision; None where this release cannot read it."""
        uid = str(obj["metadata"].get("uid") or "")
        if uid in self._parsed:
            self._parsed.move_to_end(uid)
            return self._parsed[uid]
        try:
            parsed = InferenceRevision.from_object(obj)
        except ValidationError:
            parsed = None
        self._parsed[uid] = parsed
        if len(self._parsed) > self._limit:
            self._parsed.popitem(last=False)
        return parsed


def gather(
    service: JsonObject,
    *,
    read: Callable[[JsonObject], InferenceRevision | None],
    revisions: Iterable[JsonObject],
    deployments: Iterable[JsonObject],
    config_maps: Iterable[JsonObject],
    pods: Iterable[JsonObject],
    budgets: Iterable[JsonObject] = (),
    said: Callable[[str], Sequence[JsonObject]] = lambda _: (),
    views: Views | None = None,
) -> Observed:
    """What the objects of one service say. All sequences are in order of names, whatever order they came in.

    Args:
        read: parses a revision, see `RevisionReader`.
        said: the Events about a pod, by its uid, as far as somebody asked for them.
        views: those made before.
    """
    metadata = service["metadata"]
    uid, of = str(metadata["uid"]), metadata["name"]
    known = Views() if views is None else views

    def pod(obj: JsonObject) -> PodView:
        words = said(str(obj["metadata"].get("uid") or ""))
        return _pod(obj, words) if words else known.of(_pod, obj)

    return Observed(
        namespace=metadata["namespace"],
        name=of,
        uid=uid,
        generation=int(metadata.get("generation") or 0),
        revisions=tuple(known.of(_revision, obj, uid, of, read) for obj in _ordered(revisions)),
        deployments=tuple(known.of(_deployment, obj, uid, of) for obj in _ordered(deployments)),
        config_maps=tuple(known.of(_config_map, obj, uid, of) for obj in _ordered(config_maps)),
        pods=tuple(pod(obj) for obj in _ordered(pods)),
        budgets=tuple(known.of(_budget, obj, uid, of) for obj in _ordered(budgets)),
    )


def tells_nothing(kind: Resource, old: JsonObject, new: JsonObject, service: JsonObject, views: Views) -> bool:
    """Whether a pass would see after this change of a child what it saw before."""
    uid, name = str(service["metadata"]["uid"]), service["metadata"]["name"]
    if kind == PODS:
        # A pod in doubt is asked about: what matters then is not in its view.
        return not in_doubt(new) and not in_doubt(old) and views.same(_pod, old, new)
    if kind == DEPLOYMENTS:
        return views.same(_deployment, old, new, uid, name)
    if kind == CONFIGMAPS:
        return views.same(_config_map, old, new, uid, name)
    return kind == PODDISRUPTIONBUDGETS and views.same(_budget, old, new, uid, name)


def _ordered(objects: Iterable[JsonObject]) -> list[JsonObject]:
    return sorted(objects, key=lambda obj: str(obj["metadata"]["name"]))


def ownership(obj: JsonObject, uid: str, service: str) -> Ownership:
    """Whose an object is that may be a child of the service with this uid and name."""
    references: list[dict[str, Any]] = obj["metadata"].get("ownerReferences") or []
    controllers = [ref for ref in references if ref.get("controller")]
    if controllers:
        return Ownership.OURS if controllers[0].get("uid") == uid else Ownership.FOREIGN
    return Ownership.ORPHAN if _made_by_us(obj, service) else Ownership.FOREIGN


def _made_by_us(obj: JsonObject, service: str) -> bool:
    """Whether nobody but the operator can have made it. A label alone says nothing: whole groups of objects get one."""
    labels = _labels(obj)
    expected = {LABEL_SERVICE: derived_name(service), LABEL_MANAGED_BY: MANAGED_BY}
    if not expected.items() <= labels.items():
        return False
    if "service" in (obj.get("spec") or {}):  # a revision; items of a list may lack their kind
        return bool(obj["spec"]["service"] == service)
    pool, pool_hash = labels.get(LABEL_POOL), labels.get(LABEL_POOL_HASH)
    if not pool:
        return False
    # A budget is for all hashes of its pool.
    if pool_hash:
        return bool(obj["metadata"]["name"] == derived_name(service, str(pool), str(pool_hash)))
    return bool(obj["metadata"]["name"] == budget_name(service, str(pool)))


def _is_deleting(obj: JsonObject) -> bool:
    """Whether it is to go; somebody's finalizer may keep it for long."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def _labels(obj: JsonObject) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def _identity(obj: JsonObject) -> dict[str, str]:
    metadata = obj["metadata"]
    return {
        "name": metadata["name"],
        "uid": str(metadata.get("uid") or ""),
        "resource_version": str(metadata.get("resourceVersion") or ""),
    }


def _revision(
    obj: JsonObject, uid: str, service: str, read: Callable[[JsonObject], InferenceRevision | None]
) -> RevisionView:
    metadata = obj["metadata"]
    annotation = (metadata.get("annotations") or {}).get(ANNOTATION_ROLLOUT)
    return RevisionView(
        **_identity(obj),
        created=str(metadata.get("creationTimestamp") or ""),
        owner=ownership(obj, uid, service),
        parsed=read(obj),
        traffic=None if annotation is None else Traffic.from_json(metadata["name"], annotation),
        deleting=_is_deleting(obj),
        start_ups=start_ups_of(obj),
        baselines=baselines_of(obj),
        canaries=canaries_of(obj),
        rollout=rollout_of(obj),
    )


def _deployment(obj: JsonObject, uid: str, service: str) -> DeploymentView:
    spec, status, labels = obj["spec"], obj.get("status") or {}, _labels(obj)
    expected = {LABEL_SERVICE: derived_name(service), LABEL_MANAGED_BY: MANAGED_BY}
    hash_labels = labels.get(LABEL_POOL), labels.get(LABEL_POOL_HASH)
    selector = (spec.get("selector") or {}).get("matchLabels") or {}
    pool, pool_hash = selector.get(LABEL_POOL), selector.get(LABEL_POOL_HASH)
    return DeploymentView(
        **_identity(obj),
        # The selector cannot be changed; labels can.
        pool=str(pool or ""),
        hash=str(pool_hash or ""),
        replicas=int(spec.get("replicas", 1)),
        existing=int(status.get("replicas") or 0),
        owner=ownership(obj, uid, service),
        deleting=_is_deleting(obj),
        labelled=hash_labels == (pool, pool_hash) and expected.items() <= labels.items(),
        problem=deployment_problem(obj),
    )


def _config_map(obj: JsonObject, uid: str, service: str) -> ConfigMapView:
    labels = _labels(obj)
    return ConfigMapView(
        **_identity(obj),
        pool=labels.get(LABEL_POOL, ""),
        hash=labels.get(LABEL_POOL_HASH, ""),
        owner=ownership(obj, uid, service),
        deleting=_is_deleting(obj),
    )


def _budget(obj: JsonObject, uid: str, service: str) -> BudgetView:
    return BudgetView(
        **_identity(obj),
        pool=_labels(obj).get(LABEL_POOL, ""),
        owner=ownership(obj, uid, service),
        deleting=_is_deleting(obj),
    )


def _pod(obj: JsonObject, said: Sequence[JsonObject] = ()) -> PodView:
    labels = _labels(obj)
    status = obj.get("status") or {}
    conditions = status.get("conditions") or ()
    uid = str(obj["metadata"].get("uid") or "")
    over = status.get("phase") in ("Failed", "Succeeded")
    ready = next((c for c in conditions if _is_true(c, "Ready")), None)
    return PodView(
        name=obj["metadata"]["name"],
        pool=labels.get(LABEL_POOL, ""),
        hash=labels.get(LABEL_POOL_HASH, ""),
        # What has ended may have been ready at its last word.
        ready=not over and ready is not None,
        terminating=_is_deleting(obj),
        over=over,
        problem=pod_problem(obj, said),
        uid=uid,
        resource_version=str(obj["metadata"].get("resourceVersion") or ""),
        created=str(obj["metadata"].get("creationTimestamp") or ""),
        ended=_ended(status),
        ready_since="" if ready is None else str(ready.get("lastTransitionTime") or ""),
        restarts=sum(int(c.get("restartCount") or 0) for c in status.get("containerStatuses") or ()),
        placed=next((str(c.get("lastTransitionTime") or "") for c in conditions if _is_true(c, "PodScheduled")), ""),
    )


def _is_true(condition: JsonObject, kind: str) -> bool:
    return bool(condition["type"] == kind and condition["status"] == "True")


def _ended(status: JsonObject) -> str:
    """When a pod was over, or lost with its node, as far as its status says so."""
    ends = [((c.get("state") or {}).get("terminated") or {}) for c in status.get("containerStatuses") or ()]
    times = [str(end["finishedAt"]) for end in ends if end.get("finishedAt")]
    if status.get("phase") not in ("Failed", "Succeeded") or not times:
        kinds = ("DisruptionTarget", "Ready")
        told = {c["type"]: c.get("lastTransitionTime") for c in status.get("conditions") or ()}
        times = [str(told[kind]) for kind in kinds if told.get(kind)][:1]
    return max(times, default="")
