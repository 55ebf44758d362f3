"""Newer defaults and images: when they are there, and how a service takes them over. Pure.

A new release of the operator changes no revision by itself: what a service was rendered with is carried along. Somebody
has to ask, by the annotation that `paceline upgrade` writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from paceline_crds.names import ANNOTATION_UPGRADE
from paceline_crds.revision import HASH_VERSION, InferenceRevision
from paceline_crds.runtime_config import Origin
from paceline_crds.status import UpgradeStatus

from .defaults import TABLES
from .render import Carried, Desired, InvalidSpec, pools_of


@dataclass(frozen=True, slots=True)
class Order:
    """What somebody asked to take over.

    Attributes:
        at: when, RFC 3339 in UTC with whole seconds, as `creationTimestamp` has it.
        why: the reason that was given; empty: none.
    """

    at: str
    image: str
    hash_version: int
    why: str = ""

    def holds(self, newest: str) -> bool:
        """Until a revision is made after it. `newest` is when the newest one was made, empty where there is none."""
        return newest < self.at


def read_order(annotations: Mapping[str, str]) -> Order | None:
    """The order in a service's annotations.

    Raises:
        InvalidSpec: it cannot be read, or asks for defaults that this release does not have.
    """
    text = annotations.get(ANNOTATION_UPGRADE)
    if not text:
        return None
    try:
        raw = json.loads(text)
        order = Order(str(raw["at"]), str(raw["image"]), int(raw["hashVersion"]), str(raw.get("why") or ""))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        raise InvalidSpec(f"the annotation {ANNOTATION_UPGRADE} cannot be read: run `paceline upgrade` again") from exc
    if order.hash_version not in TABLES:
        raise InvalidSpec(
            f"the annotation {ANNOTATION_UPGRADE} asks for defaults of version {order.hash_version}, which this "
            "operator does not have: run `paceline upgrade` again"
        )
    return order


def with_order(carried: Carried, order: Order | None, revisions: Sequence[InferenceRevision]) -> Carried:
    """What to carry on, an order taken into account while it holds."""
    newest = max((r.metadata.creation_timestamp or "" for r in revisions), default="")
    if order is None or not order.holds(newest):
        return carried
    ordered = sorted(revisions, key=lambda r: (r.metadata.creation_timestamp or "", r.metadata.name))
    # What was counted by these defaults already stays: an order that changes nothing must not be the door for more.
    pools = pools_of(ordered, order.hash_version)
    return Carried(order.hash_version, MappingProxyType({"": order.image}), pools)


def available(desired: Desired, operator_image: str) -> UpgradeStatus | None:
    """What the operator would render anew where the spec is silent; None where that is what there is."""
    images = {pool.image for pool in desired.pools if pool.image_origin == Origin.OPERATOR}
    newer_image = bool(images - {operator_image})
    if not newer_image and desired.hash_version >= HASH_VERSION:
        return None
    return UpgradeStatus(image=operator_image, hash_version=HASH_VERSION)
