"""Taking the actions of a plan, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from paceline_crds.names import ANNOTATION_ROLLOUT, FIELD_MANAGER_OPERATOR
from paceline_kube import (
    CONFIGMAPS,
    DEPLOYMENTS,
    INFERENCEREVISIONS,
    INFERENCESERVICES,
    PERSISTENTVOLUMECLAIMS,
    PODDISRUPTIONBUDGETS,
    PODS,
    AlreadyExists,
    Conflict,
    JsonObject,
    KubeClient,
    KubeError,
    NotFound,
    Resource,
)

from . import children
from .actions import (
    Action,
    ApplyBudget,
    ApplyConfigMap,
    ApplyDeployment,
    CreateRevision,
    Delete,
    MoveTraffic,
    RecordRollout,
)
from .claims import claims_of, warning
from .gather import ownership
from .observed import Observed, Ownership
from .provenance import order_cause, provenance
from .recorder import Recorder
from .records import anew, record_of
from .render import Desired
from .written import Written

log = logging.getLogger(__name__)

KINDS: Mapping[str, Resource] = {
    "deployment": DEPLOYMENTS,
    "config": CONFIGMAPS,
    "revision": INFERENCEREVISIONS,
    "pod": PODS,
    "budget": PODDISRUPTIONBUDGETS,
}


ROLLOUT_WARNINGS = frozenset(
    {"GateWorse", "CandidateBroken", "CandidateGone", "NoRoom", "RoomNotKnown", "NotKnown", "RolledBack"}
)
"""Reasons of decisions about a rollout that somebody should look at."""


class ServiceGone(Exception):
    """The service was deleted, or replaced by another of its name, since it was read."""


class NameTaken(Exception):
    """An object of the name that a child needs is there and is not the service's; it is not touched."""


