"""How requests find replicas: shapes and their thresholds, what happens to over-long ones, retries and holding."""

from __future__ import annotations

import enum
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator

from .base import Model
from .durations import Duration
from .fields import rule, rules, text


class Shape(enum.StrEnum):
    """The kinds of request that want different things of an engine."""

    SHORT_INPUT_SHORT_OUTPUT = "ShortInputShortOutput"
    LONG_INPUT_SHORT_OUTPUT = "LongInputShortOutput"
    SHORT_INPUT_LONG_OUTPUT = "ShortInputLongOutput"
    VERY_LONG = "VeryLong"
    STRUCTURED_OR_PARALLEL = "StructuredOrParallel"


class ShapeThresholds(Model):
    """Where one shape ends and the next begins. A field left out has the router's default."""

    long_input_tokens: Annotated[
        int | None, Field(ge=1, le=10_000_000, description="Prompt tokens from which an input is long. Default 2048.")
    ] = None
    long_output_tokens: Annotated[
        int | None,
        Field(ge=1, le=10_000_000, description="Expected output tokens from which an output is long. Default 512."),
    ] = None
    very_long_tokens: Annotated[
        int | None,
        Field(ge=1, le=10_000_000, description="Prompt plus expected output from which it is VeryLong. Default 16384."),
    ] = None
    many_turns: Annotated[
        int | None,
        Field(
            ge=2,
            le=10_000,
            description="Messages from which a conversation with a long input is VeryLong. Default 12.",
        ),
    ] = None
    parallel_samples: Annotated[
        int | None, Field(ge=2, le=128, description="`n` from which a request is StructuredOrParallel. Default 2.")
    ] = None


class OverLongAction(enum.StrEnum):
    """What happens to a request that is longer than its pool takes."""

    REFUSE = "Refuse"
    ROUTE = "Route"
    CUT = "Cut"


class OverLongSpec(Model):
    """What happens to a request whose prompt and answer together are longer than its pool takes."""

    action: Annotated[
        OverLongAction,
        Field(
            description="Refuse: answered 400 with the lengths. Route: goes to `pool`, or to the pool that takes the "
            "longest. Cut: `max_tokens` is lowered to what fits; a prompt is never cut."
        ),
    ] = OverLongAction.REFUSE
    above_tokens: Annotated[
        int | None,
        Field(
            ge=16,
            le=10_000_000,
            description="Length from which the rule holds. Default: runtime.maxModelLen of the request's pool.",
        ),
    ] = None
    pool: Annotated[str | None, text("Pool for Route.", max_length=32)] = None


OVER_LONG_RULES = (
    rule(
        "!has(self.pool) || self.action == 'Route'",
        "a pool is for action Route; set action: Route or remove pool",
        field_path=".pool",
    ),
)


class Stickiness(enum.StrEnum):
    """What keeps requests on one version while traffic is split by weight."""

    SESSION = "Session"
    TENANT = "Tenant"
    NONE = "None"


class RoutingSpec(Model):
    """How requests find replicas. Nothing here restarts a replica, but for requests that may take over ten minutes."""

    max_request_duration: Annotated[
        Duration | None,
        Field(
            description="Longest that one request may take, also the longest wait of a draining replica. Default 10m. "
            "More than that is a new revision: replicas are given as long to end."
        ),
    ] = None
    retry_budget_percent: Annotated[
        int | None,
        Field(ge=0, le=100, description="Retries that may be made for every hundred requests. Default 10."),
    ] = None
    hold_requests_for: Annotated[
        Duration | None,
        Field(
            description="How long a request may wait at the router while no replica is ready but some are expected. "
            "0s: not at all. Default 10s. While all are full it waits for tenancy.maxWait."
        ),
    ] = None
    spill_above_per_replica: Annotated[
        int | None,
        Field(
            ge=1,
            le=100_000,
            description="Requests at every replica of a pool from which the pool's requests go to another one. "
            "Default: twice runtime.maxNumSeqs.",
        ),
    ] = None
    slow_request_threshold: Annotated[
        Duration | None, Field(description="Requests that take longer are written to the slow-request log. Default 5s.")
    ] = None
    version_stickiness: Annotated[
        Stickiness | None,
        Field(
            description="What keeps requests on one revision while traffic is split: Session (x-paceline-session, else "
            "the tenant), Tenant, or None (each request by itself). Default Session."
        ),
    ] = None
    shapes: Annotated[
        ShapeThresholds | None, Field(description="Where one request shape ends and the next begins.")
    ] = None
    over_long: Annotated[
        OverLongSpec | None,
        Field(
            description="What happens to a request that is longer than its pool takes.",
            json_schema_extra=rules(*OVER_LONG_RULES),
        ),
    ] = None


class ObjectiveSpec(Model):
    """One latency objective: 90 of 100 requests within `p90` is the promise, `p99` the line that must hold inside."""

    p90: Annotated[Duration | None, Field(description="What nine of ten requests keep to: the promise to users.")] = (
        None
    )
    p99: Annotated[Duration | None, Field(description="What 99 of 100 keep to: the inner red line.")] = None


class SLOSpec(Model):
    """What users are promised, as seen at the router."""

    ttft: Annotated[ObjectiveSpec | None, Field(description="Time to the first token.")] = None
    tpot: Annotated[ObjectiveSpec | None, Field(description="Time per output token after the first.")] = None


class ScaleToZeroSpec(Model):
    """What happens to requests while the service has no replica by design."""

    after: Annotated[
        Duration | None,
        Field(
            description="Idle time after which the last replica goes; one comes back when a router holds a request. "
            "Absent: only you set the count to zero."
        ),
    ] = None
    hold_requests_for: Annotated[
        Duration, Field(description="How long a request waits at the router for the first replica.")
    ] = "60s"


