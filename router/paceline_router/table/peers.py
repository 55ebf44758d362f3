"""How many routers share the work: a limit holds for all of them together, and each enforces its part."""

from __future__ import annotations

from collections.abc import Callable

from paceline_kube import PODS, Change, Informer, KubeClient, drop_managed_fields
from paceline_kube.pods import is_ready

SELECTOR = "app.kubernetes.io/component=router"
"""As the chart labels routers; only those in this router's own namespace count."""


class Peers:
    """Tells `use` the number of ready routers, this one included, whenever it changes.

    A router that starts counts from the moment it is ready, and one that stops until it is not: in between the parts
    add up to less or more than the whole by one router's part.
    """

    def __init__(self, client: KubeClient, namespace: str, use: Callable[[int], None]) -> None:
        self._use = use
        self._ready: set[str] = set()
        self._told = 1
        self._informer = Informer(
            client,
            PODS,
            namespace=namespace,
            label_selector=SELECTOR,
            transform=drop_managed_fields,
            on_change=self._take,
        )

    async def run(self) -> None:
        """Follow the API server for ever."""
        await self._informer.run()

    def _take(self, change: Change) -> None:
        if change.old is not None:
            self._ready.discard(change.old["metadata"]["uid"])
        if change.new is not None and is_ready(change.new):
            self._ready.add(change.new["metadata"]["uid"])
        count = max(1, len(self._ready))
        if count != self._told:
            self._told = count
            self._use(count)
