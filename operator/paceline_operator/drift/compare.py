"""What of one service is not as its revision has it. Pure: from objects and reports to a list of items."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_crds.names import (
    CONFIG_FILE_NAME,
    CONTAINER_RUNTIME,
    ENV_PREFIX,
    LABEL_POOL_HASH,
)
from paceline_crds.quantities import parse_size
from paceline_crds.revision import RevisionPool
from paceline_crds.runtime_config import Origin
from paceline_crds.tuning import TUNED
from paceline_kube import JsonObject
from paceline_kube.pods import is_ready
from paceline_operator.actions import child_name
from paceline_operator.template import with_hash

from .contents import config_maps_of
from .fields import ABSENT, Difference, differences, shown

OWN_FINDINGS = frozenset({Origin.MODEL.value, Origin.LEDGER.value, "measured"})
"""Origins of values that a replica found out itself, where nobody had chosen one."""

SIZES = frozenset({"kvCacheMemory", "kvHostMemory", "kvDiskMemory"})


Ranges = Mapping[str, Mapping[str, tuple[int, int]]]
"""By pool and parameter, the fewest and the most."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica says of itself.

    Attributes:
        config: the body of `GET /v1/paceline/config`; None where it could not be had, then `error` says why.
        at: when it was heard, seconds of a monotonic clock.
    """

    config: Mapping[str, Any] | None
    error: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that is not as recorded.

    Attributes:
        subject: name of a pod, or `Kind/name` of another object.
        replace: what puts it right is another pod in its place.
    """

    subject: str
    field: str
    desired: str
    actual: str
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Drift:
    """All of one service.

    Attributes:
        unknown: replicas that do not report, by name, with the reason.
        checked: replicas that did.
        running: replicas that there are, ready or not.
        tuned: names of replicas that run with other values than they were started with.
    """

    items: tuple[Item, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    checked: int = 0
    running: int = 0
    tuned: frozenset[str] = frozenset()

    def of(self, subject: str) -> tuple[Item, ...]:
        """The items of one pod or object."""
        return tuple(item for item in self.items if item.subject == subject)


@dataclass(frozen=True, slots=True)
class World:
    """The objects of a service that are ours.

    Attributes:
        service: its name.
        pools: by pool hash, of every kept revision that this release can read.
        wanted: pool hashes that may have pods now: asked for, serving, or still on their way out.
        pods: that neither end nor have ended.
        reports: by pod uid; a pod that is not there has not been asked yet.
        contents: when the data of a ConfigMap of the user's was last written, by its name, as far as known.
        ranges: by pool and parameter, the fewest and the most that a value may be changed to while a replica runs.
    """

    service: str
    pools: Mapping[str, RevisionPool]
    wanted: frozenset[str]
    deployments: tuple[JsonObject, ...] = ()
    config_maps: tuple[JsonObject, ...] = ()
    pods: tuple[JsonObject, ...] = ()
    reports: Mapping[str, Report] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=dict)


def compare(world: World) -> Drift:
    """Every difference, in order of objects and fields."""
    items = [
        *_of_deployments(world),
        *_of_config_maps(world),
        *_of_pods(world),
    ]
    unknown: dict[str, str] = {}
    checked = 0
    digests = _digests(world)
    tuned = set()
    for pod in world.pods:
        pool = world.pools.get(_hash(pod))
        if pool is None or not is_ready(pod):
            continue
        report = world.reports.get(pod["metadata"]["uid"])
        name = pod["metadata"]["name"]
        if report is None or report.config is None:
            unknown[name] = report.error if report is not None else "it has not been asked yet"
            continue
        checked += 1
        items += _of_report(name, pool, report.config, digests.get(pool.hash), world.ranges.get(pool.name, {}))
        if any(_is_tuned(entry) for entry in _parameters(report.config).values()):
            tuned.add(name)
    return Drift(tuple(items), unknown, checked, len(world.pods), frozenset(tuned))


def _of_deployments(world: World) -> Iterator[Item]:
    for obj in world.deployments:
        pool_hash = str(((obj["spec"].get("selector") or {}).get("matchLabels") or {}).get(LABEL_POOL_HASH) or "")
        pool = world.pools.get(pool_hash)
        if pool is None:
            continue
        name = child_name(world.service, pool)
        wanted = {"spec": {"template": with_hash(pool.pod_template, pool.hash, name)}}
        yield from _items(f"Deployment/{obj['metadata']['name']}", differences(wanted, obj))


def _of_config_maps(world: World) -> Iterator[Item]:
    for obj in world.config_maps:
        pool = world.pools.get(_hash(obj))
        if pool is None:
            continue
        subject = f"ConfigMap/{obj['metadata']['name']}"
        text = (obj.get("data") or {}).get(CONFIG_FILE_NAME)
        try:
            actual = json.loads(text) if text is not None else None
        except ValueError:
            actual = text
        if not isinstance(actual, dict):
            yield Item(subject, CONFIG_FILE_NAME, "the pool's configuration", shown(actual))
            continue
        wanted = pool.config.model_dump(mode="json")
        yield from _items(subject, differences(wanted, actual))


def _of_pods(world: World) -> Iterator[Item]:
    recorded: dict[str, Mapping[str, Any]] = {}
    for pod in world.pods:
        name, pool_hash = pod["metadata"]["name"], _hash(pod)
        if pool_hash not in world.wanted:
            wanted = ", ".join(sorted(world.wanted)) or "none"
            yield Item(name, LABEL_POOL_HASH, wanted, pool_hash or ABSENT, replace=True)
            continue
        pool = world.pools.get(pool_hash)
        if pool is None:
            continue
        stamped = recorded.get(pool_hash)
        if stamped is None:
            stamped = recorded[pool_hash] = _stamped(world, pool)
        actual_container = _runtime(pod["spec"].get("containers") or ())
        # What admission adds to a pod is its affair, unless it is a setting of ours.
        found = differences(stamped, actual_container, "", lambda _, entry: entry.startswith(ENV_PREFIX))
        yield from _items(name, found, replace=True)
        yield from _of_contents(world, pod, pool)


