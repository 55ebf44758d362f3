"""Secrets with the hashes of keys, followed through the API server: one list and watch per Secret, by name.

So the router needs `get`, `list` and `watch` on exactly these Secrets (`resourceNames`) and never sees another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set

from paceline_kube import SECRETS, Change, Forbidden, Informer, JsonObject, KubeClient, Timing
from paceline_router.tenancy.keys import Keys, keys_from_secret

log = logging.getLogger(__name__)

Name = tuple[str, str]
"""(namespace, name)"""


class SecretWatcher:
    """Follows the Secrets that are wanted, inside `async with`.

    With the API server away the last keys stay in use: that a key was revoked is learned when it is back.
    """

    def __init__(
        self,
        client: KubeClient,
        on_change: Callable[[Name], None],
        timing: Timing | None = None,
        look_seconds: float = 1.0,
    ) -> None:
        """
        Args:
            on_change: called from the event loop when `keys` of a Secret are others than before.
            look_seconds: pause between looks at why a Secret has not been read, until it is.
        """
        self._client = client
        self._on_change = on_change
        self._timing = timing
        self._look_seconds = look_seconds
        self._followed: dict[Name, tuple[Informer, asyncio.Task[None]]] = {}
        self._told: dict[Name, Keys] = {}

    async def __aenter__(self) -> SecretWatcher:
        return self

    async def __aexit__(self, *exc: object) -> None:
        tasks = [task for _, task in self._followed.values()]
        self.want(frozenset())
        await asyncio.gather(*tasks, return_exceptions=True)

    def want(self, names: Set[Name]) -> None:
        """Follow these Secrets from now on and no others."""
        for name in self._followed.keys() - names:
            self._followed.pop(name)[1].cancel()
            self._told.pop(name, None)
        for name in names - self._followed.keys():
            informer = Informer(
                self._client,
                SECRETS,
                namespace=name[0],
                field_selector=f"metadata.name={name[1]}",
                transform=_only_entries,
                on_change=lambda change, name=name: self._changed(name, change),  # type: ignore[misc]
                timing=self._timing,
            )
            self._followed[name] = (informer, asyncio.get_running_loop().create_task(self._follow(name, informer)))

    def keys(self, namespace: str, name: str) -> Keys:
        """What the Secret says now."""
        followed = self._followed.get((namespace, name))
        who = f"the Secret {namespace}/{name}"
        if followed is None:
            return Keys(trouble=f"{who} is not followed")
        informer = followed[0]
        if not informer.synced.is_set():
            if isinstance(informer.last_error, Forbidden):
                return Keys(trouble=f"the router may not read {who}: give it get, list and watch on it")
            return Keys(trouble=f"{who} has not been read yet")
        secret = informer.store.get(namespace, name)
        if secret is None:
            return Keys(trouble=f"{who} does not exist")
        return keys_from_secret(secret["data"])

    async def _follow(self, name: Name, informer: Informer) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(informer.run())
            # A Secret that is not there, or may not be read, changes nothing in the store.
            while not informer.synced.is_set():
                try:
                    async with asyncio.timeout(self._look_seconds):
                        await informer.synced.wait()
                except TimeoutError:
                    self._tell(name)
            self._tell(name)

    def _changed(self, name: Name, change: Change) -> None:
        followed = self._followed.get(name)
        if change.key == name and followed is not None and followed[0].synced.is_set():
            self._tell(name)

    def _tell(self, name: Name) -> None:
        keys = self.keys(*name)
        if keys == self._told.get(name):
            return
        self._told[name] = keys
        if keys.trouble:
            log.warning("tenancy: %s", keys.trouble)
        for problem in keys.problems:
            log.warning("tenancy: the Secret %s/%s, entry %s", *name, problem)
        self._on_change(name)


def _only_entries(secret: JsonObject) -> JsonObject:
    return {"metadata": secret["metadata"], "data": secret.get("data")}
