"""Conditions of an `InferenceService` (KEP-1623) and the reasons they may give."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field

from .base import Model


class ConditionType(enum.StrEnum):
    """Condition types."""

    READY = "Ready"
    TRAFFIC_READY = "TrafficReady"
    REVISION_READY = "RevisionReady"
    PROGRESSING = "Progressing"
    UPGRADE_AVAILABLE = "UpgradeAvailable"
    """Only there while the operator brings a newer image or newer defaults than the service runs with."""
    MODEL_NAME_CONFLICT = "ModelNameConflict"
    """Only there while several services ask for one served name, and then on each of them."""
    CRD_OUTDATED = "CRDOutdated"
    """Only there while the cluster's CRDs lack fields that the operator knows."""
    SHAPES_OUT_OF_REACH = "ShapesOutOfReach"
    """Only there while a pool is too short for a request shape that it claims; it serves all the same."""
    CONFIG_IN_SYNC = "ConfigInSync"
    SCALING_ACTIVE = "ScalingActive"
    """Only there while the count of some pool follows load."""
    TUNING_ACTIVE = "TuningActive"
    """Only there while knobs of some pool follow load."""
    SLO_MET = "SLOMet"
    """Whether promises to users are kept, by what the routers saw; only there where spec.slo promises something."""
    OUTPUTS_AGREE = "OutputsAgree"
    """Whether every replica answers a fixed question as the others do and as before; absent before they were asked."""
    SPLIT_ADVISED = "SplitAdvised"
    """Whether a request shape should have a pool of its own, as the routers see it; absent before they were asked."""


class ConditionStatus(enum.StrEnum):
    """`Unknown` is said when a thing is not known; it is not `False`."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(enum.StrEnum):
    """Machine-readable reasons; the message beside them is for people."""

    AS_ASKED = "AsAsked"
    ROLLING_OUT = "RollingOut"
    ROLLED_BACK = "RolledBack"
    """The asked-for revision was rejected by a gate or a person; the one before it serves."""
    PINNED = "Pinned"
    SCALED_TO_ZERO = "ScaledToZero"
    DEGRADED = "Degraded"
    SUSPENDED = "Suspended"
    STARTING = "Starting"
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_INVALID = "ModelInvalid"
    UNSCHEDULABLE = "Unschedulable"
    CRASH_LOOP = "CrashLoop"
    IMAGE_PULL = "ImagePull"
    OUT_OF_MEMORY = "OutOfMemory"
    QUOTA_EXCEEDED = "QuotaExceeded"
    CONFIG_ERROR = "ConfigError"
    POD_REFUSED = "PodRefused"
    RESOURCE_CONFLICT = "ResourceConflict"
    VOLUME_UNAVAILABLE = "VolumeUnavailable"
    PROBE_FAILING = "ProbeFailing"
    NODE_LOST = "NodeLost"
    EVICTED = "Evicted"
    INVALID_SPEC = "InvalidSpec"
    DOES_NOT_FIT = "DoesNotFit"
    """What is asked for is more than the accelerator has, by the ledger; what serves goes on."""
    SERVING = "Serving"
    IDLE = "Idle"
    NOTHING_SERVES = "NothingServes"
    KEYS_UNREADABLE = "KeysUnreadable"
    """Replicas could take requests, but the routers refuse all: they cannot check keys."""
    NEWER_RELEASE = "NewerRelease"
    IN_SYNC = "InSync"
    DRIFTED = "Drifted"
    NOT_KNOWN = "NotKnown"
    FIELDS_MISSING = "FieldsMissing"
    NAME_KEPT = "NameKept"
    NAME_TAKEN = "NameTaken"
    POOL_TOO_SHORT = "PoolTooShort"
    SHAPE_SLOWS_OTHERS = "ShapeSlowsOthers"
    NO_CLEAR_EFFECT = "NoClearEffect"
    NOT_ENOUGH_REQUESTS = "NotEnoughRequests"
    PROMISES_KEPT = "PromisesKept"
    INNER_LINE_CROSSED = "InnerLineCrossed"
    """A P99 is missed and the P90 beside it kept: no promise is broken yet."""
    PROMISE_MISSED = "PromiseMissed"
    SAME_ANSWER = "SameAnswer"
    ANSWER_CHANGED = "AnswerChanged"
    """Every replica answers otherwise than before: the tokeniser, the model or the sampling is another one."""
    REPLICA_DIFFERS = "ReplicaDiffers"
    CACHE_CONTAMINATED = "CacheContaminated"
    """Only answers that the prefix cache has a part in are other ones."""
    FOLLOWS_LOAD = "FollowsLoad"
    METRICS_UNAVAILABLE = "MetricsUnavailable"
    SCALER_CONFLICT = "ScalerConflict"
    NO_OBJECTIVE = "NoObjective"
    """Nothing is promised that the knobs could be turned by."""
    REPLICA_REFUSES = "ReplicaRefuses"
    """A replica did not take what was decided."""


class Condition(Model):
    """One condition."""

    type: Annotated[str, Field(description="What the condition is about.")]
    status: Annotated[ConditionStatus, Field(description="True, False or Unknown.")]
    reason: Annotated[str, Field(description="One word for programs.")]
    message: Annotated[str, Field(description="A sentence for people.")] = ""
    last_transition_time: Annotated[str, Field(description="When the status last changed (RFC 3339).")]
    observed_generation: Annotated[int | None, Field(description="Generation of the spec it was judged for.")] = None


EXIT_MODEL_NOT_FOUND = 66
"""Exit code of the runtime when there is nothing at the model's source (sysexits EX_NOINPUT)."""

EXIT_MODEL_INVALID = 65
"""Exit code of the runtime when the files are there but cannot be served (sysexits EX_DATAERR)."""

EXIT_CONFIG = 78
"""Exit code of the runtime when its configuration cannot work, e.g. more memory than there is (sysexits EX_CONFIG)."""
