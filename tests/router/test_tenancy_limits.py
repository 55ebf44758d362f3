"""Token buckets: what is let in, what is owed, and whether the time to come back is true."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.tenancy import TenancySpec
from paceline_router.tenancy.buckets import short
from paceline_router.tenancy.tenant import Tenant
from paceline_router.tenancy.tenants import Tenants
from paceline_router.wire.answers import Refusal

START = 1_000_000.0


def limited(share: float = 1.0, **default: int) -> tuple[Tenants, Tenant]:
    made = Tenants()
    use(made, share, **default)
    return made, made.identify({"x-paceline-tenant": b"batch"})


def use(made: Tenants, share: float = 1.0, **default: int) -> None:
    made.use(TenancySpec.model_validate_json(json.dumps({"default": default})), share=share)


def retry_after(refusal: Refusal | None) -> int:
    assert refusal is not None
    assert refusal.status == 429
    return int(refusal.answer.headers["retry-after"])


def message(refusal: Refusal | None) -> str:
    assert refusal is not None
    return str(refusal.answer.body["error"]["message"])


def rejected(tenant: Tenant) -> dict[str, int]:
    return {reason: count for reason, count in tenant.counts.rejected.items() if count}


def test_without_limits_everything_is_let_in() -> None:
    made, tenant = limited()
    assert all(made.reserve(tenant, 10**9, START) is None for _ in range(1000))
    assert made.rate_headers(tenant, START) == b""


def test_ten_seconds_worth_of_requests_may_come_at_once_and_then_the_rate_holds() -> None:
    made, tenant = limited(requestsPerMinute=60)
    assert [made.reserve(tenant, 1, START) is None for _ in range(12)] == [True] * 10 + [False] * 2
    refusal = made.reserve(tenant, 1, START)
    assert retry_after(refusal) == 1
    assert message(refusal) == (
        "Rate limit reached for the tenant `batch`: 60 requests a minute, at most 10 at once, 0 left. Try again in 1 s."
    )
    assert made.reserve(tenant, 1, START + 1) is None
    assert made.reserve(tenant, 1, START + 1) is not None
    assert rejected(tenant) == {"requests": 4}


def test_a_minutes_worth_of_tokens_may_come_at_once_and_unused_ones_come_back() -> None:
    made, tenant = limited(tokensPerMinute=6000)
    assert made.reserve(tenant, 4000, START) is None
    refusal = made.reserve(tenant, 3000, START)
    assert retry_after(refusal) == 10
    assert message(refusal) == (
        "Rate limit reached for the tenant `batch`: 6000 tokens a minute, 2000 left, and about 3000 would be needed "
        "(prompt and expected answer). Try again in 10 s."
    )
    made.settle(tenant, 4000, 1000, 500, START)
    assert made.reserve(tenant, 4500, START) is None
    assert made.reserve(tenant, 1, START) is not None
    assert (tenant.counts.prompt_tokens, tenant.counts.output_tokens) == (1000, 500)


def test_what_was_used_beyond_the_estimate_is_owed() -> None:
    made, tenant = limited(tokensPerMinute=6000)
    assert made.reserve(tenant, 100, START) is None
    made.settle(tenant, 100, 3000, 9000, START)
    refusal = made.reserve(tenant, 100, START)
    assert retry_after(refusal) == 61
    assert refusal is not None
    assert refusal.answer.headers["x-ratelimit-remaining-tokens"] == "0"


def test_tokens_that_are_not_known_leave_the_reservation_as_it_is() -> None:
    made, tenant = limited(tokensPerMinute=6000)
    for prompt, output in ((None, None), (200, None), (None, 1), (1500, None)):
        use(made)
        use(made, tokensPerMinute=6000)
        assert made.reserve(tenant, 1000, START) is None
        made.settle(tenant, 1000, prompt, output, START)
        left = 6000 - max(1000, (prompt or 0) + (output or 0))
        assert b"x-ratelimit-remaining-tokens: %d\r\n" % left in made.rate_headers(tenant, START)


def test_a_request_beyond_a_whole_minutes_tokens_is_told_that_waiting_does_not_help() -> None:
    made, tenant = limited(tokensPerMinute=6000)
    refusal = made.reserve(tenant, 6001, START)
    assert refusal is not None
    assert refusal.status == 429
    assert "retry-after" not in refusal.answer.headers
    assert refusal.answer.headers["x-should-retry"] == "false"
    assert "about 6001 tokens" in message(refusal)
    assert "of 6000 a minute" in message(refusal)
    assert made.reserve(tenant, 6000, START) is None
    assert rejected(tenant) == {"too_large": 1}


def test_a_refused_request_takes_nothing() -> None:
    made, tenant = limited(requestsPerMinute=60, tokensPerMinute=600)
    assert made.reserve(tenant, 600, START) is None
    for _ in range(100):
        assert made.reserve(tenant, 600, START) is not None
    headers = made.rate_headers(tenant, START)
    assert b"x-ratelimit-remaining-requests: 9\r\n" in headers


def test_a_request_that_reached_no_replica_takes_nothing() -> None:
    made, tenant = limited(requestsPerMinute=60, tokensPerMinute=600)
    for _ in range(100):
        assert made.reserve(tenant, 600, START) is None
        made.give_back(tenant, 600, START)


def test_the_headers_are_those_of_openai() -> None:
    made, tenant = limited(requestsPerMinute=600, tokensPerMinute=6000)
    assert made.reserve(tenant, 1500, START) is None
    assert made.rate_headers(tenant, START).decode().splitlines() == [
        "x-ratelimit-limit-requests: 600",
        "x-ratelimit-remaining-requests: 99",
        "x-ratelimit-reset-requests: 100ms",
        "x-ratelimit-limit-tokens: 6000",
        "x-ratelimit-remaining-tokens: 4500",
        "x-ratelimit-reset-tokens: 15s",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0s"), (0, "0s"), (0.0001, "1ms"), (0.25, "250ms"), (6.42, "6.5s"), (90, "1m30s"), (7200.5, "2h0m1s")],
)
def test_times_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert short(seconds) == text


def test_routers_that_share_a_limit_let_in_as_much_together() -> None:
    routers = [limited(1 / 3, requestsPerMinute=600, tokensPerMinute=60_000, maxConcurrent=7) for _ in range(3)]
    admitted = sum(made.reserve(tenant, 10, START) is None for made, tenant in routers for _ in range(1000))
    assert admitted == pytest.approx(100, abs=3)
    assert [tenant.slots for _, tenant in routers] == [3, 3, 3]
    assert b"x-ratelimit-limit-requests: 600\r\n" in routers[0][0].rate_headers(routers[0][1], START)


def test_a_request_larger_than_one_routers_share_is_let_in_and_leaves_a_debt() -> None:
    made, tenant = limited(0.25, tokensPerMinute=6000)
    assert made.reserve(tenant, 6000, START) is None
    assert retry_after(made.reserve(tenant, 1, START)) == 181
    made, tenant = limited(0.25, tokensPerMinute=6000)
    assert made.reserve(tenant, 15, START) is None
    assert retry_after(made.reserve(tenant, 6000, START)) == 1


def test_a_limit_below_one_request_in_ten_seconds_still_lets_single_ones_in() -> None:
    made, tenant = limited(requestsPerMinute=1)
    assert made.reserve(tenant, 1, START) is None
    assert retry_after(made.reserve(tenant, 1, START)) == 60
    assert made.reserve(tenant, 1, START + 60) is None


def test_a_changed_limit_keeps_what_was_used() -> None:
    made, tenant = limited(tokensPerMinute=6000)
    assert made.reserve(tenant, 5000, START) is None
    use(made, tokensPerMinute=12_000)
    assert b"x-ratelimit-remaining-tokens: 7000\r\n" in made.rate_headers(tenant, START)
    use(made, tokensPerMinute=3000)
    assert b"x-ratelimit-remaining-tokens: 0\r\n" in made.rate_headers(tenant, START)
    # 2000 tokens of debt at 50 a second, and one more.
    assert retry_after(made.reserve(tenant, 1, START)) == 41


def test_a_clock_that_was_set_back_stops_the_buckets_no_longer_than_until_it_is_noticed() -> None:
    made, tenant = limited(requestsPerMinute=60)
    for _ in range(10):
        assert made.reserve(tenant, 1, START) is None
    back = START - 86_400
    assert retry_after(made.reserve(tenant, 1, back)) == 1
    made.tidy(back + 0.5)
    assert made.reserve(tenant, 1, back + 1.0) is not None
    assert made.reserve(tenant, 1, back + 1.5) is None
    assert made.reserve(tenant, 1, back + 1.5) is not None


def test_who_says_that_it_came_long_ago_moves_no_clock() -> None:
    made, tenant = limited(requestsPerMinute=60)
    admitted = 0
    for number in range(1000):
        now = START + number * 0.001
        made.tidy(now)
        admitted += made.reserve(tenant, 1, now - 60 * (number % 2)) is None
    assert admitted == 10


TOKENS = st.integers(0, 3000)
STEP = st.floats(0, 90, allow_nan=False)


class Model:
    """The same bucket as a level that is filled as time goes by."""

    def __init__(self, per_minute: int, burst: float) -> None:
        self.rate = per_minute / 60.0
        self.capacity = self.rate * burst
        self.level = self.capacity
        self.at = START

    def fill(self, now: float) -> None:
        self.level = min(self.capacity, self.level + (now - self.at) * self.rate)
        self.at = now

    def lacks(self, cost: float) -> float:
        return min(cost, self.capacity) - self.level


@given(
    st.integers(1, 600),
    st.integers(3000, 20_000),
    st.lists(st.tuples(STEP, TOKENS, st.integers(0, 6000), st.booleans()), max_size=60),
)
def test_the_buckets_do_as_a_level_that_fills_up_and_every_time_to_come_back_is_true(
    requests: int, tokens: int, calls: list[tuple[float, int, int, bool]]
) -> None:
    made, tenant = limited(requestsPerMinute=requests, tokensPerMinute=tokens)
    models = Model(requests, 10.0), Model(tokens, 60.0)
    now = START
    running: list[int] = []
    for step, asked, used, end in calls:
        now += step
        for model in models:
            model.fill(now)
        if end and running:
            reserved = running.pop(0)
            made.settle(tenant, reserved, used, 0, now)
            models[1].level = min(models[1].capacity, models[1].level + reserved - used)
            continue
        lacks = max(model.lacks(cost) / model.rate for model, cost in zip(models, (1, asked), strict=True))
        refusal = made.reserve(tenant, asked, now)
        if refusal is None:
            assert lacks <= 1e-4
            models[0].level -= 1
            models[1].level -= asked
            running.append(asked)
            continue
        assert lacks >= -1e-4
        after = retry_after(refusal)
        assert lacks - 1e-4 <= after <= max(1.0, lacks + 1.0 + 1e-4)
        # At the time it was told, this very request is let in, if nobody else came.
        now += after
        for model in models:
            model.fill(now)
        assert made.reserve(tenant, asked, now) is None
        models[0].level -= 1
        models[1].level -= asked
        running.append(asked)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 500), st.floats(0.2, 3.0)), min_size=1, max_size=80))
def test_no_more_tokens_are_used_over_any_span_than_the_rate_the_burst_and_what_runs_beyond_its_estimate(
    calls: list[tuple[float, int, float]],
) -> None:
    made, tenant = limited(tokensPerMinute=6000)
    now = START
    total = worst = 0.0
    for step, asked, factor in calls:
        now += step
        if made.reserve(tenant, asked, now) is None:
            used = int(asked * factor)
            made.settle(tenant, asked, used, 0, now)
            total += used
            worst = max(worst, used - asked)
        # One request at a time: at most one of them can have been let in on an estimate that was too small.
        assert total <= 6000 + (now - START) * 100 + max(worst, 0.0) + 1e-3