def _of_contents(world: World, pod: JsonObject, pool: RevisionPool) -> Iterator[Item]:
    """ConfigMaps whose data was written after the container that took its environment from them had started."""
    if not world.contents:
        return
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    states = [status.get("state") or {} for status in statuses if status.get("name") == CONTAINER_RUNTIME]
    started = next((str(state["running"].get("startedAt") or "") for state in states if "running" in state), "")
    for name in sorted(config_maps_of(pool.pod_template)):
        at = world.contents.get(name, "")
        if started and at > started:
            yield Item(
                pod["metadata"]["name"],
                f"env from ConfigMap/{name}",
                f"as written {at}",
                f"as of {started}, when it started",
                replace=True,
            )


def _stamped(world: World, pool: RevisionPool) -> Mapping[str, Any]:
    """What the runtime's container of a pod is made with."""
    template = with_hash(pool.pod_template, pool.hash, child_name(world.service, pool))
    container = _runtime(template["spec"]["containers"])
    stamped = {part: container.get(part) for part in ("image", "args", "command", "env")}
    return {part: value for part, value in stamped.items() if value is not None}


def _parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    reported = config.get("parameters")
    return reported if isinstance(reported, Mapping) else {}


def _is_tuned(entry: Any) -> bool:
    """Whether a value was changed while the replica ran; what it was started with is then beside it."""
    return isinstance(entry, Mapping) and entry.get("origin") == TUNED and isinstance(entry.get("set"), Mapping)


def _of_report(
    name: str,
    pool: RevisionPool,
    config: Mapping[str, Any],
    digest: str | None,
    ranges: Mapping[str, tuple[int, int]],
) -> Iterator[Item]:
    model = config.get("model")
    wanted = {"source": pool.config.model.source, "servedName": pool.config.model.served_name}
    yield from _items(name, differences({"model": wanted}, {"model": model}), replace=True)
    actual = config.get("model_digest")
    if digest is not None and actual != digest:
        yield Item(name, "model_digest", digest, shown(actual), replace=True)
    parameters = _parameters(config)
    for field_name, value in pool.config.parameters.model_dump(mode="json").items():
        entry = parameters.get(field_name)
        if not isinstance(entry, Mapping):
            continue  # an older runtime does not know the parameter; the image is compared by itself
        if _is_tuned(entry):
            yield from _of_tuned(name, field_name, entry.get("value"), value, ranges.get(field_name))
            entry = entry["set"]
        if _alike(field_name, value, entry.get("value")):
            continue
        origin = str(entry.get("origin") or "")
        chosen = pool.config.origins.get(field_name, Origin.DEFAULT)
        if origin in OWN_FINDINGS and chosen in (Origin.DEFAULT, Origin.LEDGER, Origin.MODEL):
            continue  # nobody chose it, and the replica found out what works
        actual_text = shown(entry.get("value"))
        yield Item(name, f"runtime.{field_name}", shown(value), f"{actual_text} (from {origin or 'unknown'})", True)


def _of_tuned(
    name: str, field_name: str, actual: Any, recorded: Any, allowed: tuple[int, int] | None
) -> Iterator[Item]:
    """A value that was changed while the replica ran. No other pod is needed to put that right: see `tuning`."""
    if allowed is not None and isinstance(actual, int) and allowed[0] <= actual <= allowed[1]:
        return
    wanted = shown(recorded) if allowed is None else f"{allowed[0]} to {allowed[1]}, by autoRanges"
    yield Item(name, f"runtime.{field_name}", wanted, f"{shown(actual)} (changed while it runs)")


def _alike(field_name: str, desired: Any, actual: Any) -> bool:
    if desired == actual:
        return True
    if field_name in SIZES:
        try:
            return parse_size(str(desired)) == parse_size(str(actual))
        except ValueError:
            return False
    return False


def _digests(world: World) -> dict[str, str]:
    """By pool hash, the digest of the model that most of its replicas report; absent while they are evenly split."""
    counts: dict[str, Counter[str]] = {}
    for pod in world.pods:
        report = world.reports.get(pod["metadata"]["uid"])
        digest = report.config.get("model_digest") if report is not None and report.config is not None else None
        if isinstance(digest, str) and digest:
            counts.setdefault(_hash(pod), Counter())[digest] += 1
    found: dict[str, str] = {}
    for pool_hash, counter in counts.items():
        (first, most), *rest = counter.most_common(2)
        if not rest or most > rest[0][1]:
            found[pool_hash] = first
        else:
            # Two halves that disagree: neither can be called right, so both are told.
            found[pool_hash] = f"one digest on all replicas (found {first} and {rest[0][0]})"
    return found


def _items(subject: str, found: Iterable[Difference], replace: bool = False) -> Iterator[Item]:
    for difference in found:
        yield Item(subject, difference.field, difference.desired, difference.actual, replace)


def _runtime(containers: Iterable[Any]) -> Mapping[str, Any]:
    return next((c for c in containers if c.get("name") == CONTAINER_RUNTIME), {})


def _hash(obj: JsonObject) -> str:
    return str((obj["metadata"].get("labels") or {}).get(LABEL_POOL_HASH) or "")
