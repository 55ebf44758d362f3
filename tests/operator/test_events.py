import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from paceline_kube.testing import FakeApiServer, Refusal
from paceline_operator.events import EventRecorder, Rate

SERVICE = {
    "apiVersion": "paceline.io/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "chat", "namespace": "demo", "uid": "u1", "resourceVersion": "7"},
}


@dataclass
class Clock:
    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(server: FakeApiServer, clock: Clock) -> EventRecorder:
    return EventRecorder(server.client(), instance="op-0", rate=Rate(burst=5, refill=60), interval=0.01, wall=clock)


def written(server: FakeApiServer) -> list[dict[str, Any]]:
    return [obj for (collection, _, _), obj in server.objects.items() if collection.endswith("/events")]


def tell(recorder: EventRecorder, reason: str = "Ready", message: str = "all is well", **metadata: str) -> None:
    about = {**SERVICE, "metadata": {**SERVICE["metadata"], **metadata}}  # type: ignore[dict-item]
    recorder.event(about, type="Normal", reason=reason, message=message)


async def test_an_event_says_who_what_and_when(server: FakeApiServer, recorder: EventRecorder) -> None:
    tell(recorder)
    await recorder.flush()
    (event,) = written(server)
    assert event["metadata"]["namespace"] == "demo"
    assert event["involvedObject"] == {
        "apiVersion": "paceline.io/v1alpha1",
        "kind": "InferenceService",
        "name": "chat",
        "namespace": "demo",
        "uid": "u1",
        "resourceVersion": "7",
    }
    assert (event["type"], event["reason"], event["message"], event["count"]) == ("Normal", "Ready", "all is well", 1)
    assert event["source"]["component"] == event["reportingComponent"] == "paceline-operator"
    assert event["reportingInstance"] == "op-0"
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2027-01-15T08:00:00Z"


async def test_each_decision_is_a_line_of_the_log_and_counted_once(
    recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="paceline_operator.events"):
        for message in ("two more", "two more", "one less"):
            tell(recorder, "Queue", message)
    assert [(r.service, r.decision) for r in caplog.records] == [("demo/chat", "Queue")] * 2  # type: ignore[attr-defined]
    assert caplog.messages == ["demo/chat: two more", "demo/chat: one less"]
    assert recorder.counters.told == {("demo", "chat", "Queue"): 2}


async def test_repeats_become_a_count(server: FakeApiServer, recorder: EventRecorder, clock: Clock) -> None:
    tell(recorder)
    tell(recorder)
    await recorder.flush()
    clock.now += 30
    tell(recorder)
    await recorder.flush()
    (event,) = written(server)
    assert event["count"] == 3
    assert event["firstTimestamp"] == "2027-01-15T08:00:00Z"
    assert event["lastTimestamp"] == "2027-01-15T08:00:30Z"
    assert recorder.counters.merged == 2
    assert recorder.counters.written == 2


@pytest.mark.parametrize("other", [{"reason": "Degraded"}, {"message": "or not"}, {"uid": "u2"}])
async def test_another_object_reason_or_message_is_another_event(
    server: FakeApiServer, recorder: EventRecorder, other: dict[str, str]
) -> None:
    tell(recorder)
    tell(recorder, **other)
    await recorder.flush()
    assert len(written(server)) == 2


async def test_a_flood_about_one_object_is_cut_and_leaves_room_for_others(
    server: FakeApiServer, recorder: EventRecorder, clock: Clock
) -> None:
    for i in range(50):
        tell(recorder, message=f"message {i}")
    tell(recorder, uid="u2", message="of another")
    await recorder.flush()
    assert len(written(server)) == 6
    assert recorder.counters.dropped == 45
    clock.now += 120
    for i in range(50):
        tell(recorder, message=f"later {i}")
    await recorder.flush()
    assert len(written(server)) == 8


async def test_an_event_that_the_server_has_forgotten_starts_anew(
    server: FakeApiServer, recorder: EventRecorder, clock: Clock
) -> None:
    tell(recorder)
    await recorder.flush()
    (old,) = written(server)
    await server.remove("/api/v1/events", "demo", old["metadata"]["name"])
    clock.now += 4000
    tell(recorder)
    await recorder.flush()
    (event,) = written(server)
    assert event["count"] == 1
    assert event["firstTimestamp"] == "2027-01-15T09:06:40Z"


async def test_a_failed_write_is_dropped_and_hurts_nobody(server: FakeApiServer, recorder: EventRecorder) -> None:
    server.refuse(Refusal(403, "Forbidden", "no"), method="POST")
    tell(recorder)
    tell(recorder, reason="Other")
    await recorder.flush()
    assert [event["reason"] for event in written(server)] == ["Other"]
    assert recorder.counters.dropped == 1
    tell(recorder)
    await recorder.flush()
    assert sorted(event["count"] for event in written(server)) == [1, 2]


async def test_long_words_are_cut_to_what_the_server_takes(server: FakeApiServer, recorder: EventRecorder) -> None:
    tell(recorder, message="x" * 5000, name="n" * 253)
    await recorder.flush()
    (event,) = written(server)
    assert len(event["message"]) == 1024
    assert len(event["metadata"]["name"]) <= 253


async def test_running_it_writes_by_itself(server: FakeApiServer, recorder: EventRecorder) -> None:
    task = asyncio.create_task(recorder.run())
    tell(recorder)
    async with asyncio.timeout(5):
        while not written(server):
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
