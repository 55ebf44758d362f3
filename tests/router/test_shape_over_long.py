from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.routing import OverLongAction, OverLongSpec
from paceline_router.shape.over_long import PASS, Cut, Outcome, Pass, Refuse, Route, over_long


@dataclass
class Guess:
    prompt_tokens: int
    margin: float = 0.1
    output_tokens: int = 100

    @property
    def prompt_low(self) -> int:
        return int(self.prompt_tokens * (1 - self.margin))

    @property
    def prompt_high(self) -> int:
        return math.ceil(self.prompt_tokens * (1 + self.margin))


CUT = OverLongSpec(action=OverLongAction.CUT)
ROUTE = OverLongSpec(action=OverLongAction.ROUTE)


def words(outcome: Outcome) -> str:
    assert not isinstance(outcome, Pass)
    return outcome.words


def test_a_limit_that_is_not_known_refuses_nobody() -> None:
    assert over_long(None, None, Guess(10**6), 10**6) is PASS


def test_a_refusal_needs_the_lower_bound_to_be_over_the_limit() -> None:
    assert over_long(None, 1000, Guess(1000), None) is PASS
    refused = over_long(None, 1000, Guess(1200), None)
    assert isinstance(refused, Refuse)
    assert "about 1200 tokens (at least 1080)" in refused.words
    assert "1000 is the most" in refused.words


def test_what_the_client_allows_for_the_answer_counts() -> None:
    assert over_long(None, 1000, Guess(100), 800) is PASS
    assert isinstance(over_long(None, 1000, Guess(100), 950), Refuse)


def test_above_tokens_comes_before_the_pools_own_limit() -> None:
    spec = OverLongSpec(above_tokens=500)
    assert isinstance(over_long(spec, 10_000, Guess(700), None), Refuse)
    assert isinstance(over_long(spec, None, Guess(700), None), Refuse)


def test_a_route_follows_the_estimate_itself_and_the_expected_answer() -> None:
    assert over_long(ROUTE, 1000, Guess(900), None, ("long", 8000)) is PASS
    routed = over_long(ROUTE, 1000, Guess(950), None, ("long", 8000))
    assert isinstance(routed, Route)
    assert routed.pool == "long"
    assert "about 1050 tokens are more than 1000" in routed.words


def test_a_named_pool_comes_before_the_longest() -> None:
    spec = OverLongSpec(action=OverLongAction.ROUTE, pool="archive")
    outcome = over_long(spec, 1000, Guess(5000), None, ("long", 8000))
    assert isinstance(outcome, Route)
    assert outcome.pool == "archive"


def test_what_no_pool_takes_is_refused_with_the_longest_pools_limit() -> None:
    refused = over_long(ROUTE, 1000, Guess(10_000), None, ("long", 8000))
    assert isinstance(refused, Refuse)
    assert "8000 is the most that is taken here by the longest pool, long" in refused.words
    assert isinstance(over_long(ROUTE, 1000, Guess(10_000), None, None), Refuse)


def test_a_cut_leaves_room_for_a_prompt_at_its_upper_bound() -> None:
    cut = over_long(CUT, 1000, Guess(500), 900)
    assert isinstance(cut, Cut)
    assert cut.max_tokens == 450
    assert "from 900 to 450" in cut.words


def test_a_prompt_is_never_cut() -> None:
    refused = over_long(CUT, 1000, Guess(2000), 10)
    assert isinstance(refused, Refuse)
    assert "a prompt is never cut" in refused.words


def test_a_prompt_that_may_fit_is_left_to_the_replica() -> None:
    assert over_long(CUT, 1000, Guess(1005), 10) is PASS
    narrow = over_long(CUT, 1000, Guess(950), 100)
    assert isinstance(narrow, Cut)
    assert narrow.max_tokens == 50


@given(
    st.sampled_from([None, CUT, ROUTE]),
    st.integers(16, 5000),
    st.integers(1, 10_000),
    st.none() | st.integers(0, 5000),
    st.sampled_from([0.05, 0.2, 0.5]),
)
def test_nobody_is_harmed_by_a_guess(
    spec: OverLongSpec | None, limit: int, prompt: int, max_tokens: int | None, margin: float
) -> None:
    guess = Guess(prompt, margin)
    outcome = over_long(spec, limit, guess, max_tokens, ("long", 4 * limit))
    if isinstance(outcome, Refuse):
        assert guess.prompt_low + (max_tokens or 1) > limit
    if isinstance(outcome, Cut):
        assert max_tokens is not None
        assert 1 <= outcome.max_tokens <= max_tokens
        assert outcome.max_tokens + prompt <= limit
    if guess.prompt_high + (max_tokens or guess.output_tokens) < limit:
        assert outcome is PASS
