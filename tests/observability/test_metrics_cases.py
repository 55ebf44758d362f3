"""Faults of other systems' metrics, tried on ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from finished_exchange import Over
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from paceline_router.flow.dataplane import DataPlane
from paceline_router.report.admin import metrics_page
from paceline_router.report.cells import OUTCOMES
from paceline_router.report.service import RETRY_REASONS
from paceline_router.settings import Settings
from paceline_runtime.messages import EngineStats, Preemptions, RejectCode
from paceline_runtime.server.metrics import FINISHED_REASONS, FORGET_SECONDS, Ended, FirstToken, Metrics

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
FAST = settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.generate))
STEPS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 30)), min_size=1, max_size=30)


def counters(page: str) -> Series:
    """What only ever grows: counters, and the buckets, sums and counts of histograms."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        if family.type in ("counter", "histogram")
        for sample in family.samples
    }


def never_falls(page: Callable[[], str], happen: Callable[[int, int], None], steps: Iterable[tuple[int, int]]) -> None:
    before = counters(page())
    for what, number in steps:
        happen(what, number)
        after = counters(page())
        assert {series for series in before.keys() & after.keys() if after[series] < before[series]} == set()
        before = after


class Source:
    error: str | None = None

    def age(self) -> float | None:
        return None


def stats(number: int, used: int, cached: int) -> EngineStats:
    return EngineStats(
        sequence=number, step=number, running=1, waiting=0, kv_blocks_used=used, kv_blocks_total=100,
        kv_blocks_cached=cached, prefill_tokens=0, decode_tokens=0, preemptions_total=number,
        prefix_query_tokens_total=number, prefix_hit_tokens_total=number, prompt_tokens_total=number,
        generation_tokens_total=number, preemptions=[Preemptions("NoBlocks", "recompute", "normal", number)],
    )  # fmt: skip


@FAST
@given(STEPS)
def test_no_counter_of_a_replica_ever_falls(steps: list[tuple[int, int]]) -> None:
    now = [0.0]
    metrics = Metrics("smollm2", lambda: now[0])
    done = [0]

    def happen(what: int, number: int) -> None:
        name = f"t{number}"
        if what == 0:
            metrics.received("completions")
        elif what == 1:
            metrics.first_token(FirstToken(name, name, number, number // 2, 0.1 * number, 0.01, 0.02, "r"))
        elif what == 2:
            reason = FINISHED_REASONS[number % len(FINISHED_REASONS)]
            metrics.finished(Ended(reason, (number,), 0.1 + 0.3 * number, 0.1, 0.01, number, name, "r"))
        elif what == 3:
            metrics.rejected(list(RejectCode)[number % len(RejectCode)])
        elif what == 4:
            metrics.refused(400 + number % 5)
        elif what == 5:
            done[0] += number
            metrics.engine_stats(stats(done[0], number, number))
        else:
            # Names that nobody uses give their places up meanwhile: their series end, and none falls.
            now[0] += FORGET_SECONDS / 20 * number

    never_falls(lambda: metrics.render()[0].decode(), happen, steps)


@FAST
@given(STEPS)
def test_no_counter_of_a_router_ever_falls(steps: list[tuple[int, int]]) -> None:
    plane = DataPlane(Settings())
    metrics = plane.metrics.service("demo/chat")

    def happen(what: int, number: int) -> None:
        if what <= 3:
            metrics.in_flight += 1
            outcome = OUTCOMES[number % len(OUTCOMES)]
            over = Over(metrics=metrics, outcome=outcome, shape=number % 5, prompt_version=f"v{number}")
            over.ended_at = 100.3 + number
            plane.observer.finished(over)
        elif what == 4:
            metrics.retries[RETRY_REASONS[number % len(RETRY_REASONS)]] += 1
        elif what == 5:
            metrics.refused("overloaded")
        else:
            metrics.forget_unused([("default", "chat-1")])

    never_falls(lambda: metrics_page(plane, Source()), happen, steps)


def test_busy_and_full_of_what_can_be_used_again_are_two_things() -> None:
    metrics = Metrics("smollm2")

    def seen() -> dict[str, Any]:
        families = {family.name: family for family in text_string_to_metric_families(metrics.render()[0].decode())}
        states = {s.labels["state"]: s.value for s in families["paceline_kv_blocks_by_state"].samples}
        (usage,) = families["vllm:kv_cache_usage_perc"].samples
        return {"usage": usage.value, **states}

    metrics.engine_stats(stats(1, used=30, cached=50))
    assert seen() == {"usage": 0.3, "active": 30, "cached": 50, "free": 20}
    metrics.engine_stats(stats(2, used=0, cached=80))
    assert seen() == {"usage": 0.0, "active": 0, "cached": 80, "free": 20}
