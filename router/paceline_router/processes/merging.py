"""What several processes say of themselves, as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from paceline_crds import metrics as catalogue
from paceline_router.shape.split_condition import condition_of

_LEAST = frozenset([catalogue.ROUTER_TABLE_SYNCED.name, catalogue.ROUTER_AVAILABLE.name])
_SAME = frozenset([catalogue.ROUTER_REPLICAS.name, catalogue.ROUTER_SERVICES.name, catalogue.ROUTER_BUILD.name])
"""Each process has the same table, and is the same."""


_EXEMPLAR: Final = re.compile(r'(.*) # (\{request_id="(?:[^"\\]|\\.)*"\} \S+)')
"""A series and its exemplar. Inside a label's value a quote has a backslash before it, so none can pass for one."""

_COUNTED: Final = "_total"


@dataclass
class Exposition:
    """A text of `/metrics`, taken apart. Order is kept; a family's name is that of its metric."""

    helps: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    series: dict[str, dict[str, float]] = field(default_factory=dict)
    """Values by family, then by name with labels."""
    exemplars: dict[str, str] = field(default_factory=dict)
    """By name with labels, as they are written."""

    @classmethod
    def parse(cls, text: str) -> Exposition:
        """Take a text apart as `report.text.exposition` writes it: each family's series follow its comments."""
        found = cls()
        family = about = ""
        for line in text.splitlines():
            if line.startswith("# HELP "):
                about = line.split(" ", 3)[3]
            elif line.startswith("# TYPE "):
                _, _, family, kind = line.split(" ", 3)
                if kind == "counter" and not family.endswith(_COUNTED):
                    family += _COUNTED
                found.kinds[family] = kind
                if about:
                    found.helps[family] = about
                about = ""
            elif line and not line.startswith("#"):
                if " # {" in line and (both := _EXEMPLAR.fullmatch(line)):
                    line, exemplar = both.groups()
                    found.exemplars[line.rpartition(" ")[0]] = exemplar
                series, _, value = line.rpartition(" ")
                found.series.setdefault(family, {})[series] = float(value)
        return found

    def text(self, openmetrics: bool = False) -> str:
        """The text again, as 0.0.4 or as OpenMetrics, which has the exemplars."""
        lines: list[str] = []
        for family, series in self.series.items():
            kind, about = self.kinds.get(family, ""), self.helps.get(family)
            name = family.removesuffix(_COUNTED) if openmetrics and kind == "counter" else family
            lines += [] if about is None else [f"# HELP {name} {about}"]
            lines += [f"# TYPE {name} {kind}"] if kind else []
            for one, value in series.items():
                line = f"{one} {int(value) if value.is_integer() else value!r}"
                exemplar = self.exemplars.get(one) if openmetrics else None
                lines.append(line if exemplar is None else f"{line} # {exemplar}")
        return "\n".join([*lines, *(["# EOF"] if openmetrics else [])]) + "\n"


def _together(family: str, kind: str, earlier: float, value: float) -> float:
    if kind == "gauge":
        if family in _LEAST:
            return min(earlier, value)
        if family in _SAME or family.endswith(("_seconds", "_ratio")):
            return max(earlier, value)
    return earlier + value


def merge_expositions(texts: Iterable[Exposition]) -> Exposition:
    """Counters, histograms and amounts are added; of ages, times and ratios the largest counts, of exemplars any."""
    merged = Exposition()
    for one in texts:
        merged.exemplars.update(one.exemplars)
        for family, series in one.series.items():
            if family in one.helps:
                merged.helps.setdefault(family, one.helps[family])
            kind = merged.kinds.setdefault(family, one.kinds.get(family, ""))
            into = merged.series.setdefault(family, {})
            for name, value in series.items():
                into[name] = _together(family, kind, into[name], value) if name in into else value
    return merged


def counted(exposition: Exposition) -> Exposition:
    """What remains of a process that has ended: what it counted, not what it measured."""
    kept = {
        family: series
        for family, series in exposition.series.items()
        if exposition.kinds.get(family) in ("counter", "histogram")
    }
    return Exposition(dict(exposition.helps), dict(exposition.kinds), kept)


def merge_routes(pages: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The body of `/v1/paceline/routes` for all: what every process follows, not what one of them does already.

    A service that some process does not know yet is left out, and its generation is the least. A replica takes
    requests as long as some process sends it any, and keys are unreadable when no process can check them; what is
    wrong in any of them is among the problems.
    """
    ages = [page["ageSeconds"] for page in pages]
    services = {
        key: _merge_service([page["services"][key] for page in pages])
        for key in pages[0]["services"]
        if all(key in page["services"] for page in pages)
    }
    return {
        "synced": all(page["synced"] for page in pages),
        "ageSeconds": None if None in ages else max(ages),
        "error": next((page["error"] for page in pages if page["error"]), None),
        "keys_unreadable": {
            key: why
            for key, why in pages[0]["keys_unreadable"].items()
            if all(key in page["keys_unreadable"] for page in pages)
        },
        "services": services,
    }


def _merge_service(pages: list[Mapping[str, Any]]) -> dict[str, Any]:
    generations = [page["generation"] for page in pages]
    replicas: dict[str, list[Mapping[str, Any]]] = {}
    for page in pages:
        for replica in page["replicas"]:
            replicas.setdefault(replica["uid"], []).append(replica)
    return {
        **pages[0],
        "generation": None if None in generations else min(generations),
        "problems": list(dict.fromkeys(problem for page in pages for problem in page["problems"])),
        "replicas": [_merge_replica(seen) for seen in replicas.values()],
    }


def _merge_replica(seen: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        **seen[0],
        "ready": any(replica["ready"] for replica in seen),
        "draining": all(replica["draining"] for replica in seen),
        "inFlight": sum(replica["inFlight"] for replica in seen),
        "loadKnown": all(replica["loadKnown"] for replica in seen),
        "ejected": any(replica["ejected"] for replica in seen),
    }


def merge_samples(pages: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The body of `/v1/paceline/samples` for all. Rows of one pool, revision and shape stay several: they are made to
    be added up.
    """
    services: dict[str, Any] = {}
    for page in pages:
        for key, service in page["services"].items():
            known = services.setdefault(key, {**service, "rows": []})
            known["from"] = max(known["from"], service["from"])
            known["rows"] = [*known["rows"], *service["rows"]]
    return {**pages[0], "to": min(page["to"] for page in pages), "services": services}


def merge_splits(pages: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The body of `/v1/paceline/split` for all. Each process judges by its own requests; of each pool the advice of the
    one that saw most is taken, since advice cannot be added up.
    """
    services: dict[str, dict[str, Any]] = {}
    for page in pages:
        for key, pools in page["services"].items():
            known = services.setdefault(key, {})
            for pool, advice in pools.items():
                if pool not in known or advice["requests"] > known[pool]["requests"]:
                    known[pool] = advice
    return {"services": services, "conditions": {key: condition_of(pools) for key, pools in services.items()}}


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for one service."""

    service: str
    held: int
    oldest_wait_ms: int
    arrivals: int


def merge_demand(heard: Iterable[Mapping[str, Waiting]]) -> list[Waiting]:
    """What waits in all processes, given what each has said last."""
    merged: dict[str, Waiting] = {}
    for said in heard:
        for key, one in said.items():
            other = merged.get(key)
            merged[key] = (
                one
                if other is None
                else Waiting(
                    key,
                    one.held + other.held,
                    max(one.oldest_wait_ms, other.oldest_wait_ms),
                    one.arrivals + other.arrivals,
                )
            )
    return list(merged.values())
