"""Whether services keep what they promise, as their routers saw it, and the promises themselves as metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from paceline_crds.conditions import ConditionStatus, Reason
from paceline_crds.routing import SLOSpec
from paceline_kube import JsonObject, Key, key_of
from paceline_observability.slo import Judgement, PageError, Promise, judge, promises, window

from .rounds import come_round
from .verdict import Verdict

SAMPLES_PATH = "/v1/paceline/samples"
INTERVAL_SECONDS = 60.0
WINDOW_SECONDS = 600.0
"""Long enough for a thin service to have been asked something, short enough to be about now."""

REFRESH_SECONDS = 600.0
"""While a verdict stays, its numbers are told anew this often: each telling is a write."""

Pages = Callable[[str], Awaitable[tuple[int, list[Mapping[str, Any]]]]]

_STATUS: Final = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}


def objectives_of(service: JsonObject) -> tuple[SLOSpec | None, dict[str, SLOSpec]]:
    """What a service promises, and what pools promise that have their own. What cannot be read promises nothing."""
    spec = service.get("spec")
    if not isinstance(spec, dict):
        return None, {}
    listed = spec.get("pools")
    own = [pool for pool in listed if isinstance(pool, dict)] if isinstance(listed, list) else []
    pools = {str(pool.get("name")): _read(pool["slo"]) for pool in own if pool.get("slo")}
    return _read(spec.get("slo")), {name: slo for name, slo in pools.items() if slo is not None}


def _read(stored: Any) -> SLOSpec | None:
    try:
        slo = SLOSpec.model_validate(stored) if stored else None
        return slo if slo is not None and promises(slo) else None
    except (ValidationError, ValueError):
        return None


def has_objectives(service: JsonObject) -> bool:
    """Whether anything is promised."""
    slo, pools = objectives_of(service)
    return slo is not None or bool(pools)


def thresholds(services: Iterable[JsonObject]) -> Iterator[tuple[Key, Promise]]:
    """The promises of services, for alerts to compare with. Those of single pools are not among them."""
    for service in services:
        slo, _ = objectives_of(service)
        for promise in promises(slo) if slo is not None else ():
            yield key_of(service), promise


def verdict_of(found: Judgement) -> Verdict:
    """As a condition."""
    return Verdict(_STATUS[found.kept], Reason(found.word.value), found.message)


class ObjectiveKeeper:
    """Asks the routers every minute, and remembers what they saw of services that promise something."""

    def __init__(
        self,
        *,
        routers: Pages,
        services: Callable[[], Iterable[JsonObject]],
        changed: Callable[[Key], None],
        clock: Callable[[], float],
        interval: float = INTERVAL_SECONDS,
        active: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            routers: how many routers should answer at a path, and what those say that do.
            services: all of them.
            changed: told of each service whose verdict is another than before.
            clock: seconds since the epoch.
            active: whether this process is the one that looks.
        """
        self._routers = routers
        self._services = services
        self._changed = changed
        self._clock = clock
        self._interval = interval
        self._active = active
        self._found: dict[Key, tuple[float, Verdict]] = {}

    def of(self, key: Key) -> Verdict | None:
        """Whether it keeps its promises; None before the first look, and where nothing is promised."""
        found = self._found.get(key)
        return None if found is None else found[1]

    async def run(self) -> None:
        """For ever."""
        await come_round(
            self.look,
            active=self._active,
            interval=self._interval,
            failure="the routers could not be asked whether promises are kept",
        )

    async def look(self) -> None:
        """Ask now."""
        promising = [service for service in self._services() if has_objectives(service)]
        now = self._clock()
        count, pages = 0, list[Mapping[str, Any]]()
        if promising:
            count, pages = await self._routers(f"{SAMPLES_PATH}?since={now - WINDOW_SECONDS:.0f}")
        before, self._found = self._found, {}
        for service in promising:
            key = key_of(service)
            found = _verdict(service, count, pages)
            told = before.get(key)
            if told is not None and not _news(told, now, found):
                self._found[key] = told
                continue
            self._found[key] = (now, found)
            self._changed(key)
        for key in before.keys() - self._found.keys():
            self._changed(key)


def _news(told: tuple[float, Verdict], now: float, found: Verdict) -> bool:
    at, before = told
    if (before.status, before.reason) != (found.status, found.reason):
        return True
    # What is not known yet is worth a look at how much of it there is.
    soon = found.status is ConditionStatus.UNKNOWN
    return before.message != found.message and (soon or now - at >= REFRESH_SECONDS)


def _verdict(service: JsonObject, routers: int, pages: list[Mapping[str, Any]]) -> Verdict:
    def unavailable(words: str) -> Verdict:
        return Verdict(ConditionStatus.UNKNOWN, Reason.METRICS_UNAVAILABLE, words)

    if not routers:
        return unavailable("there is no router to ask")
    if len(pages) < routers:
        # What the silent one saw may be what matters.
        return unavailable(f"{len(pages)} of {routers} routers say what they saw")
    slo, pools = objectives_of(service)
    try:
        seen = window(pages, "/".join(key_of(service)), slo, pools)
    except PageError as error:
        return unavailable(str(error))
    return verdict_of(judge(seen, promises(slo) if slo is not None else ()))
