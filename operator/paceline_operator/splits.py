"""Whether a request shape should have a pool of its own, as the routers see it: their advice in the status.

The routers judge by their own requests and say it as a condition, without figures, so that it changes only when the
decision does. A pass that finds another decision than before is the only write that comes of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from paceline_crds.conditions import ConditionStatus, ConditionType, Reason
from paceline_kube import Key

from .rounds import come_round
from .verdict import Verdict

SPLIT_PATH = "/v1/paceline/split"
INTERVAL_SECONDS = 300.0
"""The routers' window is an hour."""

REASONS = frozenset({Reason.SHAPE_SLOWS_OTHERS, Reason.NO_CLEAR_EFFECT, Reason.NOT_ENOUGH_REQUESTS})


def advice(pages: Iterable[Mapping[str, Any]]) -> dict[Key, Verdict]:
    """By service, what the router says that saw most of its requests. What is of another form is passed over."""
    most: dict[Key, tuple[int, Verdict]] = {}
    for page in pages:
        conditions = page.get("conditions")
        for name, said in conditions.items() if isinstance(conditions, Mapping) else ():
            namespace, _, service = str(name).partition("/")
            try:
                found = Verdict(ConditionStatus(said["status"]), Reason(said["reason"]), str(said["message"]))
                requests = int(said["requests"])
            except (KeyError, TypeError, ValueError):
                continue
            if said.get("type") != ConditionType.SPLIT_ADVISED or found.reason not in REASONS:
                continue
            key = (namespace, service)
            if key not in most or requests > most[key][0]:
                most[key] = requests, found
    return {key: found for key, (_, found) in most.items()}


class SplitKeeper:
    """Asks the routers now and then, and remembers what they advise."""

    def __init__(
        self,
        *,
        pages: Callable[[], Awaitable[Iterable[Mapping[str, Any]]]],
        changed: Callable[[Key], None],
        interval: float = INTERVAL_SECONDS,
        active: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            pages: the bodies of `GET /v1/paceline/split`, of every router that can be asked.
            changed: told of each service whose advice is another than before.
            active: whether this process is the one that looks.
        """
        self._pages = pages
        self._changed = changed
        self._interval = interval
        self._active = active
        self._found: dict[Key, Verdict] = {}

    def of(self, key: Key) -> Verdict | None:
        """What is advised; None where no router has said anything yet."""
        return self._found.get(key)

    async def run(self) -> None:
        """For ever."""
        await come_round(
            self.look,
            active=self._active,
            interval=self._interval,
            failure="the routers could not be asked for their advice",
        )

    async def look(self) -> None:
        """Ask now. While no router answers, what was known stays."""
        pages = list(await self._pages())
        if not pages:
            return
        before, self._found = self._found, advice(pages)
        for key, found in self._found.items():
            if before.get(key) != found:
                self._changed(key)
