"""A service as stored, and the revisions that are kept, to what is asked for; each spec is rendered once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from paceline_crds.names import ANNOTATION_UPGRADE
from paceline_crds.revision import InferenceRevision
from paceline_crds.rollout import OrderAction
from paceline_crds.service import InferenceService
from paceline_kube import JsonObject

from .defaults import TABLES
from .observed import Observed, Ownership, RevisionView
from .reach import out_of_reach
from .render import Desired, InvalidSpec, asked, carried_from, pinned, render
from .rollout.inorder import in_order
from .startups import budgets
from .upgrades import read_order, with_order

LONGEST_DEFAULT = max(table.startup_failures for table in TABLES.values())
"""Seconds; what was measured to take less changes nothing."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Everything that the outcome hangs on: revisions never change, so their uids stand for them."""

    spec: Any
    metadata: tuple[str, str, str | None]
    revisions: tuple[tuple[str, str, str, bool], ...]
    start_ups: Mapping[str, int]


class Renderer:
    """Renders services. A pass nearly always finds the spec of the pass before, and rendering is its dearest part."""

    def __init__(self, runtime_image: str, limit: int = 10_000) -> None:
        """
        Args:
            runtime_image: where neither spec nor an earlier revision names one.
            limit: services remembered, the last rendered ones.
        """
        self._runtime_image = runtime_image
        self._limit = limit
        self._known: OrderedDict[str, tuple[_Inputs, Desired | InvalidSpec]] = OrderedDict()

    def __call__(self, service: JsonObject, observed: Observed) -> Desired:
        """What is asked for.

        Raises:
            InvalidSpec: values that cannot be read, or cannot go together.
        """
        metadata = service["metadata"]
        own = [r for r in observed.revisions if r.owner is not Ownership.FOREIGN]
        inputs = _Inputs(
            service.get("spec"),
            (metadata["namespace"], metadata["name"], (metadata.get("annotations") or {}).get(ANNOTATION_UPGRADE)),
            tuple((r.name, r.uid, r.created, r.parsed is not None) for r in own),
            budgets(own, LONGEST_DEFAULT),
        )
        known = self._known.get(observed.uid)
        if known is None or known[0] != inputs:
            stays = known is not None and _only_stored(known[0], known[1], inputs)
            known = inputs, known[1] if known and stays else self._render(service, own, inputs.start_ups)
            self._known[observed.uid] = known
            if len(self._known) > self._limit:
                self._known.popitem(last=False)
        self._known.move_to_end(observed.uid)
        if isinstance(known[1], InvalidSpec):
            # A new one: an exception that is raised again and again keeps every frame it went through.
            raise type(known[1])(str(known[1]))
        return in_order(known[1], observed)

    def _render(
        self, service: JsonObject, own: list[RevisionView], start_ups: Mapping[str, int]
    ) -> Desired | InvalidSpec:
        try:
            # Without the status, which may be anybody's, and from which nothing is made.
            parsed = InferenceService.from_object({key: service[key] for key in ("metadata", "spec") if key in service})
            order = parsed.spec.rollout.order if parsed.spec.rollout else None
            if order is not None and order.action is OrderAction.PIN:
                return _with_doubts(pinned(asked(parsed), _ordered(order.revision, own)), parsed)
            readable = [r.parsed for r in own if r.parsed is not None]
            upgrade = read_order(parsed.metadata.annotations)
            carried = with_order(carried_from(readable), upgrade, readable)
            return _with_doubts(render(parsed, replace(carried, start_ups=start_ups), self._runtime_image), parsed)
        except ValidationError as exc:
            return InvalidSpec(_words(exc))
        except InvalidSpec as exc:
            return type(exc)(str(exc))
        except ValueError as exc:
            # Stored under an older or looser schema.
            return InvalidSpec(str(exc))


def _with_doubts(desired: Desired, service: InferenceService) -> Desired:
    return replace(desired, out_of_reach=out_of_reach(service.spec, desired))


def _only_stored(before: _Inputs, outcome: Desired | InvalidSpec, now: _Inputs) -> bool:
    """Whether nothing has happened but that what was rendered was stored: it renders to itself again."""
    if isinstance(outcome, InvalidSpec) or replace(now, revisions=before.revisions) != before:
        return False
    new = set(now.revisions).difference(before.revisions)
    return len(now.revisions) == len(before.revisions) + 1 and [name for name, *_ in new] == [outcome.revision]


def _ordered(name: str, own: list[RevisionView]) -> InferenceRevision:
    """The kept revision that an order names."""
    for view in own:
        if view.name == name and view.parsed is not None:
            return view.parsed
    names = ", ".join(r.name for r in sorted(own, key=lambda r: r.created, reverse=True)) or "none"
    raise InvalidSpec(
        f"spec.rollout.order pins {name}, which is not kept (kept are: {names}); name one of these, or remove the order"
    )


def _words(exc: ValidationError) -> str:
    return "; ".join(f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}" for error in exc.errors()[:5])
