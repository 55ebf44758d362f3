"""The status of a revision: what was measured of its pools while it ran. Nothing hangs on it for safety."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from paceline_crds.names import FIELD_MANAGER_OPERATOR
from paceline_crds.revision import Baseline, CanaryAnswer, InferenceRevisionStatus, RevisionPoolStatus, StartUp
from paceline_kube import INFERENCEREVISIONS, ApiError, JsonObject, Key, KubeClient

from .observed import Observed, Range, RevisionView
from .written import Written

log = logging.getLogger(__name__)


def start_ups_of(obj: JsonObject) -> Mapping[str, Range]:
    """What a revision's status says of starts, by pool hash; nothing where it cannot be read."""
    pools = (obj.get("status") or {}).get("pools")
    if not pools:
        return {}
    try:
        starts = {str(pool["hash"]): pool["startUp"] for pool in pools if "startUp" in pool}
        return {h: Range(int(took["fastestSeconds"]), int(took["slowestSeconds"])) for h, took in starts.items()}
    except (KeyError, TypeError, ValueError):
        return {}


def baselines_of(obj: JsonObject) -> Mapping[str, Baseline]:
    """What it says of requests, by name of the pool; nothing where it cannot be read."""
    pools = (obj.get("status") or {}).get("pools")
    if not pools:
        return {}
    try:
        return {
            str(pool["name"]): Baseline.model_validate(pool["baseline"], extra="ignore")
            for pool in pools
            if "baseline" in pool
        }
    except (KeyError, TypeError, ValueError):
        return {}


def canaries_of(obj: JsonObject) -> Mapping[str, CanaryAnswer]:
    """What it says of the fixed question, by pool hash; nothing where it cannot be read."""
    pools = (obj.get("status") or {}).get("pools")
    if not pools:
        return {}
    try:
        return {
            str(pool["hash"]): CanaryAnswer.model_validate(pool["canary"], extra="ignore")
            for pool in pools
            if "canary" in pool
        }
    except (KeyError, TypeError, ValueError):
        return {}


def status_of(view: RevisionView) -> dict[str, Any]:
    """The pools of the status, whole, as the view has them: a patch replaces a list."""
    pools = []
    for pool in view.pools:
        took, baseline, canary = (
            view.start_ups.get(pool.hash),
            view.baselines.get(pool.name),
            view.canaries.get(pool.hash),
        )
        if took is None and baseline is None and canary is None:
            continue
        start_up = None if took is None else StartUp(fastest_seconds=took.fastest, slowest_seconds=took.slowest)
        pools.append(
            RevisionPoolStatus(name=pool.name, hash=pool.hash, start_up=start_up, baseline=baseline, canary=canary)
        )
    return InferenceRevisionStatus(pools=pools).model_dump(mode="json", exclude_none=True)


async def record(
    client: KubeClient, written: Written, key: Key, observed: Observed, statuses: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write statuses, by name of the revision, each over the version that was seen.

    What cannot be written is let go; it is measured again.
    """
    for name, status in statuses.items():
        kept = observed.revision(name)
        version = kept.resource_version if kept is not None else ""
        try:
            stored = await client.patch(
                INFERENCEREVISIONS,
                name,
                {"metadata": {"resourceVersion": version}, "status": status},
                observed.namespace,
                subresource="status",
                field_manager=FIELD_MANAGER_OPERATOR,
            )
        except ApiError as exc:
            log.info("%s/%s: what was measured of %s is not written down: %s", *key, name, exc)
        else:
            written.put(key, INFERENCEREVISIONS, stored)
