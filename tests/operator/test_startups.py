"""How long replicas take to start: what is measured, where it is kept, and what comes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline_crds.revision import InferenceRevision, InferenceRevisionSpec
from paceline_crds.service import InferenceService, ObjectMeta
from paceline_kube import INFERENCEREVISIONS, PODS, JsonObject
from paceline_operator import children
from paceline_operator.gather import RevisionReader, gather
from paceline_operator.measured import start_ups_of
from paceline_operator.observed import Observed, Ownership, PodView, Range, RevisionView
from paceline_operator.render import Carried, Desired, carried_from, render
from paceline_operator.startups import StartUps, budgets, recorded, seconds_of

KEY = ("demo", "chat")
OBSERVED = Observed("demo", "chat", "u", 1)


def rendered(carried: Carried | None = None, **spec: Any) -> Desired:
    body = {"metadata": {"name": "chat", "namespace": "demo"}, "spec": {"model": {"source": "package://m"}, **spec}}
    return render(InferenceService.from_object(body), carried or Carried(), "r:1")


ASKED = rendered()
POOL = ASKED.pools[0]


def pod(name: str, ready_at: int | None, restarts: int = 0, pool_hash: str = POOL.hash) -> PodView:
    """A pod that got its node at 10:00:00."""
    since = "" if ready_at is None else f"2026-11-30T10:{ready_at // 60:02}:{ready_at % 60:02}Z"
    ready = ready_at is not None
    placed = "2026-11-30T10:00:00Z"
    return PodView(
        name, "default", pool_hash, ready, False, False, None, name, placed=placed, ready_since=since, restarts=restarts
    )


def view(**start_ups: Range) -> RevisionView:
    spec = InferenceRevisionSpec(service="chat", pools=list(ASKED.pools))
    parsed = InferenceRevision(metadata=ObjectMeta(name=ASKED.revision), spec=spec)
    return RevisionView(ASKED.revision, "r", "1", "", Ownership.OURS, parsed, None, start_ups)


def test_a_replica_counts_once_when_it_is_first_seen_ready() -> None:
    seen = StartUps()
    assert seen.see(KEY, [pod("old", 900)]) == {}, "ready before anybody looked: it may have been ready before that too"
    assert seen.see(KEY, [pod("old", 900), pod("a", None), pod("b", None)]) == {}
    assert seen.see(KEY, [pod("old", 900), pod("a", 40), pod("b", 25)]) == {POOL.hash: Range(25, 40)}
    assert seen.see(KEY, [pod("old", 900), pod("a", 40), pod("b", 25)]) == {}


def test_a_start_with_a_crash_in_it_or_without_times_is_not_known() -> None:
    assert seconds_of(pod("a", 40)) == 40
    assert seconds_of(pod("a", 40, restarts=1)) is None
    assert seconds_of(replace(pod("a", 40), placed="")) is None
    assert seconds_of(replace(pod("a", 40), ready_since="soon")) is None


def test_only_a_start_that_was_faster_or_slower_than_all_before_is_written() -> None:
    seen = replace(OBSERVED, revisions=(view(),))
    written = recorded(seen, {POOL.hash: Range(25, 40)})
    took = {"fastestSeconds": 25, "slowestSeconds": 40}
    assert written == {ASKED.revision: {"pools": [{"name": "default", "hash": POOL.hash, "startUp": took}]}}
    assert start_ups_of({"status": written[ASKED.revision]}) == {POOL.hash: Range(25, 40)}
    known = replace(OBSERVED, revisions=(view(**{POOL.hash: Range(20, 40)}),))
    assert recorded(known, {POOL.hash: Range(25, 40)}) == {}
    assert recorded(known, {"other": Range(1, 1)}) == {}
    assert start_ups_of({"status": recorded(known, {POOL.hash: Range(25, 41)})[ASKED.revision]}) == {
        POOL.hash: Range(20, 41)
    }
    foreign = replace(known, revisions=(replace(view(), owner=Ownership.FOREIGN),))
    assert recorded(foreign, {POOL.hash: Range(1, 1)}) == {}


@pytest.mark.parametrize(
    "status", [{"pools": "x"}, {"pools": [{"startUp": {}}]}, {"pools": [{"hash": "a", "startUp": 1}]}]
)
def test_a_status_that_cannot_be_read_is_nothing_known(status: Any) -> None:
    assert start_ups_of({"status": status}) == {}


def probe(desired: Desired) -> int:
    return int(desired.pools[0].pod_template["spec"]["containers"][0]["startupProbe"]["failureThreshold"])


def test_the_probe_of_the_next_revision_allows_three_times_the_slowest_start_within_bounds() -> None:
    assert budgets([view(**{POOL.hash: Range(1, 1200)})], 3600) == {}, "never less than the default"
    assert budgets([view(**{POOL.hash: Range(1, 2000)})], 3600) == {"default": 6000}
    assert budgets([view(**{POOL.hash: Range(1, 9000)})], 3600) == {"default": 4 * 3600}
    longer = rendered(Carried(start_ups={"default": 6000}), runtime={"maxNumSeqs": 8})
    assert probe(longer) == 6000
    made = children.deployment(OBSERVED, "d", longer.pools[0], 1)
    assert made["spec"]["progressDeadlineSeconds"] == 6300, "Kubernetes gives up no sooner than the probe"


def test_what_was_measured_restarts_nothing_that_runs() -> None:
    def kept(desired: Desired, second: int) -> InferenceRevision:
        spec = InferenceRevisionSpec(service="chat", hash_version=desired.hash_version, pools=list(desired.pools))
        created = f"2026-01-01T00:00:0{second}Z"
        return InferenceRevision(metadata=ObjectMeta(name=desired.revision, creation_timestamp=created), spec=spec)

    revisions = [kept(ASKED, 0)]
    measured = replace(carried_from(revisions), start_ups={"default": 6000})
    assert rendered(measured) == ASKED
    second = rendered(measured, runtime={"maxNumSeqs": 8})
    assert probe(second) == 6000
    # A slower start still, and the measurements forgotten: both kept revisions stay what they are.
    revisions.append(kept(second, 1))
    for start_ups in ({"default": 9000}, {}):
        carried = replace(carried_from(revisions), start_ups=start_ups)
        assert rendered(carried).revision == ASKED.revision
        assert rendered(carried, runtime={"maxNumSeqs": 8}).revision == second.revision


def test_times_and_restarts_are_read_from_the_pod() -> None:
    at = "2026-11-30T10:00:0{}Z"
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": at.format(1)},
        {"type": "Ready", "status": "True", "lastTransitionTime": at.format(9)},
    ]
    status = {"phase": "Running", "conditions": conditions, "containerStatuses": [{"restartCount": 2}]}
    obj = {"metadata": {"name": "p", "uid": "u"}, "spec": {}, "status": status}
    service = {"metadata": {"name": "chat", "namespace": "demo", "uid": "u"}}
    found = gather(service, read=RevisionReader(), revisions=[], deployments=[], config_maps=[], pods=[obj])
    assert (found.pods[0].ready_since, found.pods[0].restarts) == (at.format(9), 2)


@pytest.mark.cluster
async def test_a_revision_keeps_how_long_its_replicas_took_and_the_spec_stays_as_it_is(world, make_service) -> None:
    def started(obj: JsonObject) -> JsonObject:
        at = "2026-11-30T10:00:{}Z"
        return {
            "phase": "Running",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": at.format(second)}
                for kind, second in (("PodScheduled", "00"), ("ContainersReady", "17"), ("Ready", "17"))
            ],
        }

    async with world.operator() as operator, world.kubelet(started):
        await world.apply(make_service(replicas=2))
        await world.until_ready()

        async def measured() -> Any:
            [revision] = await world.all(INFERENCEREVISIONS)
            return (revision.get("status") or {}).get("pools")

        [pool] = await world.until(measured, "the start-up time is written down")
        assert pool["startUp"] == {"fastestSeconds": 17, "slowestSeconds": 17}
        [before] = await world.all(INFERENCEREVISIONS)
        pods = {p["metadata"]["uid"] for p in await world.all(PODS)}
        # An edit that concerns no pod renders again, with what was measured.
        await world.apply(make_service(replicas=2, revisionHistoryLimit=3))
        await world.until_ready()
        [after] = await world.all(INFERENCEREVISIONS)
        assert after["spec"] == before["spec"]
        assert {p["metadata"]["uid"] for p in await world.all(PODS)} == pods
        assert operator.errors == []
