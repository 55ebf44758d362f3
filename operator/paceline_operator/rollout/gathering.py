"""From routers' pages to the evidence of a step: what each router counted since the last look, both versions side by
side, in windows. Pure.

A router's page says what happened since a moment that the asker names, in whole slots of ten seconds. Asked again about
the same moment it says more, and the difference is what came since. The moment is moved on every few minutes, since
routers fold what is old; that loses the rest of one slot.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline_crds.sketch import Sketch
from paceline_shadow_traffic.evidence import Seen, Window
from paceline_shadow_traffic.pages import PageError, window
from paceline_shadow_traffic.share import NOTHING

ANCHOR_SECONDS = 240.0
"""For which one moment is asked about; routers keep single slots for ten minutes."""

LATE_SECONDS = 25.0
"""After the moment that is asked about, up to which a router's first slot begins: they are ten seconds long. A page
that begins later is of a router that knew nothing then, as one that began anew."""

MOST_WINDOWS = 240
"""Of a place; more are joined two by two, so that the evidence of days is as many numbers as that of an hour."""

MINOR_SHARE = 0.05
"""Of a step's requests, which the smallest places together have less than: those are not waited for, since it would
take days. What is worse there for sure counts all the same."""

ANY_POOL = "any"
"""Stands for all pools where the revisions do not have the same ones."""

Row = Mapping[str, Any]
Page = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Heard:
    """What routers said of one step of one service.

    Attributes:
        since: begin of the evidence, seconds since the epoch.
        anchor: the moment that is asked about.
        said: the last page about it, by router; one that has not said anything about it is absent.
        windows: by place.
        trouble: why the last look has no numbers; empty where it has.
    """

    since: float
    anchor: float
    said: Mapping[str, Page] = field(default_factory=dict)
    windows: Mapping[str, tuple[Window, ...]] = field(default_factory=dict)
    trouble: str = ""


def hear(heard: Heard, pages: Mapping[str, Page | None], service: str, base: str, candidate: str, now: float) -> Heard:
    """With another look in it.

    Args:
        pages: of every ready router, by its name, asked about `heard.anchor`; None of one that did not answer.
        service: `namespace/name`.
        base, candidate: revisions.
    """
    trouble, found = "", dict[str, Window]()
    grown: list[Page | None] = []
    said = dict(heard.said)
    for name, page in pages.items():
        new = None if page is None else _grown(page, said.get(name), service, heard.anchor)
        grown.append(new)
        if page is not None:
            said[name] = page
    silent = [name for name, new in zip(pages, grown, strict=True) if new is None]
    try:
        found = window(grown, service, base, candidate) if pages else {}
    except PageError as error:
        trouble = str(error)
    if not pages:
        trouble = "no router is ready"
    elif silent and not trouble:
        trouble = f"no numbers of {len(silent)} of {len(pages)} routers, among them {min(silent)}"
    windows = dict(heard.windows)
    for place in windows.keys() - found.keys() if trouble else ():
        # A place of which nobody spoke had no request; one of which somebody could not speak is not known.
        found[place] = Window(windows[place][-1].end, now, Seen(), Seen())
    for place, one in found.items():
        windows[place] = bounded((*windows.get(place, ()), one))
    if not 0.0 <= now - heard.anchor < ANCHOR_SECONDS:
        # Of a moment that is still to come, as after the clock went back, nobody could say anything for long.
        return replace(heard, anchor=now, said={}, windows=windows, trouble=trouble)
    return replace(heard, said={name: said[name] for name in pages if name in said}, windows=windows, trouble=trouble)


def _grown(page: Page, before: Page | None, service: str, anchor: float) -> Page | None:
    """What a router counted since its page before; None where it cannot be told, as after its restart."""
    try:
        part = page["services"].get(service)
        if part is None:
            return page
        if before is None:
            return page if float(part["from"]) <= anchor + LATE_SECONDS else None
        old = before["services"].get(service, {"rows": []})
        if float(old.get("from", math.inf)) <= anchor + LATE_SECONDS < float(part["from"]):
            # It began anew, and may have counted more since than it had before.
            return None
        rows = _rows(part["rows"])
        earlier = _rows(old["rows"])
        if any(_shrank(rows.get(key), one) for key, one in earlier.items()):
            return None
        left = [_less(row, earlier.get(key)) for key, row in rows.items()]
        return {**page, "services": {service: {"from": before["to"], "rows": left}}}
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _rows(rows: Sequence[Row]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Rows by place and revision, those of several processes of a router together."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        key = (str(row["pool"]), str(row["revision"]), str(row["shape"]))
        into = found.setdefault(key, {**row, "outcomes": {}, "met": 0, "missed": 0, "ttft": Sketch(), "tpot": Sketch()})
        for outcome, count in row["outcomes"].items():
            into["outcomes"][outcome] = into["outcomes"].get(outcome, 0) + count
        for name in ("met", "missed"):
            into[name] += row[name]
        for name in ("ttft", "tpot"):
            into[name] = into[name].merged(Sketch.decode(row[name]))
    return found


def _shrank(now: Mapping[str, Any] | None, before: Mapping[str, Any]) -> bool:
    return now is None or any(now["outcomes"].get(name, 0) < count for name, count in before["outcomes"].items())


def _less(row: dict[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    old: Mapping[str, Any] = before or {
        "outcomes": {}, "met": 0, "missed": 0, "ttft": Sketch(), "tpot": Sketch()
    }  # fmt: skip
    outcomes = {name: count - old["outcomes"].get(name, 0) for name, count in row["outcomes"].items()}
    return {
        **row,
        "outcomes": {name: count for name, count in outcomes.items() if count > 0},
        **{name: max(0, row[name] - old[name]) for name in ("met", "missed")},
        **{name: _minus(row[name], old[name]).encode() for name in ("ttft", "tpot")},
    }


def _minus(sketch: Sketch, other: Sketch) -> Sketch:
    return Sketch({bucket: count - other.counts.get(bucket, 0) for bucket, count in sketch.counts.items()})


def bounded(windows: tuple[Window, ...]) -> tuple[Window, ...]:
    """The same evidence in at most `MOST_WINDOWS`: where there are more, they are joined two by two."""
    return windows if len(windows) <= MOST_WINDOWS else halved(windows)


def halved(windows: tuple[Window, ...]) -> tuple[Window, ...]:
    """The same evidence in half as many windows, each of them two that lack the same: what was not measured is no
    larger a part than before, and takes nothing along.
    """
    alike: dict[Hashable, list[Window]] = {}
    for one in windows:
        alike.setdefault((_measured(one.base), _measured(one.candidate)), []).append(one)
    found: list[Window] = []
    for kind in alike.values():
        found += [_joined(first, second) for first, second in zip(kind[::2], kind[1::2], strict=False)]
        found += kind[-1:] if len(kind) % 2 else []
    return tuple(sorted(found, key=lambda one: one.start))


def _measured(seen: Seen) -> Hashable:
    return seen.ttft is None, seen.tpot is None, seen.throughput is None, frozenset(seen.shares)


def _joined(first: Window, second: Window) -> Window:
    return Window(first.start, second.end, _both(first.base, second.base), _both(first.candidate, second.candidate))


def _both(one: Seen, other: Seen) -> Seen:
    """What is missing in one of the two is missing in both together."""
    speeds = (one.throughput, other.throughput)
    return Seen(
        throughput=None if speeds[0] is None or speeds[1] is None else (speeds[0] + speeds[1]) / 2.0,
        ttft=None if one.ttft is None or other.ttft is None else one.ttft.merged(other.ttft),
        tpot=None if one.tpot is None or other.tpot is None else one.tpot.merged(other.tpot),
        shares={
            signal: share + other.shares.get(signal, NOTHING)
            for signal, share in one.shares.items()
            if signal in other.shares
        },
    )


def major(windows: Mapping[str, Sequence[Window]]) -> tuple[dict[str, Sequence[Window]], tuple[str, ...]]:
    """The places that a verdict waits for, and the smallest ones, which together have few of the requests."""
    counts = {place: sum(_requests(one) for one in found) for place, found in windows.items()}
    left, minor = MINOR_SHARE * sum(counts.values()), set[str]()
    for place in sorted(counts, key=lambda place: (counts[place], place)):
        left -= counts[place]
        if left <= 0.0:
            break
        minor.add(place)
    return {place: found for place, found in windows.items() if place not in minor}, tuple(sorted(minor))


def over_pools(page: Page | None, service: str) -> Page | None:
    """A router's page with the rows of all pools as those of one: a request that one revision serves in a pool that the
    other does not have is held against that one's in whichever pool it goes to.
    """
    try:
        if page is None or service not in page["services"]:
            return page
        part = page["services"][service]
        rows = [{**row, "pool": ANY_POOL} for row in part["rows"]]
        return {**page, "services": {**page["services"], service: {**part, "rows": rows}}}
    except (KeyError, TypeError):
        return None


def _requests(one: Window) -> float:
    """Of both versions; most of all outcomes is what any signal counts."""
    sides = (one.base.shares, one.candidate.shares)
    return sum(max((share.of for share in shares.values()), default=0.0) for shares in sides)
