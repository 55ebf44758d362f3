"""Writing the status of a service: only where it changed, and only over the version that was judged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from paceline_crds.names import FIELD_MANAGER_OPERATOR
from paceline_kube import INFERENCESERVICES, Conflict, JsonObject, Key, KubeClient, NotFound

from .announcements import announce
from .fights import WORDS, Fights
from .findings import Findings
from .keys import has_keys, told_before
from .objectives import has_objectives
from .recorder import Recorder
from .scaling.keeper import follows_load
from .situation import Situation
from .status import status_of, with_last_looks
from .tuning.asked import asked
from .written import Written

log = logging.getLogger(__name__)

UNTOLD_SECONDS = 1.0


def over(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that makes `new` of `old`: what is there no more is taken away, in depth."""
    found: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        before = old.get(name)
        found[name] = over(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return found


class Teller:
    """Tells statuses and their Events. One instance for the operator's life."""

    def __init__(
        self,
        client: KubeClient,
        recorder: Recorder,
        written: Written,
        findings: Findings,
        clock: Callable[[], float],
        router_url: str,
    ) -> None:
        """`clock` gives seconds since the epoch; `router_url` is where clients reach routers, without a slash."""
        self._client = client
        self._recorder = recorder
        self._written = written
        self._findings = findings
        self._clock = clock
        self._router_url = router_url
        self._fights = Fights(time.monotonic)

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._fights.forget(key)

    async def tell(self, service: JsonObject, situation: Situation) -> float | None:
        """Write the status where it changed.

        Losing to another writer, or to a deletion, is no error: what it wrote wakes the next pass.

        Returns:
            Seconds after which to look again at the latest; None: the status is told.
        """
        old: dict[str, Any] = service.get("status") or {}
        conditions = old.get("conditions") or []
        observed = situation.observed
        key = (observed.namespace, observed.name)
        situation = self._with_findings(key, service, situation)
        new = status_of(situation, conditions, self._clock(), self._router_url)
        undecided = situation.follows_load and not situation.scaling
        unjudged = situation.promises and situation.slo is None
        unseen = None in (situation.drift, situation.split, situation.outputs)
        untuned = bool(situation.tuned_pools) and not situation.tuning
        if unseen or undecided or unjudged or untuned:
            new = with_last_looks(new, old, situation)
        if new == old:
            return None
        if (pause := self._fights.wait(key, new)) > 0:
            return pause
        patch = {
            # So a leader that was held up, and is none any more, overwrites nothing that was said since.
            "metadata": {"resourceVersion": service["metadata"]["resourceVersion"]},
            "status": over(old, new),
        }
        try:
            stored = await self._client.patch(
                INFERENCESERVICES,
                observed.name,
                patch,
                observed.namespace,
                subresource="status",
                field_manager=FIELD_MANAGER_OPERATOR,
            )
        except (NotFound, Conflict) as exc:
            log.debug("%s/%s: status not written: %s", *key, exc)
            return UNTOLD_SECONDS
        if stored["metadata"]["uid"] == observed.uid:
            self._written.put(key, INFERENCESERVICES, stored)
        announce(self._recorder, service, conditions, new["conditions"])
        if self._fights.wrote(key, new):
            self._recorder.event(service, type="Warning", reason="StatusOverwritten", message=WORDS)
        return None

    def _with_findings(self, key: Key, service: JsonObject, situation: Situation) -> Situation:
        findings = self._findings
        keys = findings.keys(key)
        if keys is None:
            conditions = (service.get("status") or {}).get("conditions") or []
            keys = told_before(conditions) if has_keys(service) else ""
        situation = replace(
            situation,
            split=findings.split(key),
            outputs=findings.outputs(key),
            crd_lacks=findings.crd_lacks() or (),
            keys=keys,
            recorder=findings.recorder(),
        )
        if has_objectives(service):
            situation = replace(situation, promises=True, slo=findings.slo(key))
        if situation.desired is not None and follows_load(service):
            situation = replace(situation, scaling=findings.scaling(key), follows_load=True)
        if situation.desired is not None and (tuned := frozenset(asked(service))):
            told = findings.tuning(key) or {}
            told = {name: one for name, one in told.items() if name in tuned}
            situation = replace(situation, tuned_pools=tuned, tuning=told)
        return situation
