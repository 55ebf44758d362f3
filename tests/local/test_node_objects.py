"""What the node asks the API server for on behalf of pods, how often, and what it does without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from paceline_kube import Forbidden, NotFound, Resource, Unreachable
from paceline_local.node.env import Ref
from paceline_local.node.events import REPEAT_SECONDS, EventRecorder
from paceline_local.node.objects import ObjectSource, TokenSource
from paceline_local.node.volumes import TokenRef

POD = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"serviceAccountName": "sa"}}
CONFIG = Ref("ConfigMap", "c")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Server:
    """The calls that these parts make, with the answers in `objects`; what is in `failures` is raised first."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.objects: dict[str, dict[str, Any]] = {}
        self.failures: list[Exception] = []
        self.calls: list[tuple[str, Any]] = []

    def _called(self, what: str, detail: Any) -> None:
        self.calls.append((what, detail))
        if self.failures:
            raise self.failures.pop(0)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        self._called("get", name)
        await asyncio.sleep(0)
        if name not in self.objects:
            raise NotFound(404, "NotFound", name)
        return self.objects[name]

    async def create(self, resource: Resource, body: Mapping[str, Any], namespace: str, **more: Any) -> dict[str, Any]:
        self._called("create", {**body, **more})
        if resource.plural != "serviceaccounts":
            return dict(body)
        until = datetime.fromtimestamp(self.clock.now + body["spec"]["expirationSeconds"], UTC)
        return {"status": {"token": f"token-{len(self.calls)}", "expirationTimestamp": until.isoformat()}}

    async def patch(self, resource: Resource, name: str, body: Any, namespace: str) -> dict[str, Any]:
        self._called("patch", body)
        return dict(body)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Server:
    return Server(clock)


async def test_many_pods_share_one_answer_until_it_is_too_old(server: Server, clock: Clock) -> None:
    source = ObjectSource(server, clock)  # type: ignore[arg-type]
    server.objects["c"] = {"data": {"a": "1"}}
    answers = await asyncio.gather(*(source.get("ns", [CONFIG], 5.0) for _ in range(10)))
    assert all(answer == {CONFIG: server.objects["c"]} for answer in answers)
    assert len(server.calls) == 1
    clock.now += 6
    await source.get("ns", [CONFIG], 5.0)
    assert len(server.calls) == 2
    await source.get("other", [CONFIG], 5.0)
    assert len(server.calls) == 3


async def test_immutable_objects_are_asked_for_rarely_and_absent_ones_are_none(server: Server, clock: Clock) -> None:
    source = ObjectSource(server, clock)  # type: ignore[arg-type]
    assert await source.get("ns", [CONFIG], 1.0) == {CONFIG: None}
    server.objects["c"] = {"immutable": True}
    clock.now += 2
    assert await source.get("ns", [CONFIG], 1.0) == {CONFIG: {"immutable": True}}
    clock.now += 500
    await source.get("ns", [CONFIG], 1.0)
    assert len(server.calls) == 2


async def test_while_the_api_server_is_away_the_last_answer_counts(server: Server, clock: Clock) -> None:
    source = ObjectSource(server, clock)  # type: ignore[arg-type]
    server.failures = [Unreachable("refused")]
    with pytest.raises(Unreachable):
        await source.get("ns", [CONFIG], 1.0)
    server.objects["c"] = {"data": {"a": "1"}}
    await source.get("ns", [CONFIG], 1.0)
    clock.now += 60
    server.failures = [Unreachable("refused")]
    assert await source.get("ns", [CONFIG], 1.0) == {CONFIG: {"data": {"a": "1"}}}


async def test_a_right_that_the_server_does_not_know_yet_is_waited_for(server: Server, clock: Clock) -> None:
    source = ObjectSource(server, clock)  # type: ignore[arg-type]
    server.objects["c"] = {}
    server.failures = [Forbidden(403, "Forbidden", "not yet")]
    assert await source.get("ns", [CONFIG], 1.0) == {CONFIG: {}}


async def test_tokens_are_bound_to_the_pod_and_renewed_after_four_fifths(server: Server, clock: Clock) -> None:
    source, ref = TokenSource(server, clock), TokenRef(None, 3600)  # type: ignore[arg-type]
    first = await source.get(POD, [ref])
    body = server.calls[0][1]
    assert body["name"] == "sa"
    assert body["subresource"] == "token"
    assert body["spec"]["boundObjectRef"] == {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
    clock.now += 0.79 * 3600
    assert await source.get(POD, [ref]) == first
    clock.now += 0.02 * 3600
    second = await source.get(POD, [ref])
    assert second != first
    clock.now += 0.9 * 3600
    server.failures = [Unreachable("refused")]
    assert await source.get(POD, [ref]) == second
    clock.now += 0.2 * 3600
    server.failures = [Unreachable("refused")]
    with pytest.raises(Unreachable):
        await source.get(POD, [ref])


async def test_equal_events_are_counted_in_one_object(server: Server, clock: Clock) -> None:
    recorder = EventRecorder(server, "node-0", clock=clock)  # type: ignore[arg-type]
    task = asyncio.create_task(recorder.run())
    for _ in range(20):
        recorder.record(POD, "Warning", "Unhealthy", "probe failed", "c")
    await recorder.flush()
    await asyncio.sleep(0.01)
    assert [what for what, _ in server.calls] == ["create"]
    assert server.calls[0][1]["involvedObject"]["fieldPath"] == "spec.containers{c}"
    clock.now += REPEAT_SECONDS + 1
    server.failures = [Unreachable("refused")]
    recorder.record(POD, "Warning", "Unhealthy", "probe failed", "c")
    clock.now += REPEAT_SECONDS + 1
    await asyncio.sleep(0.01)
    clock.now += REPEAT_SECONDS + 1
    recorder.record(POD, "Warning", "Unhealthy", "probe failed", "c")
    recorder.record(POD, "Normal", "Killing", "stopping", "c")
    await recorder.flush()
    await asyncio.sleep(0.01)
    assert [what for what, _ in server.calls] == ["create", "patch", "patch", "create"]
    assert server.calls[2][1]["count"] == 22
    task.cancel()