class Applier:
    """Takes actions for one service in one pass."""

    def __init__(
        self,
        client: KubeClient,
        recorder: Recorder,
        written: Written,
        service: JsonObject,
        observed: Observed,
        desired: Desired | None = None,
    ) -> None:
        """`desired`: what the actions are to bring about; only `put_back` does without."""
        self._client = client
        self._recorder = recorder
        self._written = written
        self._service = service
        self._observed = observed
        self._desired = desired
        self._key = (observed.namespace, observed.name)
        self._alive = False
        self._versions: dict[str, str] = {}  # of the revisions stored in this pass, however long it takes
        self._live_metadata: Mapping[str, Any] = {}

    async def take(self, action: Action) -> None:
        """Take one action.

        Raises:
            ServiceGone: nothing may be made for this service any more.
            NameTaken: somebody else has an object of this name.
            KubeError: the write failed.
        """
        log.info("%s/%s: %s", *self._key, action.sentence)
        match action:
            case CreateRevision():
                await self._create_revision(action)
            case ApplyConfigMap():
                await self._apply_config_map(action)
            case ApplyDeployment():
                await self._apply_deployment(action)
            case MoveTraffic():
                await self._move_traffic(action)
            case RecordRollout():
                await self._record_rollout(action)
            case ApplyBudget():
                await self._apply_budget(action)
            case Delete():
                await self._delete(action)

    async def put_back(self, lost: JsonObject) -> None:
        """Put a revision back that somebody deleted, or the record of the traffic that somebody took off it.

        Raises:
            ServiceGone, NameTaken, KubeError: as for an action.
        """
        name, record = lost["metadata"]["name"], record_of(lost)
        assert record is not None, "a revision is put back for its record"
        await self._must_be_alive()
        try:
            stored = await self._client.create(INFERENCEREVISIONS, anew(lost), field_manager=FIELD_MANAGER_OPERATOR)
        except AlreadyExists:
            live = await self._must_be_free(INFERENCEREVISIONS, name)
            if live is None:
                # It went between the two calls, which the next pass is told of.
                return
            now, labels = record_of(live), lost["metadata"]["labels"]
            counts = now is not None and now.generation >= record.generation
            if counts and labels.items() <= (live["metadata"].get("labels") or {}).items():
                self._put(INFERENCEREVISIONS, live)
                return
            metadata: dict[str, Any] = {"resourceVersion": live["metadata"]["resourceVersion"], "labels": labels}
            if not counts:
                metadata["annotations"] = {ANNOTATION_ROLLOUT: lost["metadata"]["annotations"][ANNOTATION_ROLLOUT]}
            body = {"metadata": metadata}
            stored = await self._client.patch(
                INFERENCEREVISIONS, name, body, self._observed.namespace, field_manager=FIELD_MANAGER_OPERATOR
            )
        self._put(INFERENCEREVISIONS, stored)
        self._tell(
            "TrafficRecordRestored",
            f"Put revision {name} back: somebody took away what says that requests go to it",
            type="Warning",
        )

    async def _create_revision(self, action: CreateRevision) -> None:
        assert self._desired is not None, "an action comes of what is asked for"
        await self._must_be_alive()
        own = (r.created for r in self._observed.revisions if r.owner is not Ownership.FOREIGN)
        annotations = None if action.adopt else provenance(self._live_metadata, max(own, default=""))
        body = children.revision(self._observed, self._desired, annotations)
        await self._make(INFERENCEREVISIONS, body)
        if not action.adopt:
            pools = ", ".join(f"{pool.name} {pool.hash}" for pool in self._desired.pools)
            self._tell("RevisionCreated", f"Created revision {action.name} (pools: {pools})")
            await self._look_at_claims()

    async def _look_at_claims(self) -> None:
        """Warn, once for a revision, of volumes that cannot be where all replicas are."""
        assert self._desired is not None, "an action comes of what is asked for"
        for name in claims_of(self._desired):
            try:
                claim = await self._client.get(PERSISTENTVOLUMECLAIMS, name, self._observed.namespace)
            except KubeError as exc:
                log.info("%s/%s: claim %s not looked at: %s", *self._key, name, exc)
                continue
            if words := warning(claim, self._desired):
                self._tell("VolumeForOneNode", words[:1].upper() + words[1:], type="Warning")

    async def _apply_config_map(self, action: ApplyConfigMap) -> None:
        await self._must_be_alive()
        await self._make(CONFIGMAPS, children.config_map(self._observed, action.name, action.pool))

    async def _apply_budget(self, action: ApplyBudget) -> None:
        await self._must_be_alive()
        try:
            await self._make(PODDISRUPTIONBUDGETS, children.budget(self._observed, action.name, action.pool))
        except NameTaken as exc:
            # Whoever made it guards these pods or others; nothing else waits for ours.
            log.info("%s/%s: %s", *self._key, exc)

    async def _apply_deployment(self, action: ApplyDeployment) -> None:
        if action.force:
            self._put(DEPLOYMENTS, await self._put_right(action))
            return
        body = children.deployment(self._observed, action.name, action.pool, action.replicas)
        if action.before is None:
            await self._must_be_alive()
            # Fails where there is one by now, which an apply would set to the count that was judged before.
            await self._make(DEPLOYMENTS, body)
        else:
            # Never on another Deployment of this name, and only from the state that was judged.
            body["metadata"] |= {"uid": action.uid, "resourceVersion": action.resource_version}
            self._put(DEPLOYMENTS, await self._apply(body))
        if action.before is None:
            self._tell("DeploymentCreated", f"Created {action.name} with {action.replicas} replicas")
        elif action.before != action.replicas:
            self._tell("Scaled", f"Scaled {action.name} from {action.before} to {action.replicas} replicas")

    async def _apply(self, body: JsonObject) -> JsonObject:
        """Apply a Deployment over the version that `body` names, around what others have claimed of it.

        Its maker is another manager to the API server, under our name: that one's claims are overruled.
        """
        try:
            return await self._client.apply(DEPLOYMENTS, body, field_manager=FIELD_MANAGER_OPERATOR)
        except Conflict as conflict:
            if not claims(conflict):
                raise
            return await self._apply_around(body, conflict)

    async def _apply_around(self, body: JsonObject, conflict: Conflict) -> JsonObject:
        """Another manager has claimed fields of a Deployment. Replicas and labels are ours; the rest is left to it.

        Its values are sent back in the place of ours: equal values are no conflict, and it stays their owner.
        """
        foreign = [field for field in claims(conflict) if field.startswith(".spec.template")]
        if foreign:
            live = await self._client.get(DEPLOYMENTS, body["metadata"]["name"], self._observed.namespace)
            body["spec"]["template"] = project(body["spec"]["template"], live["spec"]["template"])
            self._tell(
                "FieldClaimed",
                f"Left {', '.join(foreign)} of {body['metadata']['name']} as it is: {conflict.message}",
                type="Warning",
            )
        return await self._client.apply(DEPLOYMENTS, body, field_manager=FIELD_MANAGER_OPERATOR, force=True)

    async def _put_right(self, action: ApplyDeployment) -> JsonObject:
        """Put the recorded values over those of other managers; what we never set stays as they have it."""
        live = await self._client.get(DEPLOYMENTS, action.name, self._observed.namespace)
        ours = children.deployment(self._observed, action.name, action.pool, action.replicas)["spec"]["template"]
        # A list is one whole in a merge patch too. Over another version than the one read it is a conflict, no refusal.
        body = {
            "metadata": {"uid": action.uid, "resourceVersion": live["metadata"]["resourceVersion"]},
            "spec": {"template": overlay(ours, live["spec"]["template"])},
        }
        stored = await self._client.patch(
            DEPLOYMENTS, action.name, body, self._observed.namespace, field_manager=FIELD_MANAGER_OPERATOR
        )
        self._tell("DriftRepaired", f"Put the pod template of {action.name} back to what its revision says")
        return stored

    async def _move_traffic(self, action: MoveTraffic) -> None:
        traffic = action.traffic
        version = self._version(traffic.revision)
        cause = None
        if self._desired is not None and self._desired.pinned:
            await self._must_be_alive()
            cause = order_cause(self._live_metadata)
        stored = await self._client.patch(
            INFERENCEREVISIONS,
            traffic.revision,
            children.traffic_patch(traffic, version, cause),
            self._observed.namespace,
            field_manager=FIELD_MANAGER_OPERATOR,
        )
        self._put(INFERENCEREVISIONS, stored)
        before = self._observed.traffic
        came = f" from {before.revision}" if before else ""
        self._tell("TrafficMoved", f"Moved traffic{came} to {traffic.revision} (generation {traffic.generation})")

    async def _record_rollout(self, action: RecordRollout) -> None:
        traffic, said = action.traffic, action.record
        stored = await self._client.patch(
            INFERENCEREVISIONS,
            traffic.revision,
            children.rollout_patch(traffic, self._version(traffic.revision)),
            self._observed.namespace,
            field_manager=FIELD_MANAGER_OPERATOR,
        )
        self._put(INFERENCEREVISIONS, stored)
        where = f"{said.revision} at {said.weight} %, {said.after}"
        kind = "Warning" if said.reason in ROLLOUT_WARNINGS else "Normal"
        self._tell(f"Rollout{said.reason}", f"{where}: {said.message}", type=kind)

    def _version(self, revision: str) -> str:
        """In which a revision was seen or stored last."""
        version = self._versions.get(revision)
        if version is None:
            kept = self._observed.revision(revision)
            assert kept is not None, "traffic goes to a revision that was created before"
            version = kept.resource_version
        return version

    async def _delete(self, action: Delete) -> None:
        resource = KINDS[action.kind]
        metadata = {"namespace": self._observed.namespace, "name": action.name, "uid": action.uid}
        try:
            await self._client.delete(
                resource,
                action.name,
                self._observed.namespace,
                uid=action.uid,
                resource_version=action.resource_version,
            )
        except NotFound:
            # Gone is what was wanted.
            log.info("%s/%s: %s %s is gone already", *self._key, action.kind, action.name)
        if action.kind == "pod":
            self._tell("DriftRepaired", f"Replaced pod {action.name}, which did not run as recorded")
        else:
            self._written.remove(self._key, resource, {"metadata": metadata})

    async def _make(self, resource: Resource, body: JsonObject) -> None:
        """Create a child; one that is there already gets its owner and labels back."""
        try:
            stored = await self._client.create(resource, body, field_manager=FIELD_MANAGER_OPERATOR)
        except AlreadyExists:
            stored = await self._take_over(resource, body)
        self._put(resource, stored)

    async def _take_over(self, resource: Resource, body: JsonObject) -> JsonObject:
        metadata = body["metadata"]
        live = await self._must_be_free(resource, metadata["name"])
        if live is None:
            # It went between the two calls.
            return await self._client.create(resource, body, field_manager=FIELD_MANAGER_OPERATOR)
        labels, uid = live["metadata"].get("labels") or {}, self._observed.uid
        ours = ownership(live, uid, self._observed.name) is Ownership.OURS
        if ours and metadata["labels"].items() <= labels.items():
            # Made by the pass before, or by another leader, and on its way into the caches.
            return live
        kept = {name: live["metadata"][name] for name in ("uid", "resourceVersion")}
        body = {**body, "metadata": {**metadata, **kept}}
        if resource == DEPLOYMENTS:
            return await self._apply(body)
        return await self._client.apply(resource, body, field_manager=FIELD_MANAGER_OPERATOR, force=True)

    async def _must_be_alive(self) -> None:
        """No child for a service that is gone: asked of the API server itself, once in a pass, before the first."""
        if self._alive:
            return
        try:
            live = await self._client.get(INFERENCESERVICES, self._observed.name, self._observed.namespace)
        except NotFound as exc:
            raise ServiceGone from exc
        if live["metadata"].get("uid") != self._observed.uid or live["metadata"].get("deletionTimestamp"):
            raise ServiceGone
        self._alive = True
        # The caches drop what says who wrote what.
        self._live_metadata = live["metadata"]

    async def _must_be_free(self, resource: Resource, name: str) -> JsonObject | None:
        """No apply over an object of somebody else: the caches hold labelled objects only. Gives what is there."""
        observed = self._observed
        try:
            live = await self._client.get(resource, name, observed.namespace)
        except NotFound:
            return None
        if ownership(live, observed.uid, observed.name) is Ownership.FOREIGN:
            raise NameTaken(
                f"{resource.kind} {name} is there already and does not belong to this service; it is not touched: "
                "delete it, or give the service another name"
            )
        return live

    def _put(self, resource: Resource, obj: JsonObject) -> None:
        if resource == INFERENCEREVISIONS:
            self._versions[obj["metadata"]["name"]] = obj["metadata"]["resourceVersion"]
        self._written.put(self._key, resource, obj)

    def _tell(self, reason: str, message: str, *, type: str = "Normal") -> None:
        self._recorder.event(self._service, type=type, reason=reason, message=message)


