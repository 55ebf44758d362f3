"""Which cached blocks are let go first, when, and what is never let go."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_runtime.engine.block_manager import LEAST_TRIM, BlockManager
from paceline_runtime.engine.prefix_index import ATTENTION_TOKENS, NO_BLOCK, PrefixIndex
from paceline_runtime.engine.request import Request
from paceline_runtime.messages import SamplingParams

SIZE = 4


def make_request(name: str, tokens: Iterable[int], session: str = "") -> Request:
    ids = list(tokens)
    return Request(name, ids, len(ids), 10_000, SamplingParams(), 0, 0.0, session=session)


def serve(blocks: BlockManager, name: str, tokens: Iterable[int], session: str = "") -> int:
    """A request from its begin to its end: how many of its tokens were found."""
    request = make_request(name, tokens, session)
    assert blocks.admit(request)
    found = request.num_computed
    request.num_computed = len(request.tokens)
    blocks.register(request)
    blocks.release(request)
    blocks.check([])
    return found


def found(blocks: BlockManager, tokens: Iterable[int]) -> int:
    """Blocks of the cache that a prompt of these tokens would find."""
    return len(blocks.find_prefix(make_request("asks", [*tokens, 0])))


def test_cold_blocks_are_let_go_from_the_watermark_on_and_not_before() -> None:
    blocks = BlockManager(20, SIZE, prefix_caching=True, watermark_percent=75)
    serve(blocks, "a", range(60))
    blocks.trim()
    assert blocks.num_cold == 15
    serve(blocks, "b", range(100, 112))
    assert blocks.num_cold == 18
    blocks.trim()
    assert blocks.num_cold == 15
    assert blocks.evicted_blocks == 3
    blocks.check([])


def test_one_step_lets_a_bounded_number_go() -> None:
    blocks = BlockManager(400, SIZE, prefix_caching=True, watermark_percent=50)
    serve(blocks, "a", range(1600))
    blocks.trim()
    assert blocks.num_cold == 400 - LEAST_TRIM
    blocks.trim(200)
    assert blocks.num_cold == 400 - LEAST_TRIM - 2 * 200 // SIZE


def test_blocks_in_use_are_never_let_go() -> None:
    blocks = BlockManager(10, SIZE, prefix_caching=True, watermark_percent=50)
    running = make_request("running", range(36))
    assert blocks.admit(running)
    running.num_computed = 36
    blocks.register(running)
    for _ in range(5):
        blocks.trim()
    assert blocks.num_used == 9
    assert blocks.evicted_blocks == 0
    assert not blocks.admit(make_request("other", range(100, 108)))
    assert found(blocks, range(36)) == 9
    blocks.check([running])


def test_a_chain_loses_its_end_first() -> None:
    blocks = BlockManager(10, SIZE, prefix_caching=True)
    serve(blocks, "a", range(24))
    for left in (5, 4, 3):
        serve(blocks, f"new{left}", range(1000 * left, 1000 * left + 4 * (10 - left)))
        # Each takes all that is free and one more block than the one before.
        assert found(blocks, range(24)) <= left


def test_what_was_not_used_for_longest_goes_first_and_a_conversation_goes_together() -> None:
    blocks = BlockManager(12, SIZE, prefix_caching=True)
    serve(blocks, "old1", range(0, 12), session="old")
    serve(blocks, "new1", range(100, 112), session="new")
    serve(blocks, "old2", range(0, 20), session="old")
    serve(blocks, "new2", range(100, 120), session="new")
    # Four more blocks are wanted, two of which are free.
    serve(blocks, "other", range(200, 216))
    assert found(blocks, range(0, 20)) == 3
    assert found(blocks, range(100, 120)) == 5
    serve(blocks, "another", range(300, 312))
    assert found(blocks, range(0, 20)) == 0
    assert found(blocks, range(100, 120)) == 5


def test_a_prompt_that_many_share_outlives_what_follows_it() -> None:
    blocks = BlockManager(16, SIZE, prefix_caching=True)
    system = list(range(16))
    for index in range(20):
        serve(blocks, f"r{index}", [*system, *range(1000 + 10 * index, 1008 + 10 * index)])
    assert found(blocks, system) == 4
    serve(blocks, "large", range(5000, 5040))
    assert found(blocks, system) == 4


def test_a_block_late_in_a_long_context_is_worth_more_than_an_early_one() -> None:
    index = PrefixIndex(4, 16)
    for number, (position, group) in enumerate(((0, "short"), (ATTENTION_TOKENS // 16, "long"), (0, "last"))):
        index.insert(bytes([number]) * 32, number, NO_BLOCK, position, group)
    for number in (1, 0, 2):
        index.let_go(number)
    order = [index.pop_coldest() for _ in range(4)]
    assert [item and item[0] for item in order] == [0, 2, 1, None]


def test_hits_count_more_than_age() -> None:
    index = PrefixIndex(2, 16)
    for number in range(2):
        index.insert(bytes([number]) * 32, number, NO_BLOCK, 0, number)
    index.use(0, "another")
    index.let_go(0)
    index.let_go(1)
    popped = index.pop_coldest()
    assert popped is not None
    assert popped[0] == 1


def test_what_was_once_popular_is_let_go_in_the_end() -> None:
    index = PrefixIndex(2, 16)
    index.insert(b"popular" * 4, 0, NO_BLOCK, 0, "popular")
    for turn in range(20):
        index.use(0, f"popular{turn}")
    index.let_go(0)
    for number in range(60):
        index.insert(number.to_bytes(32, "big"), 1, NO_BLOCK, 0, number)
        index.let_go(1)
        popped = index.pop_coldest()
        assert popped is not None
        if popped[0] == 0:
            break
    else:
        raise AssertionError("it stays for ever")
    assert number >= 10


@given(st.integers(0, 2**32), st.integers(6, 24), st.sampled_from([50, 75, 100]))
@settings(max_examples=60, deadline=None)
def test_no_chain_ever_has_a_hole(seed: int, num_blocks: int, watermark: int) -> None:
    """Whatever is served and let go: a block that can be found has all blocks before it (`check` looks)."""
    rng = Random(seed)
    blocks = BlockManager(num_blocks, SIZE, prefix_caching=True, watermark_percent=watermark)
    running: list[Request] = []
    for step in range(80):
        start, length = rng.choice((0, 0, 50)), rng.randrange(1, 30)
        tokens = [*range(start, start + length // 2), *range(900 + step % 3, 900 + step % 3 + length - length // 2)]
        request = make_request(str(step), tokens, rng.choice(("", "s", "t")))
        if blocks.admit(request, reserve=rng.randrange(3)):
            running.append(request)
        for held in running:
            held.num_computed = rng.randrange(held.num_computed, len(held.tokens) + 1)
            blocks.register(held)
        if running and rng.random() < 0.6:
            blocks.release(running.pop(rng.randrange(len(running))))
        blocks.trim()
        blocks.check(running)
    for request in running:
        blocks.release(request)
    blocks.check([])
    assert blocks.num_used == 0


def test_what_two_computed_at_once_is_kept_once() -> None:
    blocks = BlockManager(8, SIZE, prefix_caching=True)
    pair = [make_request(name, range(9)) for name in "ab"]
    for request in pair:
        assert blocks.admit(request)
    assert blocks.num_used == 6
    for request in pair:
        request.num_computed = 9
        blocks.register(request)
    assert pair[0].blocks[:2] == pair[1].blocks[:2]
    assert blocks.num_used == 4
    blocks.check(pair)


def test_a_promise_is_kept_against_everybody_else() -> None:
    blocks = BlockManager(8, SIZE, prefix_caching=False)
    promised, other = make_request("promised", range(8)), make_request("other", range(8))
    assert blocks.admit(promised, promise=3)
    assert blocks.admit(other)
    assert not blocks.admit(make_request("third", range(8)))
    other.tokens += range(4)
    assert blocks.grow(other)
    other.tokens += range(4)
    assert not blocks.grow(other), "the last three are promised"
    promised.tokens += range(12)
    assert blocks.grow(promised)
    assert blocks.num_free == blocks.num_promised == 0
    blocks.check([promised, other])


@pytest.mark.parametrize("percent", [50, 75, 100])
def test_admission_is_never_kept_waiting_by_cold_blocks(percent: int) -> None:
    blocks = BlockManager(20, SIZE, prefix_caching=True, watermark_percent=percent)
    for index in range(30):
        assert serve(blocks, str(index), range(100 * index, 100 * index + 80)) == 0
        blocks.trim()
