"""Events are asked for late, seldom, and about few pods."""

from __future__ import annotations

from typing import Any

from paceline_kube import EVENTS, JsonObject, Unreachable
from paceline_operator.pod_events import AGAIN_SECONDS, MOST_PODS, PATIENCE_SECONDS, PodEvents

KEY = ("demo", "chat")


class Server:
    """Lists Events, and remembers of which pods."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = False

    async def list(
        self, resource: Any, namespace: str | None = None, label_selector: str | None = None, field_selector: str = ""
    ) -> Any:
        assert (resource, namespace) == (EVENTS, "demo")
        self.asked.append(field_selector.removeprefix("involvedObject.uid="))
        if self.fails:
            raise Unreachable("gone")

        class Listed:
            items = ({"reason": "FailedMount", "metadata": {}},)

        return Listed


def creating(uid: str) -> JsonObject:
    waits = {"name": "runtime", "ready": False, "state": {"waiting": {"reason": "ContainerCreating"}}}
    return {"metadata": {"name": uid, "uid": uid}, "status": {"phase": "Pending", "containerStatuses": [waits]}}


async def test_a_pod_is_asked_about_after_a_while_and_then_not_often() -> None:
    now, server = 0.0, Server()
    events = PodEvents(server, lambda: now)  # type: ignore[arg-type]  # the one call that is made
    assert await events.ask(KEY, [creating("a")]) == PATIENCE_SECONDS
    assert server.asked == []
    assert events.said(KEY, "a") == ()
    now = PATIENCE_SECONDS
    assert await events.ask(KEY, [creating("a")]) == AGAIN_SECONDS
    assert server.asked == ["a"]
    assert events.said(KEY, "a")[0]["reason"] == "FailedMount"
    now += 1
    await events.ask(KEY, [creating("a")])
    assert server.asked == ["a"]
    now += AGAIN_SECONDS
    server.fails = True
    await events.ask(KEY, [creating("a")])
    assert server.asked == ["a", "a"]
    assert events.said(KEY, "a")[0]["reason"] == "FailedMount"
    assert await events.ask(KEY, []) is None
    assert events.said(KEY, "a") == ()


async def test_of_many_pods_few_are_asked_about_at_once_and_each_in_its_turn() -> None:
    now, server = 0.0, Server()
    events = PodEvents(server, lambda: now)  # type: ignore[arg-type]  # the one call that is made
    pods = [creating(str(i)) for i in range(MOST_PODS + 2)]
    await events.ask(KEY, pods)
    now = PATIENCE_SECONDS
    assert await events.ask(KEY, pods) == 1.0
    assert len(server.asked) == MOST_PODS
    await events.ask(KEY, pods)
    assert sorted(server.asked) == sorted(pod["metadata"]["uid"] for pod in pods)
