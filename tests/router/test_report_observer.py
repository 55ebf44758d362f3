"""What is counted of a request that is over."""

from __future__ import annotations

from typing import Any

import pytest
from finished_exchange import Over
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.routing import ObjectiveSpec, RoutingSpec, SLOSpec
from paceline_crds.sketch import EDGES
from paceline_router.report.cells import OUTCOMES
from paceline_router.report.objectives import NOT_KNOWN, RESULTS, SLOS, Objectives
from paceline_router.report.observer import Observer
from paceline_router.report.service import MAX_TENANTS, SHAPE_LABELS, ServiceMetrics
from paceline_router.report.text import service_labels
from paceline_router.report.timing import QUEUE, TO_FIRST_TOKEN, engine_seconds, parts, server_timing, span_seconds
from paceline_router.report.tracing import Tracer
from paceline_router.table.policy import Policy, make_policy

SLO = SLOSpec(ttft=ObjectiveSpec(p90="150ms", p99="1s"), tpot=ObjectiveSpec(p90="25ms", p99="50ms"))
LABELS = service_labels("demo/chat")
FULL = b"queue;dur=10.0, prefill;dur=70.0, first-token;dur=90.0, total;dur=280.0"


def books(slo: SLOSpec | None = SLO, **more: Any) -> ServiceMetrics:
    metrics = ServiceMetrics()
    metrics.use(make_policy(RoutingSpec(), slo=slo, **more))
    return metrics


def count(metrics: ServiceMetrics, **exchange: Any) -> ServiceMetrics:
    metrics.in_flight += 1
    Observer(Tracer()).finished(Over(metrics=metrics, **exchange))
    return metrics


def goodput(metrics: ServiceMetrics) -> dict[str, str]:
    """What each promise counted for one request: met, missed, or nothing."""
    return {
        slo: word
        for index, slo in enumerate(SLOS)
        for result, word in enumerate(RESULTS)
        if metrics.goodput[2 * index + result]
    }


def only(counts: list[int], edges: tuple[float, ...]) -> float:
    """The upper bound of the bucket that has the only value."""
    assert sum(counts) == 1
    return edges[counts.index(1)]


# Times


def test_a_stream_has_its_first_token_and_the_mean_gap_after_it() -> None:
    [cell, *_] = count(books()).cells["default", "chat-1"]
    assert cell.ttft.sum == pytest.approx(0.1)
    assert cell.tpot.sum == pytest.approx(0.02)
    assert cell.duration.sum == pytest.approx(0.3)
    assert 0.1 <= only(cell.ttft.counts, EDGES) <= 0.105


def test_each_of_several_choices_has_its_own_gaps() -> None:
    [cell, *_] = count(books(), choices=2, output_tokens=22).cells["default", "chat-1"]
    assert cell.tpot.sum == pytest.approx(0.02)


@pytest.mark.parametrize("tokens", [0, 1, None])
def test_without_a_second_token_there_is_no_time_per_token(tokens: int | None) -> None:
    metrics = count(books(), output_tokens=tokens)
    assert not any(metrics.cells["default", "chat-1"][0].tpot.counts)
    assert not {"tpot_p90", "tpot_p99"} & goodput(metrics).keys()


def test_a_whole_answer_has_a_first_token_only_where_the_replica_told() -> None:
    told = count(books(), stream=False, engine_timing=FULL, first_byte_at=100.29)
    assert told.cells["default", "chat-1"][0].ttft.sum == pytest.approx(0.001 + 0.09)
    untold = count(books(), stream=False, engine_timing=None, first_byte_at=100.29)
    assert not any(untold.cells["default", "chat-1"][0].ttft.counts)


def test_engine_and_link_are_told_apart() -> None:
    metrics = count(books())
    assert metrics.router.sum == pytest.approx(0.001)
    assert metrics.engine[0].sum == pytest.approx(0.09)
    assert metrics.net.sum == pytest.approx(0.099 - 0.09)


def test_of_a_whole_answer_the_engine_has_all_until_its_end() -> None:
    metrics = count(books(), stream=False, engine_timing=FULL, first_byte_at=100.285)
    assert metrics.engine[0].sum == pytest.approx(0.28)
    assert metrics.net.sum == pytest.approx(0.284 - 0.28)


@pytest.mark.parametrize("timing", [None, b"", b"db;dur=5", b"first-token;dur=x", b"first-token;dur=nan", b"total"])
def test_where_the_replica_does_not_tell_the_engine_is_not_known(timing: bytes | None) -> None:
    metrics = count(books(), engine_timing=timing)
    assert sum(metrics.engine[0].counts) == sum(metrics.net.counts) == 0
    assert sum(metrics.router.counts) == 1


def test_waiting_is_no_time_of_the_router() -> None:
    metrics = count(books(), parked_at=100.0, admitted_at=102.0, sent_at=102.001, first_byte_at=102.1, ended_at=102.3)
    assert metrics.waits.sum == pytest.approx(2.0)
    assert metrics.router.sum == pytest.approx(0.001)
    assert metrics.cells["default", "chat-1"][0].ttft.sum == pytest.approx(2.1)


