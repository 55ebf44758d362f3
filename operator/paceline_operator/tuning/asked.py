"""What a spec asks for of knobs that follow load, and how far each may go in replicas as they were started. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from paceline_autoscaler.knobs import Range
from paceline_autoscaler.schedule import Window
from paceline_crds.durations import parse_duration
from paceline_crds.names import DEFAULT_POOL
from paceline_crds.runtime_config import RuntimeParameters
from paceline_crds.tuning import FIELDS, Knob
from paceline_kube import JsonObject

Limits = Mapping[Knob, tuple[int, int]]
"""The fewest and the most of each knob."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A pool whose knobs follow load.

    Attributes:
        usual: how far each goes, where no window holds.
        windows: times of the week with other limits, the one that goes before others first.
        limit: seconds per token that are promised to a share `level` of the requests; None where nothing is.
        first_limit: seconds to the first token that are promised to as many.
    """

    usual: Limits
    limit: float | None
    level: float
    windows: tuple[tuple[Window, Limits], ...] = ()
    first_limit: float | None = None

    def limits(self, now: float) -> Limits:
        """How far each knob goes at a time, in seconds since the epoch."""
        held = next((limits for window, limits in self.windows if window.holds(now)), {})
        return {**self.usual, **held}

    @property
    def widest(self) -> Limits:
        """The fewest and the most that a knob ever has."""
        every = [self.usual, *(limits for _, limits in self.windows)]
        return {
            knob: (min(one[knob][0] for one in every if knob in one), max(one[knob][1] for one in every if knob in one))
            for knob in self.usual
        }


def asked(service: JsonObject) -> dict[str, Asked]:
    """The pools of a service whose knobs follow load, by name; empty for most services.

    A stored spec of another form, from an older or looser schema, asks for nothing: its status says what is wrong.
    """
    try:
        return _asked(service.get("spec") or {})
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def _asked(spec: Mapping[str, Any]) -> dict[str, Asked]:
    pools = spec.get("pools") or ()
    if not any((one.get("runtime") or {}).get("autoRanges") for one in (spec, *pools)):
        return {}
    found = {}
    for pool in ({"name": DEFAULT_POOL}, *pools):
        own, of_all = (((one.get("runtime") or {}).get("autoRanges") or {}) for one in (pool, spec))
        usual = {**_limits(of_all), **_limits(own)}
        if usual:
            times = own.get("schedules") or of_all.get("schedules") or ()
            windows = tuple((_window(one), _limits(one, usual)) for one in times)
            limit, level, first_limit = _promise(pool.get("slo") or spec.get("slo") or {})
            found[str(pool["name"])] = Asked(usual, limit, level, windows, first_limit)
    return found


def _limits(given: Mapping[str, Any], known: Collection[Knob] = tuple(Knob)) -> dict[Knob, tuple[int, int]]:
    return {
        knob: (int(given[knob]["min"]), int(given[knob]["max"])) for knob in Knob if knob in known and given.get(knob)
    }


def _window(given: Mapping[str, Any]) -> Window:
    zone, start, end = (str(given[name]) for name in ("timezone", "start", "end"))
    return Window(zone, start, end, days=tuple(given.get("days") or ()))


def _promise(slo: Mapping[str, Any]) -> tuple[float | None, float, float | None]:
    """Seconds per token, the share of requests that are promised them, and what they are promised for the first token;
    where only another share is promised that, of these.
    """
    tpot, ttft = slo.get("tpot") or {}, slo.get("ttft") or {}
    for name, level in (("p90", 0.9), ("p99", 0.99)):
        if tpot.get(name):
            first = ttft.get(name) or ttft.get("p90") or ttft.get("p99")
            return parse_duration(tpot[name]), level, parse_duration(first) if first else None
    return None, 0.9, None


def allowed(service: JsonObject) -> dict[str, dict[str, tuple[int, int]]]:
    """By pool and parameter, what a value that was changed in a running replica may be, at some time of the week,
    without being drift.
    """
    return {name: by_parameter(one.widest) for name, one in asked(service).items()}


def by_parameter(limits: Limits) -> dict[str, tuple[int, int]]:
    """The same by the parameters' names in the spec."""
    return {str(knob): of for knob, of in limits.items()}


def ranges_of(limits: Limits, parameters: RuntimeParameters) -> tuple[dict[Knob, Range], str]:
    """How far each knob may go in replicas that were started with some parameters, and in words what may not at all.

    The most is never more than that, since memory was taken for no more; a piece of a prompt is no smaller than the
    least one; and the budget of a step is no smaller than anything in it that stays as it is.
    """
    started = {knob: int(getattr(parameters, field)) for knob, field in FIELDS.items()}
    floors = {Knob.PREFILL_CHUNK_TOKENS: parameters.prefill_min_chunk_tokens}
    inside = (Knob.MAX_NUM_SEQS, Knob.PREFILL_CHUNK_TOKENS)
    floors[Knob.MAX_BATCHED_TOKENS] = max(limits[knob][0] if knob in limits else started[knob] for knob in inside)
    found, words = {}, []
    for knob, (fewest, most) in limits.items():
        least, top = max(fewest, floors.get(knob, 1)), min(most, started[knob])
        if least <= top:
            found[knob] = Range(least, top, started[knob])
        else:
            words.append(
                f"{knob} stays at {started[knob]}, since it can go from {floors.get(knob, 1)} to {started[knob]} here "
                f"and autoRanges has {fewest} to {most}"
            )
    return found, "; ".join(words)
