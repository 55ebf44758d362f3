"""How a new revision takes over: at once, or by steps that are judged; and what a person may order meanwhile."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field

from .base import Model
from .durations import Duration
from .fields import rule, rules, text

DEFAULT_HOLD = "10m"
DEFAULT_MAX_DURATION = "1h"
"""Of a step; a longer hold takes its place."""

QUANTILE_MARGIN_PERCENT = 5
"""Smallest margin of a percentile: routers' sketches tell no smaller differences."""


class RolloutStrategy(enum.StrEnum):
    """How one revision follows another."""

    ROLLING = "Rolling"
    RECREATE = "Recreate"
    CANARY = "Canary"


class OrderAction(enum.StrEnum):
    """What a manual order asks for."""

    PIN = "Pin"
    PROMOTE = "Promote"
    SKIP = "Skip"
    ABORT = "Abort"


class GateSignal(enum.StrEnum):
    """What a gate looks at: what routers measure of both revisions, what their replicas count, and what a recorder
    finds of their answers to the same requests.
    """

    TTFT_P50 = "TTFTP50"
    TTFT_P90 = "TTFTP90"
    TTFT_P99 = "TTFTP99"
    TPOT_P50 = "TPOTP50"
    TPOT_P90 = "TPOTP90"
    TPOT_P99 = "TPOTP99"
    ERROR_RATE = "ErrorRate"
    CANCELLED = "Cancelled"
    GOODPUT = "Goodput"
    THROUGHPUT = "Throughput"
    PREEMPTIONS = "Preemptions"
    HIT_RATE = "HitRate"
    OUTPUT_CANARY = "OutputCanary"
    OUTPUT_DIFFERENCE = "OutputDifference"
    LENGTH_P50 = "LengthP50"
    LENGTH_P90 = "LengthP90"
    REFUSALS = "Refusals"
    JSON_INVALID = "JSONInvalid"
    TOOL_CALLS_INVALID = "ToolCallsInvalid"
    TRUNCATED = "Truncated"


OUTPUT_SIGNALS = frozenset(
    {
        GateSignal.OUTPUT_DIFFERENCE,
        GateSignal.LENGTH_P50,
        GateSignal.LENGTH_P90,
        GateSignal.REFUSALS,
        GateSignal.JSON_INVALID,
        GateSignal.TOOL_CALLS_INVALID,
        GateSignal.TRUNCATED,
    }
)
"""Known of copied requests only, so in the shadow step."""


REPLICA_SIGNALS = frozenset({GateSignal.THROUGHPUT, GateSignal.PREEMPTIONS, GateSignal.HIT_RATE})
"""Known by pool, from replicas' own counters."""


DEFAULT_QUERY_HOLD = "2m"
_NUMBER = rule(
    r"self.matches('^-?[0-9]+(\\.[0-9]+)?$')",
    'write a decimal number as text, for example "0.05"',
)


class OnNotKnown(enum.StrEnum):
    """What happens when a step's time is over and nothing is known."""

    PAUSE = "Pause"
    CONTINUE = "Continue"
    ROLLBACK = "Rollback"


class OnBreach(enum.StrEnum):
    """What happens when a gate is worse."""

    ROLLBACK = "Rollback"
    PAUSE = "Pause"


class OrderSpec(Model):
    """A manual order about one revision."""

    revision: Annotated[
        str,
        text(
            "Name of a kept InferenceRevision, for example chat-7f3c9a1b2c; `paceline history` lists them. An order "
            "counts for it only.",
            rule(
                "self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",
                "write the name of an InferenceRevision, for example chat-7f3c9a1b2c",
            ),
            max_length=63,
        ),
    ]
    action: Annotated[
        OrderAction,
        Field(
            description="Pin: this revision serves, whatever else the spec asks for, until the order is removed. Of a "
            "Canary rollout, each followed once: Promote gives it all of the traffic, Skip goes on to the next step, "
            "Abort goes back and rejects it."
        ),
    ]
    id: Annotated[
        str | None,
        text(
            "Tells an order from an earlier one of the same words, for example a second Skip: any text that is new.",
            max_length=63,
        ),
    ] = None
    by: Annotated[str | None, text("Who gives the order, for the record.", max_length=253)] = None
    why: Annotated[str | None, text("Why, for the record.", max_length=1024)] = None


class StepSpec(Model):
    """A share of the traffic for the new revision, and how long it is watched."""

    weight: Annotated[int, Field(ge=1, le=100, description="The new revision's whole percent of the requests.")]
    replicas: Annotated[
        int | None,
        Field(ge=1, le=1000, description="Its replicas in each pool. Default: as many as the weight asks for."),
    ] = None
    hold: Annotated[
        Duration | None,
        Field(
            description=f"How long it is watched at the least; of the last step how long the old revision is kept "
            f"after it. Default {DEFAULT_HOLD}."
        ),
    ] = None
    max_duration: Annotated[
        Duration | None,
        Field(
            description=f"When onNotKnown decides, where nothing is known by then. Default {DEFAULT_MAX_DURATION}, or "
            f"hold where that is longer."
        ),
    ] = None