class ScalingMode(enum.StrEnum):
    """Who decides how many replicas a pool has."""

    AUTOMATIC = "Automatic"
    EXTERNAL = "External"
    FIXED = "Fixed"


class Day(enum.StrEnum):
    """Days of the week."""

    MON = "Mon"
    TUE = "Tue"
    WED = "Wed"
    THU = "Thu"
    FRI = "Fri"
    SAT = "Sat"
    SUN = "Sun"


_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"


class WeekTime(Model):
    """Some time of the week: from `start` until `end`, which is not part of it."""

    timezone: Annotated[
        str,
        text(
            "Zone of the times, by its IANA name: Europe/Berlin, or UTC.",
            rule(
                "self.matches('^[A-Z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$') && self != 'Local' && "
                "timestamp('2026-01-01T00:00:00Z').getHours(self) >= 0",
                "write a time zone by its IANA name, for example Europe/Berlin or UTC",
            ),
            max_length=64,
        ),
    ]
    days: Annotated[
        list[Day] | None,
        Field(
            max_length=7,
            description="Days on which it begins, by that zone. Absent: every day.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ] = None
    start: Annotated[
        str,
        text(
            "When it begins, HH:MM. On a day whose clock leaves that time out: when the clock jumps.",
            rule(f"self.matches('^{_CLOCK}$')", "write a time as 06:00 or 22:30"),
            max_length=5,
        ),
    ]
    end: Annotated[
        str,
        text(
            "When it is over, HH:MM up to 24:00; one that is not after the start is on the next day.",
            rule(f"self.matches('^({_CLOCK}|24:00)$')", "write a time as 06:00 or 22:30, or 24:00"),
            max_length=5,
        ),
    ]

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"there is no time zone {name!r}; write one as Europe/Berlin or UTC") from None
        return name


class ScheduleSpec(WeekTime):
    """Other bounds at some time of the week: from `start` until `end`, which is not part of it."""

    min_replicas: Annotated[
        int | None, Field(ge=1, le=1000, description="The fewest replicas meanwhile, if that is more than usual.")
    ] = None
    max_replicas: Annotated[
        int | None, Field(ge=1, le=1000, description="The most replicas meanwhile, in the place of the usual.")
    ] = None


SCHEDULE_RULES = (
    rule(
        "has(self.minReplicas) || has(self.maxReplicas)",
        "write what is different meanwhile: minReplicas, maxReplicas or both",
    ),
    rule(
        "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
        "minReplicas has to be at most maxReplicas",
        field_path=".minReplicas",
    ),
)

SCALING_RULES = (
    rule(
        "!has(self.schedules) || has(self.maxReplicas)",
        "a schedule changes the bounds of what follows load: write maxReplicas too",
        field_path=".schedules",
    ),
    rule(
        "!has(self.mode) || self.mode != 'External' || !(has(self.minReplicas) || has(self.maxReplicas) || "
        "has(self.schedules) || has(self.scaleDownWindow))",
        "with mode: External the bounds are those of your HPA or ScaledObject: remove minReplicas, maxReplicas, "
        "schedules and scaleDownWindow",
        field_path=".mode",
    ),
    rule(
        "!has(self.minReplicas) || has(self.maxReplicas)",
        "minReplicas alone scales nothing: write maxReplicas too, or the count as replicas",
        field_path=".minReplicas",
    ),
    rule(
        "!has(self.maxReplicas) || (has(self.minReplicas) ? self.minReplicas : 1) <= self.maxReplicas",
        "minReplicas has to be at most maxReplicas",
        field_path=".minReplicas",
    ),
)


_BY_ITSELF = "has(self.scaleToZero) && has(self.scaleToZero.after)"

TO_ZERO_RULES = (
    rule(
        f"!({_BY_ITSELF}) || has(self.maxReplicas)",
        "to zero and back goes only what follows load: write scaling.maxReplicas too",
        field_path=".scaleToZero",
    ),
    rule(
        f"!({_BY_ITSELF}) || !has(self.minReplicas) || self.minReplicas == 1",
        "the last replica goes where one is the fewest: write minReplicas: 1, or leave scaleToZero.after out",
        field_path=".minReplicas",
    ),
)


class PoolScalingSpec(Model):
    """How the number of a pool's replicas follows load."""

    mode: Annotated[
        ScalingMode | None,
        Field(
            description="Automatic: between minReplicas and maxReplicas the count follows load, and `replicas` is only "
            "where it begins; without maxReplicas nothing is scaled. External: an HPA or KEDA writes spec.replicas "
            "through the scale subresource. Fixed: the count is `replicas`. Default Automatic."
        ),
    ] = None
    min_replicas: Annotated[
        int | None, Field(ge=1, le=1000, description="The fewest replicas that a pool has. Default 1.")
    ] = None
    max_replicas: Annotated[int | None, Field(ge=1, le=1000, description="The most replicas that a pool has.")] = None
    scale_down_window: Annotated[
        Duration | None,
        Field(
            description="Time over which the highest need counts when replicas are taken away: no count falls sooner "
            "after a peak. Default 3m."
        ),
    ] = None
    schedules: Annotated[
        list[Annotated[ScheduleSpec, Field(json_schema_extra=rules(*SCHEDULE_RULES))]] | None,
        Field(
            max_length=16,
            description="Other bounds at some times of the week. Where several hold, the highest of each counts.",
        ),
    ] = None


class ScalingSpec(PoolScalingSpec):
    """How the number of replicas follows load."""

    scale_to_zero: Annotated[
        ScaleToZeroSpec | None,
        Field(description="Absent: a request for a service without replicas is answered 503 at once."),
    ] = None
