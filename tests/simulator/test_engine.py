"""The simulated replica: its time, its cache, and that nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_simulator.engine import BLOCK_TOKENS, Model, Replica, Request

MODEL = Model()


def request(number: int, prompt: int, output: int, blocks: tuple[int, ...] | None = None) -> Request:
    names = blocks if blocks is not None else tuple(number * 1000 + part for part in range(-(-prompt // BLOCK_TOKENS)))
    return Request(number, 0.0, prompt, output, names, bytes)


def serve(replica: Replica, *requests: Request) -> None:
    for one in requests:
        replica.offer(one)
    while not replica.idle:
        replica.advance(replica.now + 1.0)


def test_one_request_takes_its_chunks_and_then_a_step_a_token() -> None:
    replica = Replica(MODEL)
    one = request(0, 5000, 11)
    serve(replica, one)
    chunks = [(2048, 0), (2048, 2048), (904, 4096)]
    prompt = sum(MODEL.weights(c) + c * (MODEL.chunk_token + MODEL.chunk_context * before) for c, before in chunks)
    assert one.first_token == pytest.approx(prompt / 1000)
    steps = sum(MODEL.weights(1) + MODEL.decode_context * (5000 + step) for step in range(10))
    assert one.done - one.first_token == pytest.approx(steps / 1000)


def test_the_step_time_is_near_what_was_measured() -> None:
    measured = {1: 10.1, 256: 13.9, 512: 22.2, 1024: 39.5, 2048: 76.6}
    for tokens, ms in measured.items():
        assert MODEL.weights(tokens) - MODEL.other == pytest.approx(ms, rel=0.05)


def test_steps_taken_at_once_are_the_same_steps() -> None:
    fine, coarse = Replica(MODEL), Replica(MODEL)
    ends = []
    for replica, pause in ((fine, 0.001), (coarse, 100.0)):
        requests = [request(number, 700 * (number + 1), 50 * (number + 1)) for number in range(5)]
        for one in requests:
            replica.offer(one)
        while not replica.idle:
            replica.advance(replica.now + pause)
        ends.append([one.done for one in requests])
    assert ends[0] == pytest.approx(ends[1])


def test_a_prefix_is_computed_once_while_it_is_kept() -> None:
    replica = Replica(MODEL)
    shared = tuple(range(10))
    first, second = request(0, 5120, 2, shared), request(1, 5632, 2, (*shared, 99))
    serve(replica, first)
    serve(replica, second)
    assert (first.cached_tokens, second.cached_tokens) == (0, 5120)
    assert replica.hits == 5120


def test_the_cache_is_bounded_and_the_oldest_goes() -> None:
    replica = Replica(Model(kv_tokens=20 * BLOCK_TOKENS))
    for number in range(4):
        serve(replica, request(number, 8 * BLOCK_TOKENS, 2))
    again, gone = request(3, 8 * BLOCK_TOKENS, 2), request(0, 8 * BLOCK_TOKENS, 2)
    serve(replica, again)
    serve(replica, gone)
    assert again.cached_tokens == 7 * BLOCK_TOKENS  # the last token is always computed
    assert gone.cached_tokens == 0


def test_a_request_waits_until_it_fits() -> None:
    replica = Replica(Model(kv_tokens=8 * BLOCK_TOKENS))
    one, two = request(0, 5 * BLOCK_TOKENS, 100), request(1, 5 * BLOCK_TOKENS, 100)
    replica.offer(one)
    replica.offer(two)
    replica.advance(0.5)
    assert replica.report()[:3] == (1, 1, 64)
    serve(replica)
    assert two.first_token > one.done


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 300), st.integers(0, 5), st.floats(0, 2)), max_size=25),
    st.integers(10_000, 60_000),
)
def test_every_request_ends_once_in_order_of_time_and_nothing_is_left(
    asked: list[tuple[int, int, int, float]], kv_tokens: int
) -> None:
    replica = Replica(Model(kv_tokens=kv_tokens, max_seqs=8))
    requests = []
    for number, (prompt, output, family, gap) in enumerate(asked):
        replica.advance(replica.now + gap)
        one = request(number, prompt, output, tuple(family * 100 + part for part in range(-(-prompt // BLOCK_TOKENS))))
        requests.append(one)
        replica.offer(one)
    serve(replica)
    times = [at for at, _, _ in replica.events]
    assert times == sorted(times)
    assert sorted(one.number for _, one, report in replica.events if report is None) == list(range(len(asked)))
    assert all(0 < one.first_token <= one.done for one in requests)
    assert replica.computed + replica.hits == sum(one.prompt_tokens for one in requests)
    running, waiting, percent, ahead, context, _ = replica.report()
    assert (running, waiting, percent, ahead, context) == (0, 0, 0, 0, 0)
    assert replica._beside == 0