def claims(conflict: Conflict) -> list[str]:
    """Fields that other managers have claimed; empty where the object itself has changed, or is another one."""
    return [str(cause.get("field")) for cause in conflict.causes if cause.get("reason") == "FieldManagerConflict"]


_LIST_KEYS = ("mountPath", "containerPort", "name")
"""What items of a list in a pod template are told apart by, the most telling first."""


def project(ours: Any, live: Any) -> Any:
    """The fields of `ours` with the values of `live`; what `live` lacks is left out."""
    if isinstance(ours, dict) and isinstance(live, dict):
        return {key: project(value, live[key]) for key, value in ours.items() if key in live}
    if isinstance(ours, list) and isinstance(live, list):
        key = _entry_key(ours)
        if key is None:
            return live
        by_key = {item.get(key): item for item in live if isinstance(item, dict)}
        return [project(item, by_key[item[key]]) for item in ours if item[key] in by_key]
    return live


def overlay(ours: Any, live: Any) -> Any:
    """`live` with the values of `ours`. A list is one whole: that of `ours` stays."""
    if isinstance(ours, dict) and isinstance(live, dict):
        return {**live, **{key: overlay(value, live[key]) if key in live else value for key, value in ours.items()}}
    return ours


def _entry_key(entries: list[Any]) -> str | None:
    """What the entries of a list are told apart by."""
    return next((k for k in _LIST_KEYS if entries and all(isinstance(o, dict) and k in o for o in entries)), None)
