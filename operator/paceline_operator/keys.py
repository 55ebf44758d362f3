"""API keys that the routers cannot check: every request is refused then, whatever the replicas do.

The routers follow the Secrets, the operator reads none. Asked only while some service has keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from paceline_crds.conditions import Reason
from paceline_crds.tenancy import IdentitySource
from paceline_kube import JsonObject, Key, key_of

from .rounds import come_round

INTERVAL_SECONDS = 10.0

ADVICE = "make the Secret, and name it in the chart's value router.keySecrets, so that the routers may read it"


def has_keys(service: JsonObject) -> bool:
    """Whether requests to a service need keys of a Secret."""
    part: Any = service
    for name in ("spec", "tenancy", "identity", "from"):
        # Field by field: one spec that cannot be read must not keep the others from being asked about.
        part = part.get(name) if isinstance(part, dict) else None
    return bool(part == IdentitySource.API_KEY)


def unreadable(pages: Iterable[Mapping[str, Any]]) -> dict[Key, str] | None:
    """By service, why no router can check its keys, in words. While one can, the service is left out.

    Args:
        pages: the bodies of `GET /v1/paceline/routes`; one that has not read the cluster yet, or has another form, says
            nothing.

    Returns:
        None where no page says anything.
    """
    said: dict[Key, list[str]] = {}
    heard = False
    for page in pages:
        services, why = page.get("services"), page.get("keys_unreadable")
        if not page.get("synced") or not isinstance(services, Mapping) or not isinstance(why, Mapping):
            continue
        heard = True
        for name in services:
            namespace, _, service = str(name).partition("/")
            said.setdefault((namespace, service), []).append(str(why.get(name) or ""))
    if not heard:
        return None
    return {
        key: f"API keys cannot be checked: {min(found)}; every request gets a 503: {ADVICE}"
        for key, found in said.items()
        if all(found)
    }


def told_before(conditions: Iterable[Mapping[str, Any]]) -> str:
    """What the status says of it already: it holds until the routers were asked."""
    return next((str(c.get("message") or "") for c in conditions if c.get("reason") == Reason.KEYS_UNREADABLE), "")


class KeysKeeper:
    """Asks the routers every few seconds, and remembers which keys they cannot check."""

    def __init__(
        self,
        *,
        pages: Callable[[], Awaitable[Iterable[Mapping[str, Any]]]],
        services: Callable[[], Iterable[JsonObject]],
        changed: Callable[[Key], None],
        interval: float = INTERVAL_SECONDS,
        active: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            pages: the bodies of `GET /v1/paceline/routes`, of every router that can be asked.
            services: all of them.
            changed: told of each service of which something else is known than before.
            interval: seconds between two looks.
            active: whether this process is the one that looks.
        """
        self._pages = pages
        self._services = services
        self._changed = changed
        self._interval = interval
        self._active = active
        self._found: dict[Key, str] | None = None

    def of(self, key: Key) -> str | None:
        """Why keys cannot be checked; empty where they can, None before the first look."""
        return None if self._found is None else self._found.get(key, "")

    async def run(self) -> None:
        """For ever."""
        await come_round(
            self.look,
            active=self._active,
            interval=self._interval,
            failure="the routers could not be asked whether they can check keys",
        )

    async def look(self) -> None:
        """Ask now. While no router says anything of keys, what was known stays."""
        with_keys = {key_of(service) for service in self._services() if has_keys(service)}
        found: dict[Key, str] = {}
        if with_keys:
            said = unreadable(await self._pages())
            if said is None:
                return
            found = {key: words for key, words in said.items() if key in with_keys}
        before, self._found = self._found, found
        # What an operator before this one said holds until the first look, and may be over.
        asked = with_keys if before is None else before.keys() | found.keys()
        for key in sorted(asked):
            if before is None or before.get(key, "") != found.get(key, ""):
                self._changed(key)
