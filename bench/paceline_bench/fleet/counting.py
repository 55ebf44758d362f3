"""Counting from outside: watch events that a system was sent, and API calls that it made."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from paceline_kube import INFERENCESERVICES, AioKubeClient, Change, Informer, Resource


class Events:
    """A second watcher with the selectors of a system, which counts what both are sent; bookmarks do not count.

    A system that opens two watches of one kind is sent those events twice; here they count once.
    """

    def __init__(self, client: AioKubeClient, watches: Iterable[tuple[Resource, str | None]], namespace: str) -> None:
        self.of: Counter[str] = Counter()
        self._informers = {
            resource.plural: Informer(
                client, resource, namespace=namespace, label_selector=selector, on_change=self._counter(resource.plural)
            )
            for resource, selector in watches
        }

    @property
    def total(self) -> int:
        """All kinds together."""
        return self.of.total()

    @property
    def services(self) -> Informer:
        """That of the services."""
        return self._informers[INFERENCESERVICES.plural]

    async def synced(self) -> None:
        """Wait until all watch."""
        for informer in self._informers.values():
            await informer.synced.wait()

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(*(informer.run() for informer in self._informers.values()))

    def missed(self) -> list[str]:
        """Kinds of which a part was listed anew instead of watched, so that their count is too low."""
        return [kind for kind, informer in self._informers.items() if informer.relists > 1]

    def _counter(self, kind: str) -> Callable[[Change], None]:
        def count(_: Change) -> None:
            self.of[kind] += 1

        return count


def calls(log: Path, begin: float, end: float) -> Counter[str]:
    """Calls in the audit log between two times (seconds since the epoch), by verb and kind. A watch counts when opened.

    With `ResponseStarted` and `ResponseComplete` a watch has two lines; the first one is taken.
    """
    found: Counter[str] = Counter()
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            entry: dict[str, Any] = json.loads(line)
            watch = entry["verb"] == "watch"
            if watch != (entry["stage"] == "ResponseStarted"):
                continue
            at = datetime.datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
            if begin <= at < end:
                about = entry.get("objectRef") or {}
                part = f"/{about['subresource']}" if about.get("subresource") else ""
                found[f"{entry['verb']} {about.get('resource', entry['requestURI'])}{part}"] += 1
    return found
