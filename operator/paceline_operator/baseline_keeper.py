"""Asks the routers for baselines, seldom, and writes them into the revisions."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from paceline_kube import JsonObject, Key, KubeClient, KubeError, key_of

from .baselines import OddPage, due, measured, newer
from .measured import record, status_of
from .observed import Observed
from .rounds import come_round
from .written import Written

log = logging.getLogger(__name__)

SAMPLES_PATH = "/v1/paceline/samples"
INTERVAL_SECONDS = 120.0
"""Between two looks at what is due, which cost no call: so soon after it has served a revision gets its last one."""

Pages = Callable[[str], Awaitable[tuple[int, list[Mapping[str, Any]]]]]


class BaselineKeeper:
    """Looks at every service now and then. What is lost with the process is when a revision was asked about last."""

    def __init__(
        self,
        *,
        client: KubeClient,
        services: Callable[[], Iterable[JsonObject]],
        observed: Callable[[Key], Observed | None],
        written: Written,
        routers: Pages,
        interval: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.time,
        active: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            observed: a service as the caches have it; None where it is gone or going.
            routers: how many routers should answer at a path, and what those say that do.
            clock: seconds since the epoch.
            active: whether this process is the one that writes.
        """
        self._client = client
        self._services = services
        self._observed = observed
        self._written = written
        self._routers = routers
        self._interval = interval
        self._clock = clock
        self._active = active
        self._asked: dict[Key, dict[str, float]] = {}

    async def run(self) -> None:
        """For ever."""
        await come_round(
            self.look, active=self._active, interval=self._interval, failure="the baselines could not be measured"
        )

    async def look(self) -> None:
        """Ask about what is due now, one after the other: nothing waits for it. Without routers nothing is measured."""
        keys = [key_of(service) for service in self._services()]
        self._asked = {key: self._asked[key] for key in keys if key in self._asked}
        for key in keys:
            observed = self._observed(key)
            if observed is None or not self._active():
                continue
            for revision, since in due(observed, self._asked.get(key, {}), self._clock()).items():
                try:
                    if not await self._measure(key, revision, since):
                        return
                except (OddPage, KubeError) as exc:
                    log.info("%s/%s: no baseline of %s: %s", *key, revision, exc)

    async def _measure(self, key: Key, revision: str, since: float) -> bool:
        """Whether every router has answered."""
        asked_at, service = self._clock(), "/".join(key)
        count, pages = await self._routers(f"{SAMPLES_PATH}?since={since:.3f}&service={service}")
        if not count or len(pages) < count:
            # What a router saw that does not answer may be what matters. They are asked again at the next look.
            if count:
                log.info("no baseline of %s: %d of %d routers answer", service, len(pages), count)
            return False
        found = measured(pages, service, revision)
        self._asked.setdefault(key, {})[revision] = asked_at
        observed = self._observed(key)
        view = None if observed is None else observed.revision(revision)
        if observed is not None and view is not None and (kept := newer(view.baselines, found)) is not None:
            status = status_of(replace(view, baselines=kept))
            await record(self._client, self._written, key, observed, {revision: status})
        return True
