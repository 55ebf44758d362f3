"""The baseline of a revision: what the routers measured of its requests while it served. Pure.

Routers remember four hours, by revision, so that nothing has to be remembered here: a baseline is what one question
tells. It is written soon after a revision has begun to serve, where a figure has moved, at most once an hour, and once
more after it has served; so a fleet whose traffic stays as it is writes one a day for each service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from paceline_crds.durations import parse_duration
from paceline_crds.revision import Baseline, Percentiles
from paceline_crds.sketch import SCALE, Sketch

from .observed import Observed, Ownership

MEMORY_SECONDS = 4 * 3600.0
"""For which routers know what happened."""

FIRST_SECONDS = 300.0
"""After which a revision that serves is asked about for the first time."""

AGAIN_SECONDS = 3600.0
"""Between two questions about one."""

STALE_SECONDS = 24 * 3600.0
"""After which a baseline is written anew though nothing in it has moved."""

ENOUGH_REQUESTS = 200
"""A stretch with fewer does not take the place of one with more: a night says little about a day."""

MOVED = 0.1
"""Less is not worth a write: a percentile is only known to 2.5 percent."""

FAILED = ("5xx", "broken_stream")


class OddPage(ValueError):
    """A router's page is of another form than the contract's."""


@dataclass(slots=True)
class _Sum:
    outcomes: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    output_tokens: int = 0
    ttft: Sketch = field(default_factory=Sketch)
    tpot: Sketch = field(default_factory=Sketch)


def due(observed: Observed, asked: Mapping[str, float], now: float) -> dict[str, float]:
    """The revisions to ask about, and since when each of them served as far as routers may know (Unix seconds).

    Args:
        asked: by name of a revision, when it was asked about last, as far as known.
        now: Unix seconds.
    """
    traffic = observed.traffic
    if traffic is None:
        return {}
    serving = {entry.revision for entry in traffic.entries if entry.weight}
    found = {}
    for view in observed.revisions:
        if view.owner is not Ownership.OURS or view.deleting:
            continue
        known = [_seconds(baseline.until) for baseline in view.baselines.values()]
        last = max([*known, asked.get(view.name, 0.0)])
        begun = view.traffic.moved_at if view.traffic is not None else _seconds(view.created)
        if view.name in serving:
            wanted = now - max(last, begun) >= (AGAIN_SECONDS if last else FIRST_SECONDS)
        else:
            # It has left: once more, while routers remember it.
            wanted = view.traffic is not None and last < traffic.moved_at and now - traffic.moved_at < MEMORY_SECONDS
        if wanted:
            found[view.name] = max(begun, now - MEMORY_SECONDS)
    return found


def measured(pages: Sequence[Mapping[str, Any]], service: str, revision: str) -> dict[str, Baseline]:
    """What happened to the requests of a revision, by pool; pools without any are absent.

    Args:
        pages: of every ready router, asked at one time with the same `since`.
        service: its key, `namespace/name`.

    Raises:
        OddPage: a page is of another form, or its sketches are of another scale.
    """
    sums: dict[str, _Sum] = {}
    begins = []
    try:
        if any(page["scale"] != SCALE for page in pages):
            raise OddPage(f"the sketches are not of the scale {SCALE}: bring routers and operator to one release")
        for page in pages:
            part = page["services"].get(service)
            if part is None:
                continue
            begins.append(float(part["from"]))
            for row in part["rows"]:
                if row["revision"] == revision:
                    _add(sums.setdefault(str(row["pool"]), _Sum()), row)
        end = max((float(page["to"]) for page in pages), default=0.0)
        return {pool: _baseline(one, min(begins), end) for pool, one in sums.items() if one.outcomes.total()}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, OddPage):
            raise
        raise OddPage(f"a router's samples are of another form: {error!r}") from None


def newer(old: Mapping[str, Baseline], found: Mapping[str, Baseline]) -> dict[str, Baseline] | None:
    """The baselines to keep, by pool; None where those that are kept say it already."""
    taken = {pool: one for pool, one in found.items() if pool not in old or _tells_more(old[pool], one)}
    return {**old, **taken} if taken else None


def _tells_more(old: Baseline, new: Baseline) -> bool:
    if new.requests < min(ENOUGH_REQUESTS, old.requests):
        return False
    stale = _seconds(new.until) - _seconds(old.until) >= STALE_SECONDS
    grown = old.requests < ENOUGH_REQUESTS and new.requests > old.requests
    return stale or grown or any(_moved(*pair) for pair in zip(_figures(old), _figures(new), strict=True))


def _figures(one: Baseline) -> list[float | None]:
    times = [one.ttft, one.tpot]
    found = [None if p is None else parse_duration(text) for p in times for text in _texts(p)]
    return [*found, 1.0 + one.failed / one.requests]


def _texts(percentiles: Percentiles | None) -> Iterable[str]:
    return ("", "", "") if percentiles is None else (percentiles.p50, percentiles.p90, percentiles.p99)


def _moved(old: float | None, new: float | None) -> bool:
    if old is None or new is None:
        return old is not new
    return abs(new - old) > MOVED * old


def _add(one: _Sum, row: Mapping[str, Any]) -> None:
    one.outcomes.update({str(outcome): int(count) for outcome, count in row["outcomes"].items()})
    one.prompt_tokens += int(row["promptTokens"])
    one.output_tokens += int(row["outputTokens"])
    one.ttft.add(Sketch.decode(row["ttft"]).counts.items())
    one.tpot.add(Sketch.decode(row["tpot"]).counts.items())


def _baseline(one: _Sum, begin: float, end: float) -> Baseline:
    return Baseline(
        since=_stamp(begin),
        until=_stamp(end),
        requests=one.outcomes.total(),
        failed=sum(one.outcomes[outcome] for outcome in FAILED),
        prompt_tokens=one.prompt_tokens,
        output_tokens=one.output_tokens,
        ttft=_percentiles(one.ttft),
        tpot=_percentiles(one.tpot),
    )


def _percentiles(sketch: Sketch) -> Percentiles | None:
    p50, p90, p99 = (sketch.quantile(share) for share in (0.5, 0.9, 0.99))
    if p50 is None or p90 is None or p99 is None:
        return None
    return Percentiles(p50=duration_of(p50), p90=duration_of(p90), p99=duration_of(p99))


def duration_of(seconds: float) -> str:
    """A Go duration of three digits: `9.42ms`, `812ms`, `1.23s`, `125s`."""
    milliseconds = float(f"{1000 * seconds:.3g}")
    return f"{milliseconds:g}ms" if milliseconds < 1000 else f"{float(f'{seconds:.3g}'):g}s"


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(stamp: str) -> float:
    """Unix seconds of what the API server or `_stamp` wrote; 0 where it is something else."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0
