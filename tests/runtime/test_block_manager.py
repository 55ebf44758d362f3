"""The block manager: nothing lost, nothing doubled, and only computed whole blocks are found again."""

from __future__ import annotations

import pytest

from paceline_runtime.engine.block_manager import BlockManager, IntegrityError, hash_seed
from paceline_runtime.engine.request import Request
from paceline_runtime.messages import SamplingParams


def make_request(name: str, tokens: list[int]) -> Request:
    return Request(
        request_id=name,
        tokens=list(tokens),
        prompt_len=len(tokens),
        max_len=10_000,
        sampling=SamplingParams(),
        seed=0,
        arrival_time=0.0,
    )


def compute(blocks: BlockManager, request: Request) -> None:
    request.num_computed = len(request.tokens)
    blocks.register(request)


def test_waste_is_less_than_one_block_per_sequence() -> None:
    blocks = BlockManager(64, 16, prefix_caching=False)
    for count in range(1, 50):
        request = make_request("a", list(range(count)))
        assert blocks.admit(request)
        assert 0 <= len(request.blocks) * 16 - count < 16
        blocks.release(request)


def test_a_cached_prefix_is_shared_and_survives_its_first_owner() -> None:
    blocks = BlockManager(8, 4, prefix_caching=True)
    first = make_request("first", list(range(10)))
    assert blocks.admit(first)
    compute(blocks, first)
    second = make_request("second", [*range(8), 99, 98])
    assert blocks.admit(second)
    assert second.num_computed == 8
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]
    blocks.check([first, second])
    blocks.release(first)
    blocks.release(second)
    third = make_request("third", list(range(9)))
    assert blocks.admit(third)
    assert third.num_computed == 8
    blocks.check([third])


@pytest.mark.parametrize(("length", "found"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)])
def test_a_hit_is_whole_blocks_and_leaves_a_token_to_compute(length: int, found: int) -> None:
    blocks = BlockManager(16, 4, prefix_caching=True)
    warm = make_request("warm", list(range(13)))
    assert blocks.admit(warm)
    compute(blocks, warm)
    request = make_request("request", list(range(length)))
    assert blocks.admit(request)
    assert request.num_computed == found
    assert request.num_new >= 1


def test_a_full_block_is_not_found_before_it_is_computed() -> None:
    blocks = BlockManager(16, 4, prefix_caching=True)
    writer = make_request("writer", list(range(12)))
    assert blocks.admit(writer)
    writer.num_computed = 7
    blocks.register(writer)
    reader = make_request("reader", list(range(12)))
    assert blocks.admit(reader)
    assert reader.num_computed == 4


def test_the_same_tokens_after_another_prefix_are_another_block() -> None:
    blocks = BlockManager(16, 4, prefix_caching=True)
    first = make_request("first", [1, 1, 1, 1, 5, 6, 7, 8, 9])
    assert blocks.admit(first)
    compute(blocks, first)
    second = make_request("second", [2, 2, 2, 2, 5, 6, 7, 8, 9])
    assert blocks.admit(second)
    assert second.num_computed == 0


def test_a_block_is_found_only_after_the_very_prefix_it_was_computed_with() -> None:
    blocks = BlockManager(16, 4, prefix_caching=True)
    for name, tokens in (("a", [1, 1, 1, 1, 2, 2, 2, 2, 0]), ("b", [3, 3, 3, 3, 4, 4, 4, 4, 0])):
        request = make_request(name, tokens)
        assert blocks.admit(request)
        compute(blocks, request)
    mixed = make_request("mixed", [1, 1, 1, 1, 4, 4, 4, 4, 0])
    assert blocks.admit(mixed)
    assert mixed.num_computed == 4


def test_two_that_compute_the_same_prefix_at_once_keep_the_books_right() -> None:
    blocks = BlockManager(16, 4, prefix_caching=True)
    pair = [make_request(name, list(range(9))) for name in ("a", "b")]
    for request in pair:
        assert blocks.admit(request)
    assert not set(pair[0].blocks) & set(pair[1].blocks)
    for request in pair:
        compute(blocks, request)
    blocks.check(pair)
    assert blocks.num_cached == 2
    for request in pair:
        blocks.release(request)
    blocks.check([])
    assert blocks.num_free == 16


def test_the_block_free_for_longest_is_reused_first_and_is_then_no_longer_found() -> None:
    blocks = BlockManager(4, 4, prefix_caching=True)
    old, new = make_request("old", [1, 2, 3, 4, 5]), make_request("new", [6, 7, 8, 9, 10])
    for request in (old, new):
        assert blocks.admit(request)
        compute(blocks, request)
    blocks.release(old)
    blocks.release(new)
    greedy = make_request("greedy", list(range(100, 112)))
    assert blocks.admit(greedy)
    assert blocks.find_prefix(make_request("again", [1, 2, 3, 4, 5])) == []
    assert len(blocks.find_prefix(make_request("again", [6, 7, 8, 9, 10]))) == 1
    blocks.check([greedy])


def test_admission_that_does_not_fit_changes_nothing() -> None:
    blocks = BlockManager(4, 4, prefix_caching=True)
    warm = make_request("warm", list(range(8)))
    assert blocks.admit(warm)
    compute(blocks, warm)
    blocks.release(warm)
    request = make_request("request", list(range(20)))
    assert not blocks.admit(request)
    assert request.blocks == []
    assert blocks.num_free == 4
    # The two cached blocks are themselves free ones: they must not be counted as found and as free at once.
    assert not blocks.admit(make_request("reserve", list(range(12))), reserve=2)
    assert blocks.admit(make_request("fits", list(range(12))), reserve=1)


def test_growth_stops_at_the_last_free_block() -> None:
    blocks = BlockManager(2, 4, prefix_caching=False)
    request = make_request("a", [0] * 4)
    assert blocks.admit(request)
    request.tokens += [0] * 4
    assert blocks.grow(request)
    request.tokens.append(0)
    assert not blocks.grow(request)
    assert len(request.blocks) == 2


def test_with_the_prefix_cache_off_nothing_is_found() -> None:
    blocks = BlockManager(16, 4, prefix_caching=False)
    first = make_request("first", list(range(10)))
    assert blocks.admit(first)
    compute(blocks, first)
    assert blocks.find_prefix(make_request("second", list(range(10)))) == []


def test_another_model_or_block_size_has_other_hashes() -> None:
    seeds = {
        hash_seed(model, size, dtype)
        for model in ("sha256:a", "sha256:b")
        for size in (16, 32)
        for dtype in ("float32", "bfloat16")
    }
    assert len(seeds) == 8
    # Parts that run into each other when merely joined are told apart.
    assert hash_seed("m1", 6, "x") != hash_seed("m", 16, "x")


def test_freeing_twice_and_wrong_books_are_found() -> None:
    blocks = BlockManager(4, 4, prefix_caching=True)
    request = make_request("a", [0] * 8)
    assert blocks.admit(request)
    held = list(request.blocks)
    with pytest.raises(IntegrityError, match="references"):
        blocks.check([])
    blocks.release(request)
    request.blocks = held
    with pytest.raises(IntegrityError, match="freed twice"):
        blocks.release(request)
