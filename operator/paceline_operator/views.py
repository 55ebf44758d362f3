"""Views of objects, made once for each state of an object; two states with one view are the same to every decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from paceline_kube import JsonObject

from .observed import BudgetView, ConfigMapView, DeploymentView, PodView, RevisionView

View: TypeAlias = RevisionView | DeploymentView | ConfigMapView | PodView | BudgetView
V = TypeVar("V", RevisionView, DeploymentView, ConfigMapView, PodView, BudgetView)


class Views:
    """Remembers the view of each object: an object never changes under its resourceVersion."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[tuple[Any, ...], View]] = {}

    def of(self, make: Callable[..., V], obj: JsonObject, *about: object) -> V:
        """What `make(obj, *about)` gives, or gave before."""
        metadata = obj["metadata"]
        uid, version = metadata.get("uid"), metadata.get("resourceVersion")
        if not uid or not version:
            return make(obj, *about)
        state = (version, make, *about)
        known = self._made.get(uid)
        if known is not None and known[0] == state:
            return known[1]  # type: ignore[return-value]  # it was made by the same function
        view = make(obj, *about)
        self._made[uid] = state, view
        return view

    def same(self, make: Callable[..., V], old: JsonObject, new: JsonObject, *about: object) -> bool:
        """Whether two states of an object look the same, but for the version."""
        before = self.of(make, old, *about)
        after = self.of(make, new, *about)
        return replace(before, resource_version=after.resource_version) == after

    def forget(self, obj: JsonObject) -> None:
        """The object is gone."""
        self._made.pop(obj["metadata"].get("uid") or "", None)