def test_a_wait_that_led_nowhere_lasted_until_the_end() -> None:
    fields = {"admitted_at": 0.0, "sent_at": 0.0, "first_byte_at": 0.0, "attempts": 0, "status": 503, "outcome": "5xx"}
    metrics = count(books(), parked_at=100.0, ended_at=110.0, pool="", revision="", **fields)
    assert metrics.waits.sum == pytest.approx(10.0)
    assert sum(metrics.router.counts) == 0
    assert metrics.cells["", ""][0].outcomes[OUTCOMES.index("5xx")] == 1


def test_after_a_failed_attempt_the_routers_own_time_is_not_known() -> None:
    assert sum(count(books(), attempts=2).router.counts) == 0


def test_spans_of_the_replica_are_found_by_name() -> None:
    assert engine_seconds(FULL) == pytest.approx(0.28)
    assert span_seconds(FULL, QUEUE) == pytest.approx(0.01)
    assert span_seconds(FULL, TO_FIRST_TOKEN) == pytest.approx(0.09)
    assert span_seconds(b"total;dur=1.0", QUEUE) < 0
    assert span_seconds(b"queue;dur=abc", QUEUE) < 0


def test_who_asks_is_told_where_the_time_went() -> None:
    exchange = Over(engine_timing=FULL, stream=False, first_byte_at=100.285)
    assert server_timing(exchange, 100.285) == (
        b"queue;dur=0.00, router;dur=1.00, engine-queue;dur=10.00, engine;dur=280.00, net;dur=4.00, "
        b"first-byte;dur=285.00, attempts;desc=1"
    )


def test_what_is_not_known_is_left_out_of_the_answer() -> None:
    exchange = Over(engine_timing=None, attempts=2)
    assert server_timing(exchange, 100.1) == b"queue;dur=0.00, first-byte;dur=100.00, attempts;desc=2"
    assert parts(Over(engine_timing=None), 100.1).net is None


def test_a_tenants_first_tokens_are_counted_by_its_label_and_those_of_nobody_not_twice() -> None:
    metrics = count(count(books(), tenant_label="blue"), tenant_label="_none")
    assert list(metrics.tenant_ttft) == ["blue"]
    assert metrics.tenant_ttft["blue"].sum == pytest.approx(0.1)
    for number in range(MAX_TENANTS + 9):
        count(metrics, tenant_label=f"t{number}")
    assert len(metrics.tenant_ttft) == MAX_TENANTS + 1
    assert sum(metrics.tenant_ttft["_other"].counts) == 10


# Outcomes and tokens


@given(st.lists(st.tuples(st.sampled_from(OUTCOMES), st.integers(-1, 4), st.booleans(), st.booleans())))
def test_every_request_ends_in_exactly_one_outcome(requests: list[tuple[str, int, bool, bool]]) -> None:
    metrics = books()
    for outcome, shape, stream, parked in requests:
        count(metrics, outcome=outcome, shape=shape, stream=stream, parked_at=99.0 if parked else 0.0)
    assert metrics.in_flight == 0
    assert sum(metrics.outcomes.values()) == len(requests)
    cells = metrics.cells.get(("default", "chat-1"), ())
    assert sum(sum(cell.outcomes) for cell in cells) == len(requests)
    samples = {(name, labels): value for name, labels, value in metrics.samples(LABELS)}
    assert samples["paceline_router_wait_seconds_count", LABELS] == len(requests)


def test_a_request_without_a_shape_is_counted_apart_and_promised_nothing() -> None:
    metrics = count(books(), shape=-1, path=b"/tokenize", stream=False, output_tokens=None)
    assert metrics.cells["default", "chat-1"][SHAPE_LABELS.index("_none")].outcomes[0] == 1
    assert goodput(metrics) == {}
    assert metrics.usage_unknown == 0


def test_tokens_that_the_replica_did_not_tell_are_not_counted_as_none() -> None:
    metrics = count(count(books(), output_tokens=None), prompt_version="v3")
    assert metrics.usage_unknown == 1
    assert metrics.prompt_versions.rows == {"v3": [50, 11]}


# Promises


def test_a_request_that_keeps_everything_is_good() -> None:
    assert goodput(count(books())) == dict.fromkeys(SLOS, "met")


@pytest.mark.parametrize(
    ("times", "missed"),
    [
        ({"first_byte_at": 100.2, "ended_at": 100.4}, {"ttft_p90", "goodput"}),
        ({"first_byte_at": 101.5, "ended_at": 101.7}, {"ttft_p90", "ttft_p99", "goodput"}),
        ({"ended_at": 100.4}, {"tpot_p90", "goodput"}),
        ({"ended_at": 101.4}, {"tpot_p90", "tpot_p99", "goodput"}),
    ],
)
def test_each_promise_is_counted_by_itself(times: dict[str, float], missed: set[str]) -> None:
    expected = {slo: "missed" if slo in missed else "met" for slo in SLOS}
    metrics = count(books(), **times)
    assert goodput(metrics) == expected
    assert metrics.cells["default", "chat-1"][0].missed == 1


