"""What a spec asks for of scaling. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline_autoscaler import schedule
from paceline_autoscaler.capacity import Objectives
from paceline_crds.durations import parse_duration
from paceline_crds.names import DEFAULT_POOL
from paceline_crds.routing import ScalingMode
from paceline_kube import JsonObject

MAX_REQUEST_SECONDS = 600.0
"""What `spec.routing.maxRequestDuration` is by default."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A pool whose count follows load.

    Attributes:
        least, most: the usual bounds.
        initial: replicas while the pool has no Deployment.
        idle_after: seconds without work after which the last replica goes, where `least` is 0.
        down_window: seconds over which the highest need counts when scaling down; None: as always.
        windows: times of the week with other bounds.
    """

    least: int
    most: int
    initial: int
    objectives: Objectives
    idle_after: float | None = None
    down_window: float | None = None
    windows: tuple[schedule.Window, ...] = ()

    def bounds(self, now: float) -> tuple[int, int]:
        """The fewest and the most replicas at a time, in seconds since the epoch."""
        return schedule.bounds(self.windows, self.least, self.most, now)


def asked(service: JsonObject) -> dict[str, Asked]:
    """The pools of a service that follow load, by name; empty for most services.

    A stored spec of another form, from an older or looser schema, asks for nothing: its status says what is wrong.
    """
    try:
        return _asked(service.get("spec") or {})
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def _asked(spec: Mapping[str, Any]) -> dict[str, Asked]:
    scaling, pools = spec.get("scaling"), spec.get("pools") or ()
    if not scaling and not any(pool.get("scaling") for pool in pools):
        return {}
    found = {}
    after = ((scaling or {}).get("scaleToZero") or {}).get("after")
    everyone = ({"name": DEFAULT_POOL, "replicas": spec.get("replicas", 1)}, *pools)
    owns = [pool.get("scaling") or scaling or {} for pool in everyone]
    # They rest together: where one has a replica always, no other's requests would wake it.
    all_may = all(_bounds(own, zero=True) is not None and (own.get("minReplicas") or 1) == 1 for own in owns)
    idle_after = parse_duration(after) if after and all_may else None
    for pool, own in zip(everyone, owns, strict=True):
        bounds = _bounds(own, zero=idle_after is not None)
        if bounds is not None:
            least, most = bounds
            initial = min(max(int(pool.get("replicas", 1)), least), most)
            objectives = _objectives(pool.get("slo") or spec.get("slo") or {})
            text = own.get("scaleDownWindow")
            down_window = parse_duration(text) if text else None
            found[str(pool["name"])] = Asked(
                least, most, initial, objectives, idle_after, down_window, _windows(own.get("schedules") or ())
            )
    return found


def _windows(given: Iterable[Mapping[str, Any]]) -> tuple[schedule.Window, ...]:
    return tuple(
        schedule.Window(
            str(one["timezone"]),
            str(one["start"]),
            str(one["end"]),
            one.get("minReplicas"),
            one.get("maxReplicas"),
            tuple(one.get("days") or ()),
        )
        for one in given
    )


def longest_request(service: JsonObject) -> float:
    """Seconds that a request may take, and so the longest wait for a replica that drains."""
    try:
        text = ((service.get("spec") or {}).get("routing") or {}).get("maxRequestDuration")
        return parse_duration(text) if text else MAX_REQUEST_SECONDS
    except (AttributeError, TypeError, ValueError):
        return MAX_REQUEST_SECONDS


def _bounds(scaling: Mapping[str, Any], *, zero: bool) -> tuple[int, int] | None:
    least, most = 0 if zero else int(scaling.get("minReplicas") or 1), scaling.get("maxReplicas")
    if most is None or scaling.get("mode", ScalingMode.AUTOMATIC) != ScalingMode.AUTOMATIC:
        return None
    return (least, int(most)) if least < int(most) or scaling.get("schedules") else None


def _objectives(slo: Mapping[str, Any]) -> Objectives:
    """The inner line of TTFT where there is one, else the promise; of TPOT the promise, since the mean is planned.

    Routers count who kept the p90 of both: where there is none, nothing is promised that could be judged.
    """
    ttft, tpot = slo.get("ttft") or {}, slo.get("tpot") or {}
    text = tpot.get("p90") or tpot.get("p99")
    limit = parse_duration(text) if text else None
    promised = 0.9 if ttft.get("p90") or tpot.get("p90") else None
    for level, quantile in (("p99", 0.99), ("p90", 0.9)):
        if ttft.get(level):
            return Objectives(parse_duration(ttft[level]), limit, quantile, promised)
    return Objectives(None, limit, promised=promised)
