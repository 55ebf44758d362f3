"""Who keeps a served name that several services ask for.

Served names are free text and hold for the whole cluster. The oldest service keeps one, as the router decides it too;
the others stay reachable at their own addresses.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_kube import Change, JsonObject, Key, Store, key_of
from paceline_kube.store import IndexFunction

INDEX_SERVED_NAME = "served-name"
"""Index of services under the name they are served by; see `served_name_indexes`."""

NAMED_MOST = 5
"""Services that a message lists; of more it gives the count."""


def served_name_indexes() -> dict[str, IndexFunction]:
    """Indexes that the store of services must have."""
    return {INDEX_SERVED_NAME: lambda obj: (served_name(obj),)}


def served_name(service: JsonObject) -> str:
    """What clients send as `model`. Read field by field: a spec that cannot be read in full still claims its name."""
    spec = service.get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    name = model.get("servedName") if isinstance(model, dict) else None
    return name if isinstance(name, str) and name else str(service["metadata"]["name"])


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """One service's claim to a served name; the lowest keeps it.

    Attributes:
        by_name: false for the service whose `namespace/name` the name is: an address is never taken away.
        created: RFC 3339.
        service: `namespace/name`.
    """

    by_name: bool
    created: str
    uid: str
    service: str

    @property
    def addresses(self) -> str:
        """How the service is reached without its served name, in words."""
        return f'model "{self.service}" or the path /{self.service}/v1'


@dataclass(frozen=True, slots=True)
class Conflict:
    """Several services ask for one served name.

    Attributes:
        own: the claim of the service that is looked at.
        others: all other claims, at least one, in order.
    """

    name: str
    own: Claim
    others: tuple[Claim, ...]

    @property
    def keeps(self) -> bool:
        """Whether the service that is looked at keeps the name."""
        return self.own < self.others[0]

    @property
    def message(self) -> str:
        """What it means for the service that is looked at, and what helps."""
        name = json.dumps(self.name, ensure_ascii=False)
        if self.keeps:
            return (
                f"this service keeps the served name {name}: {_listed(self.others)} asked for it too, and can be "
                "reached by namespace/name and by path only"
            )
        holder = self.others[0]
        why = "is older" if holder.by_name else "has it as its address"
        return (
            f"the served name {name} is kept by {holder.service}, which {why}, and requests for it go there: reach "
            f"this service by {self.own.addresses}, or give it a spec.model.servedName of its own"
        )


def conflict_of(service: JsonObject, services: Store) -> Conflict | None:
    """The conflict that a service is in; None where its served name is its alone.

    Args:
        services: all that are known, with `served_name_indexes()`.
    """
    name, own = served_name(service), key_of(service)
    rivals = {key_of(obj): obj for obj in services.by_index(INDEX_SERVED_NAME, name)}
    namespace, _, of = name.partition("/")
    addressed = services.get(namespace, of)
    if addressed is not None:
        rivals[key_of(addressed)] = addressed
    rivals.pop(own, None)
    if not rivals:
        return None
    return Conflict(name, _claim(service, name), tuple(sorted(_claim(obj, name) for obj in rivals.values())))


def concerned(change: Change, services: Store) -> list[Key]:
    """Other services whose conflict may have come, changed or gone with a change of one service."""
    old, new = (None if obj is None else (served_name(obj), _identity(obj)) for obj in (change.old, change.new))
    if old == new:
        return []
    names = dict.fromkeys(claim[0] for claim in (old, new) if claim is not None)
    # Whoever is served by this service's address depends on whether there is such a service.
    names["/".join(change.key)] = None
    keys = dict.fromkeys(key_of(obj) for name in names for obj in services.by_index(INDEX_SERVED_NAME, name))
    return [key for key in keys if key != change.key]


def _identity(service: JsonObject) -> tuple[str, str]:
    metadata = service["metadata"]
    return str(metadata.get("creationTimestamp") or ""), str(metadata.get("uid") or "")


def _claim(service: JsonObject, name: str) -> Claim:
    address = "/".join(key_of(service))
    return Claim(address != name, *_identity(service), address)


def _listed(claims: Sequence[Claim]) -> str:
    shown = [claim.service for claim in claims[:NAMED_MOST]]
    more = len(claims) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