STEP_RULES = (
    rule(
        "!has(self.hold) || !has(self.maxDuration) || duration(self.hold) <= duration(self.maxDuration)",
        "a step cannot be held for longer than its maxDuration: lower hold, or raise maxDuration",
        field_path=".maxDuration",
    ),
)


class ScoreSpec(Model):
    """What a comparison of your own, installed beside the recorder, may say of the new revision's answers."""

    name: Annotated[
        str,
        text("Of the comparison: the entry point in the group paceline.comparisons.", max_length=63),
    ]
    max_percent: Annotated[
        int,
        Field(ge=0, le=100, description="The highest mean score that is still no worse, as percent: 0 is as good."),
    ]
    min_samples: Annotated[
        int | None,
        Field(ge=1, le=10_000_000, description="Scores before anything is said. Default: the shadow's minSamples."),
    ] = None


class ShadowSpec(Model):
    """A step before the first one: the new revision gets copies of requests, and its answers go to a recorder only,
    which holds them against the old one's.
    """

    percent: Annotated[int, Field(ge=1, le=100, description="Whole percent of the requests that are copied.")]
    min_samples: Annotated[
        int | None,
        Field(ge=1, le=10_000_000, description="Pairs of answers before anything is said. Default 200."),
    ] = None
    max_duration: Annotated[
        Duration | None,
        Field(description="When onNotKnown decides, where nothing is known by then. Default 30m."),
    ] = None
    opt_out_tenants: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=253)]] | None,
        Field(
            max_length=64,
            description="Tenants of which nothing is copied.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ] = None
    scores: Annotated[
        list[ScoreSpec] | None,
        Field(
            min_length=1,
            max_length=8,
            description="Gates on comparisons of your own, beside the others.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = None


class QuerySpec(Model):
    """A number of your own that has to stay within bounds, in PromQL."""

    name: Annotated[
        str,
        text(
            "What it is called in verdicts.",
            rule("self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')", "write a name of a-z, 0-9 and -, for example cost"),
            max_length=63,
        ),
    ]
    query: Annotated[
        str,
        text(
            "An expression that gives one number. $candidate and $base are the names of the revisions, $candidatePods "
            "and $basePods regular expressions for the names of their pods, $namespace and $service the service's.",
            rule(
                "self.contains('$candidate')",
                "it says nothing of the new revision: write $candidatePods where its pods belong, for example "
                'sum(rate(my_errors_total{namespace="$namespace",pod=~"$candidatePods"}[2m])), or $candidate for its '
                "name",
            ),
            max_length=4096,
        ),
    ]
    min: Annotated[str | None, text("The least that is allowed, as text.", _NUMBER, max_length=32)] = None
    max: Annotated[str | None, text("The most that is allowed, as text.", _NUMBER, max_length=32)] = None
    hold_for: Annotated[
        Duration | None,
        Field(
            description="How long it has to be out of bounds without a break to count as worse, and within them to "
            f"pass. Default {DEFAULT_QUERY_HOLD}."
        ),
    ] = None
    warm_up: Annotated[
        Duration | None, Field(description="What is left out at the beginning of a step. Default 1m.")
    ] = None


QUERY_RULES = (
    rule(
        "has(self.min) || has(self.max)",
        'nothing is out of bounds without one: write max or min, for example max: "0.05"',
        field_path=".query",
    ),
)


class GateSpec(Model):
    """What may not get worse."""

    signal: Annotated[
        GateSignal,
        Field(
            description="Percentiles of time to first token and of time per token, and shares of requests: ErrorRate, "
            "Cancelled (the client left) and Goodput (within spec.slo). From replicas' counters, by pool: Throughput "
            "(answer tokens per second, as if all requests had come to this revision), Preemptions (of requests) and "
            "HitRate (prompt tokens from the prefix cache). OutputCanary: every replica of the new revision gives the "
            "recorded answer to the fixed question (without this gate only a wrong answer counts, as worse). "
            "Of answers to copied requests, in the shadow step: OutputDifference (greedy ones), LengthP50, "
            "LengthP90, Refusals, JSONInvalid, ToolCallsInvalid, Truncated. ErrorRate is looked at in both."
        ),
    ]
    max_regression_percent: Annotated[
        int,
        Field(
            ge=0,
            le=900,
            description="How much worse is still no worse: percent of the old revision's value for times and "
            "Throughput, points of 100 for shares.",
        ),
    ]
    min_samples: Annotated[
        int | None,
        Field(
            ge=1,
            le=10_000_000,
            description="Requests of each revision before anything is said. Default 200, of a P99 500, of Throughput "
            "20 minutes.",
        ),
    ] = None
    warm_up: Annotated[
        Duration | None,
        Field(description="What is left out at the beginning of a step. Default 1m, of HitRate 10m."),
    ] = None


GATE_RULES = (
    rule(
        "self.signal != 'OutputCanary' || (self.maxRegressionPercent == 0 && !has(self.minSamples) && "
        "!has(self.warmUp))",
        "an answer is the recorded one or it is not: write {signal: OutputCanary, maxRegressionPercent: 0} and no more",
        field_path=".maxRegressionPercent",
    ),
    rule(
        "!['TTFT', 'TPOT', 'Length'].exists(s, self.signal.startsWith(s)) || "
        f"self.maxRegressionPercent >= {QUANTILE_MARGIN_PERCENT}",
        f"percentiles are known to 5 %: write maxRegressionPercent: {QUANTILE_MARGIN_PERCENT} or more",
        field_path=".maxRegressionPercent",
    ),
)


class RolloutSpec(Model):
    """How a new revision takes over."""

    order: Annotated[
        OrderSpec | None, Field(description="A manual order, for example to go back to an earlier revision.")
    ] = None

    strategy: Annotated[
        RolloutStrategy,
        Field(
            description="Rolling: new replicas get ready beside the old ones before traffic moves (needs room for "
            "both). Recreate: the old ones stop first (no room needed; requests wait or fail meanwhile). Canary: the "
            "new revision gets the traffic by steps, and goes on only while it is no worse than the old one."
        ),
    ] = RolloutStrategy.ROLLING
    shadow: Annotated[
        ShadowSpec | None,
        Field(
            description="Copies of requests for the new revision before it serves anybody; needs the chart's recorder. "
            "Absent: no such step."
        ),
    ] = None
    steps: Annotated[
        list[Annotated[StepSpec, Field(json_schema_extra=rules(*STEP_RULES))]] | None,
        Field(
            min_length=1,
            max_length=20,
            description="Rising weights, the last one 100. Default: 5 (with one replica), 25, 100.",
        ),
    ] = None
    gates: Annotated[
        list[Annotated[GateSpec, Field(json_schema_extra=rules(*GATE_RULES))]] | None,
        Field(
            min_length=1,
            max_length=16,
            description="What may not get worse. Default: TTFTP50 by 10, TTFTP99 by 25, TPOTP99 by 15, ErrorRate by 1, "
            "Cancelled by 3, and with spec.slo Goodput by 3; in the shadow step ErrorRate by 1, OutputDifference by 5, "
            "LengthP50 by 15, Refusals by 2 and Truncated by 3.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["signal"]},
        ),
    ] = None
    queries: Annotated[
        list[Annotated[QuerySpec, Field(json_schema_extra=rules(*QUERY_RULES))]] | None,
        Field(
            min_length=1,
            max_length=8,
            description="Numbers of your own from Prometheus (the chart's operator.prometheusURL) that have to stay "
            "within bounds in every step, beside the gates.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = None
    last_pools: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=63)]] | None,
        Field(
            min_length=1,
            max_length=16,
            description="Pools whose answers matter most: when others change too, these get their change by a rollout "
            "of its own after it. A shape that should go last gets a pool (spec.pools) that is named here.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ] = None
    on_not_known: Annotated[
        OnNotKnown | None,
        Field(
            description="What happens at a step's maxDuration when it is not known whether the new revision is worse: "
            "Pause (it stays, and a later verdict still counts), Continue, Rollback. Default Pause."
        ),
    ] = None
    on_breach: Annotated[
        OnBreach | None,
        Field(description="What happens when a gate is worse: Rollback, or Pause for a person. Default Rollback."),
    ] = None
    paused: Annotated[
        bool | None,
        Field(description="While true the new revision gets no more traffic; a rollback goes on."),
    ] = None


_CANARY_FIELDS = ("shadow", "steps", "gates", "queries", "lastPools", "onNotKnown", "onBreach", "paused")

ROLLOUT_RULES = (
    rule(
        "self.strategy == 'Canary' || !(" + " || ".join(f"has(self.{name})" for name in _CANARY_FIELDS) + ")",
        f"{', '.join(_CANARY_FIELDS[:-1])} and paused are for strategy Canary: write strategy: Canary, or leave them "
        "out",
        field_path=".strategy",
    ),
    rule(
        "self.strategy == 'Canary' || !has(self.order) || self.order.action == 'Pin'",
        "Promote, Skip and Abort are orders about a Canary rollout: write strategy: Canary, or action: Pin",
        field_path=".order.action",
    ),
    rule(
        # They rise, so that this is the last one.
        "!has(self.steps) || self.steps.exists(s, s.weight == 100)",
        "the last step gives the new revision all of the traffic: write weight: 100 there",
        field_path=".steps",
    ),
    rule(
        "!has(self.steps) || (self.steps.map(s, s.weight).isSorted() && "
        "self.steps.all(s, self.steps.exists_one(t, t.weight == s.weight)))",
        "each step gives the new revision more than the one before: write rising weights, for example 5, 25, 100",
        field_path=".steps",
    ),
    rule(
        "has(self.shadow) || !has(self.gates) || "
        f"self.gates.all(g, !(g.signal in {sorted(signal.value for signal in OUTPUT_SIGNALS)}))",
        "answers are compared in the shadow step only: write shadow as well, for example {percent: 5}",
        field_path=".gates",
    ),
)
