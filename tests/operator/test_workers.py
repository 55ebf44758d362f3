import asyncio
import logging

import pytest

from paceline_kube import ApiError, Conflict, Key, TooManyRequests, Unreachable
from paceline_operator.guard import NotLeader
from paceline_operator.metrics import Metrics
from paceline_operator.queue import Backoff, WorkQueue
from paceline_operator.workers import work

KEY = ("demo", "chat")


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


async def passes(
    outcomes: list[float | Exception | None], metrics: Metrics, queue: WorkQueue[Key], **options: float
) -> list[Key]:
    """Let one worker run until every outcome has been used."""
    seen: list[Key] = []

    async def reconcile(namespace: str, name: str) -> float | None:
        seen.append((namespace, name))
        outcome = outcomes.pop(0)
        if not outcomes:
            queue.close()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    await asyncio.wait_for(work(queue, reconcile, metrics, **options), 10)
    return seen


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def queue() -> WorkQueue[Key]:
    queue: WorkQueue[Key] = WorkQueue(backoff=Backoff(first=0.001, most=0.002))
    queue.add(KEY)
    return queue


async def test_a_pass_that_asks_to_come_back_does(metrics: Metrics, queue: WorkQueue[Key]) -> None:
    assert await passes([0.01, 0.01, None], metrics, queue) == [KEY] * 3
    assert value(metrics, "paceline_operator_reconcile_total", result="success") == 3
    assert value(metrics, "paceline_operator_reconcile_seconds_count") == 3


@pytest.mark.parametrize(
    ("error", "result", "reason"),
    [
        (Unreachable("cut"), "error", "Unreachable"),
        (ApiError(500, "InternalError", "etcd"), "error", "InternalError"),
        (ApiError(502), "error", "502"),
        (RuntimeError("bug"), "error", "RuntimeError"),
        (Conflict(409, "Conflict"), "conflict", None),
        (NotLeader("no"), "not_leader", None),
    ],
)
async def test_a_failed_pass_is_counted_and_tried_again(
    metrics: Metrics, queue: WorkQueue[Key], error: Exception, result: str, reason: str | None
) -> None:
    assert await passes([error, None], metrics, queue) == [KEY] * 2
    assert value(metrics, "paceline_operator_reconcile_total", result=result) == 1
    assert value(metrics, "paceline_operator_reconcile_total", result="success") == 1
    if reason is not None:
        assert value(metrics, "paceline_operator_reconcile_errors_total", reason=reason) == 1


async def test_a_conflict_is_no_warning(
    metrics: Metrics, queue: WorkQueue[Key], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await passes([Conflict(409, "Conflict"), None], metrics, queue)
    assert [record.levelname for record in caplog.records] == ["INFO"]


async def test_a_hanging_pass_is_cut_off(metrics: Metrics, queue: WorkQueue[Key]) -> None:
    async def hang(namespace: str, name: str) -> float | None:
        await asyncio.sleep(3600)
        return None

    task = asyncio.create_task(work(queue, hang, metrics, pass_seconds=0.02))
    async with asyncio.timeout(5):
        while not value(metrics, "paceline_operator_reconcile_errors_total", reason="Timeout"):
            await asyncio.sleep(0.005)
    queue.close()
    await asyncio.wait_for(task, 5)


async def test_the_servers_wish_to_wait_is_honoured(metrics: Metrics) -> None:
    clock = [0.0]
    queue: WorkQueue[Key] = WorkQueue(backoff=Backoff(first=0.001), clock=lambda: clock[0])
    queue.add(KEY)
    passed: list[float] = []

    async def reconcile(namespace: str, name: str) -> float | None:
        passed.append(clock[0])
        if len(passed) == 1:
            raise TooManyRequests(429, retry_after=20)
        queue.close()
        return None

    task = asyncio.create_task(work(queue, reconcile, metrics))
    await asyncio.sleep(0.02)
    assert passed == [0.0]
    clock[0] = 20.0
    queue.add(("demo", "other"))  # wakes the worker, which then looks at the clock
    await asyncio.wait_for(task, 5)
    assert 20.0 in passed


async def test_stopping_lets_the_pass_under_way_end(metrics: Metrics, queue: WorkQueue[Key]) -> None:
    begun, finish = asyncio.Event(), asyncio.Event()
    ended: list[Key] = []

    async def reconcile(namespace: str, name: str) -> float | None:
        begun.set()
        await finish.wait()
        ended.append((namespace, name))
        return None

    task = asyncio.create_task(work(queue, reconcile, metrics))
    await begun.wait()
    queue.add(("demo", "next"))
    queue.close()
    finish.set()
    await asyncio.wait_for(task, 5)
    assert ended == [KEY]