@pytest.mark.parametrize("outcome", ["5xx", "broken_stream"])
def test_a_failure_misses_everything(outcome: str) -> None:
    metrics = count(books(), outcome=outcome)
    assert goodput(metrics) == dict.fromkeys(SLOS, "missed")
    assert not any(metrics.cells["default", "chat-1"][0].ttft.counts)


@pytest.mark.parametrize("outcome", ["4xx", "cancelled"])
def test_what_the_client_caused_counts_nowhere(outcome: str) -> None:
    assert goodput(count(books(), outcome=outcome)) == {}


GONE = {"outcome": "cancelled", "first_byte_at": 0.0, "status": 0, "output_tokens": None, "engine_timing": None}


@pytest.mark.parametrize(
    ("waited", "found"),
    [
        (0.1, {}),
        (0.2, {"ttft_p90": "missed", "goodput": "missed"}),
        (2.5, {"ttft_p90": "missed", "ttft_p99": "missed", "goodput": "missed"}),
    ],
)
def test_a_stream_left_after_the_promised_first_token_did_not_come_was_missed(
    waited: float, found: dict[str, str]
) -> None:
    metrics = count(books(), **GONE, ended_at=100.0 + waited)
    assert goodput(metrics) == found
    assert metrics.cells["default", "chat-1"][0].missed == bool(found)
    # Of one that began to come, and of a whole answer, it is not known.
    assert goodput(count(books(), **GONE | {"first_byte_at": 100.1}, ended_at=100.0 + waited)) == {}
    assert goodput(count(books(), **GONE, stream=False, ended_at=100.0 + waited)) == {}


def test_one_token_is_good_when_it_came_in_time() -> None:
    assert goodput(count(books(), output_tokens=1)) == {"ttft_p90": "met", "ttft_p99": "met", "goodput": "met"}


def test_a_whole_answer_of_another_engine_is_judged_by_what_both_promises_allow_for_it() -> None:
    whole = {"stream": False, "engine_timing": None, "first_byte_at": 100.3}
    assert goodput(count(books(), **whole)) == {"goodput": "met"}  # 150 ms + 10 x 25 ms
    assert goodput(count(books(), **whole, ended_at=100.5)) == {"goodput": "missed"}
    assert goodput(count(books(), **whole, output_tokens=None)) == {}


def test_without_objectives_there_is_no_series() -> None:
    metrics = count(books(slo=None))
    assert not [name for name, _, _ in metrics.samples(LABELS) if name == "paceline_slo_requests_total"]
    assert goodput(metrics) == {}


def test_every_promise_has_its_series_before_the_first_request() -> None:
    def shown(spec: SLOSpec) -> dict[str, float]:
        return {
            f"{dict(labels)['slo']} {dict(labels)['result']}": value
            for name, labels, value in books(spec).samples(LABELS)
            if name == "paceline_slo_requests_total"
        }

    assert shown(SLO) == {f"{slo} {result}": 0 for slo in SLOS for result in RESULTS}
    assert set(shown(SLOSpec(ttft=ObjectiveSpec(p99="1s")))) == {"ttft_p99 met", "ttft_p99 missed"}
    some = {"tpot_p90 met", "tpot_p90 missed", "goodput met", "goodput missed"}
    assert set(shown(SLOSpec(tpot=ObjectiveSpec(p90="1s")))) == some


def test_a_pool_may_promise_something_else() -> None:
    lax = SLOSpec(ttft=ObjectiveSpec(p90="10s"))
    metrics = books(pool_slo={"long": lax})
    late = {"first_byte_at": 105.0, "ended_at": 106.0}
    assert goodput(count(metrics, pool="long", **late)) == {"ttft_p90": "met", "goodput": "met"}
    assert count(metrics, **late).goodput[SLOS.index("goodput") * 2 + 1] == 1


@given(
    st.floats(0, 3) | st.just(NOT_KNOWN),
    st.floats(0, 0.1) | st.just(NOT_KNOWN),
    st.floats(0, 10),
    st.none() | st.integers(0, 100),
)
def test_a_good_request_missed_no_outward_promise(ttft: float, tpot: float, total: float, tokens: int | None) -> None:
    counts = [0] * (2 * len(SLOS))
    good = Objectives(SLO).answered(counts, ttft, tpot, total, tokens)
    missed_outward = counts[1] + counts[5] > 0
    assert (counts[8], counts[9]) == (int(good is True), int(good is False))
    if missed_outward:
        assert good is False
    if ttft != NOT_KNOWN and tpot != NOT_KNOWN:
        assert good is not missed_outward
    assert all(counts[2 * index] + counts[2 * index + 1] <= 1 for index in range(len(SLOS)))


def test_a_changed_objective_holds_for_what_comes_after_it() -> None:
    metrics = books()
    metrics.use(Policy())
    assert goodput(count(metrics)) == {}
    metrics.use(make_policy(RoutingSpec(), slo=SLO))
    assert goodput(count(metrics)) == dict.fromkeys(SLOS, "met")
