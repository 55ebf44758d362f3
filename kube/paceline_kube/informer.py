"""A local copy of all objects of one kind, kept current by list and watch.

The copy survives every trouble with the API server: a cut connection resumes where it stopped, an expired
history means a new list whose gaps become deletions, and meanwhile readers keep what they had and can ask
how old it is.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from paceline_kube.client import JsonObject, KubeClient, WatchEvent
from paceline_kube.errors import ApiError, Gone, KubeError, NotFound
from paceline_kube.resources import Resource
from paceline_kube.store import Change, IndexFunction, Store, key_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, all of them.

    Attributes:
        watch: how long the server is asked to keep one watch open (each is drawn from [3/4, 1] of it, so
            that many informers do not come back at once).
        inactivity: silence after which a watch counts as dead. The server sends a bookmark about once a
            minute.
        backoff_first, backoff_most: bounds of the wait after a failure; doubled each time, then drawn from
            the upper half.
        settled: a watch that lived this long or brought an event was good: the next wait starts small again.
    """

    watch: int = 300
    inactivity: float = 75.0
    backoff_first: float = 0.5
    backoff_most: float = 30.0
    settled: float = 5.0


class Informer:
    """List and watch one kind, optionally in one namespace or under selectors.

    `run()` until cancelled; `synced` is set once the first list is in `store`. `on_change` is called, after
    the store has changed, for every change in order, from the event loop: it should note the key and return.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        on_change: Callable[[Change], None] | None = None,
        transform: Callable[[JsonObject], JsonObject] | None = None,
        indexes: dict[str, IndexFunction] | None = None,
        store: Store | None = None,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """
        Args:
            transform: applied to each object before it is stored, to drop what nobody reads (managedFields,
                say). Must keep `metadata` with its name, namespace, uid and resourceVersion.
            indexes: name → function from an object to the values it is found under, see `Store.by_index`.
            store: shared with informers of the same kind in other namespaces, instead of one of its own.
            clock: monotonic seconds.
        """
        self._client = client
        self.resource = resource
        self.namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._handlers: list[Callable[[Change], None]] = [on_change] if on_change is not None else []
        self._transform = transform
        self._timing = timing or Timing()
        self._clock = clock
        self._rng = rng or random.Random()
        self._resource_version: str | None = None
        self._contact: float | None = None
        self._failures = 0
        if store is not None and indexes:
            raise ValueError("a shared store brings its own indexes")
        self.store = Store(indexes) if store is None else store
        self.synced = asyncio.Event()
        self.relists = 0
        """Lists so far; the first is counted too."""
        self.handler_errors = 0
        """Exceptions raised by handlers so far."""
        self.last_error: Exception | None = None
        """What the last attempt failed with; None while all is well."""

    def __repr__(self) -> str:
        return f"<Informer {self.resource.plural} in {self.namespace or 'all namespaces'}: {len(self.store)}>"

    @property
    def resource_version(self) -> str | None:
        """Up to where the store is complete; None before the first list and after an expired watch."""
        return self._resource_version

    def add_handler(self, on_change: Callable[[Change], None]) -> None:
        """Also call this for every change from now on; objects already stored are not replayed."""
        self._handlers.append(on_change)

    def age(self) -> float | None:
        """Seconds since the API server was last heard (an answer, an event, a bookmark); None if never.

        A healthy idle watch is up to about a minute old.
        """
        return None if self._contact is None else max(0.0, self._clock() - self._contact)

    async def run(self) -> None:
        """Keep the store current until cancelled. Never ends by itself, whatever the server does."""
        while True:
            started = self._clock()
            wait: float | None = None
            try:
                if self._resource_version is None:
                    await self._list()
                if await self._watch():
                    self._failures = 0
            except Gone as exc:
                # Not a failure: history was compacted while we were away. A server that says so every time
                # still meets the back-off below, since lists are the most expensive thing one can ask for.
                log.info("%s: history expired (%s), listing again", self.resource.plural, exc.message)
                self._resource_version = None
                self._failures += 1
                wait = self._backoff() if self._failures > 1 else 0.0
            except KubeError as exc:
                self.last_error = exc
                self._failures += 1
                wait = self._backoff(exc)
                self._log_failure(exc, wait)
                if isinstance(exc, ApiError) and self._failures % 5 == 0:
                    # A server that keeps refusing to resume from here may still be able to list.
                    self._resource_version = None
            except Exception as exc:
                # Nothing may end an informer: its readers would trust a dead copy for ever.
                self.last_error = exc
                self._resource_version = None
                self._failures += 1
                wait = self._backoff()
                log.exception("%s: unexpected error, again in %.1f s", self.resource.plural, wait)
            if wait is None:
                # A watch that the server ended at once and without a word must not become a busy loop.
                wait = 0.0 if self._clock() - started >= 1.0 else self._timing.backoff_first
            await asyncio.sleep(wait)

    async def _list(self) -> None:
        listed = await self._client.list(self.resource, self.namespace, self._label_selector, self._field_selector)
        self._heard()
        self.relists += 1
        changes = self.store.replace((self._prepare(obj) for obj in listed.items), self.namespace)
        self._resource_version = listed.resource_version
        self._notify(changes)
        self.synced.set()

    async def _watch(self) -> bool:
        """One watch, until the server ends it. True if it brought anything or lived long enough to be good."""
        assert self._resource_version is not None
        started = self._clock()
        events = 0
        seconds = max(1, round(self._timing.watch * self._rng.uniform(0.75, 1.0)))
        stream = self._client.watch(
            self.resource,
            self.namespace,
            self._label_selector,
            self._field_selector,
            resource_version=self._resource_version,
            timeout_seconds=seconds,
            inactivity_seconds=self._timing.inactivity,
        )
        async with aclosing(stream):  # type: ignore[type-var]  # the protocol promises only an iterator
            async for event in stream:
                events += 1
                self._heard()
                if self._failures:
                    log.info("%s: the watch is back", self.resource.plural)
                    self._failures = 0
                self._take(event)
        self._heard()
        return events > 0 or self._clock() - started >= self._timing.settled

    def _take(self, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            changes: list[Change] = []
        elif event.type == "DELETED":
            obj = self._prepare(event.object)
            changes = self.store.remove(key_of(obj), obj)
        else:
            changes = self.store.put(self._prepare(event.object))
        if event.resource_version:
            self._resource_version = event.resource_version
        self._notify(changes)

    def _prepare(self, obj: JsonObject) -> JsonObject:
        return obj if self._transform is None else self._transform(obj)

    def _notify(self, changes: list[Change]) -> None:
        for change in changes:
            for handler in self._handlers:
                try:
                    handler(change)
                except Exception:
                    self.handler_errors += 1
                    log.exception("%s: a handler failed on %s", self.resource.plural, "/".join(change.key))

    def _heard(self) -> None:
        self._contact = self._clock()
        self.last_error = None

    def _backoff(self, exc: KubeError | None = None) -> float:
        exponent = min(self._failures - 1, 16)
        most = min(self._timing.backoff_most, self._timing.backoff_first * 2.0**exponent)
        wait = self._rng.uniform(most / 2, most)
        if isinstance(exc, ApiError) and exc.retry_after is not None:
            wait = max(wait, min(exc.retry_after, self._timing.backoff_most))
        return wait

    def _log_failure(self, exc: KubeError, wait: float) -> None:
        # A 404 for the kind is logged like any failure and keeps the copy: while an API server starts it
        # answers so for custom kinds that exist, and taking that for "all deleted" would stop traffic.
        hint = " (is its CRD installed?)" if isinstance(exc, NotFound) else ""
        age = self.age()
        stale = "nothing is known yet" if age is None else f"the copy is {age:.0f} s old"
        level = logging.WARNING if self._failures == 1 or self._failures % 10 == 0 else logging.INFO
        log.log(level, "%s: %s%s; %s, again in %.1f s", self.resource.plural, exc, hint, stale, wait)


def drop_managed_fields(obj: JsonObject) -> JsonObject:
    """A `transform` that drops `metadata.managedFields`, often half of an object."""
    metadata = obj.get("metadata")
    if metadata and "managedFields" in metadata:
        metadata = {key: value for key, value in metadata.items() if key != "managedFields"}
        return {**obj, "metadata": metadata}
    return obj
