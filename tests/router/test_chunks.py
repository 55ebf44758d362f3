"""The chunked transfer coding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_router.wire.chunks import MAX_SPLIT_EVENT, ChunkError, ChunkWalker, as_chunk, chunk_size, dechunk

PAYLOADS = st.lists(st.binary(min_size=1, max_size=40) | st.just(b"data: x\n\n") | st.just(b"0\r\n\r\n"), max_size=12)


def pieces_of(body: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(body) + 1) for cut in cuts} | {len(body)})
    return [body[a:b] for a, b in zip([0, *ends], ends, strict=False)]


@given(PAYLOADS, st.lists(st.integers(0, 10_000), max_size=30), st.booleans(), st.sampled_from([b"", b"x-a: b\r\n"]))
def test_any_split_gives_the_same_bytes_without_the_trailer_and_the_same_end(
    payloads: list[bytes], cuts: list[int], events: bool, trailer: bytes
) -> None:
    body = b"".join(map(as_chunk, payloads)) + b"0\r\n" + trailer + b"\r\n"
    walker = ChunkWalker(events=events)
    out = b""
    for piece in pieces_of(body, cuts):
        assert not walker.finished
        out += walker.feed(piece)
    assert out == body.removesuffix(trailer + b"\r\n") + b"\r\n"
    assert walker.finished
    assert walker.surplus == b""
    assert dechunk(out) == b"".join(payloads)


@given(PAYLOADS, st.lists(st.integers(0, 10_000), max_size=30))
def test_what_is_passed_on_ends_with_a_whole_chunk(payloads: list[bytes], cuts: list[int]) -> None:
    body = b"".join(map(as_chunk, payloads))
    ends = {len(b"".join(map(as_chunk, payloads[:n]))) for n in range(len(payloads) + 1)}
    walker = ChunkWalker()
    passed = 0
    for piece in pieces_of(body, cuts):
        passed += len(walker.feed(piece))
        assert passed in ends
    assert passed == len(body)


@given(PAYLOADS, st.lists(st.integers(0, 10_000), max_size=30))
def test_of_an_event_stream_only_whole_events_are_passed_on(payloads: list[bytes], cuts: list[int]) -> None:
    body = b"".join(map(as_chunk, payloads))
    walker = ChunkWalker(events=True)
    out = b""
    for piece in pieces_of(body, cuts):
        out += walker.feed(piece)
        assert out == b"" or dechunk(out).endswith((b"\n\n", b"\r\n\r\n"))


def test_an_event_ends_where_its_own_bytes_do_however_short_the_chunks() -> None:
    for end in (b"\n\n", b"\r\n\r\n"):
        event = b"data: x" + end
        chunks = [as_chunk(event[at : at + 1]) for at in range(len(event))]
        walker = ChunkWalker(events=True)
        passed = [walker.feed(chunk) for _ in range(2) for chunk in chunks]
        assert passed == [*[b""] * (len(chunks) - 1), b"".join(chunks)] * 2
        assert walker.held == 0


def test_an_event_that_spans_too_much_is_passed_on_in_parts() -> None:
    walker = ChunkWalker(events=True)
    chunk = as_chunk(b"x" * 60_000)
    out = b"".join(walker.feed(chunk) for _ in range(10))
    assert len(out) > MAX_SPLIT_EVENT


def test_bytes_after_the_end_are_told_apart() -> None:
    walker = ChunkWalker()
    assert walker.feed(b"2\r\nhi\r\n0\r\n\r\nHTTP/1.1 200") == b"2\r\nhi\r\n0\r\n\r\n"
    assert walker.finished
    assert walker.surplus == b"HTTP/1.1 200"


@pytest.mark.parametrize("line", [b"", b"0x1f", b"+1", b"-1", b"1_0", b" 1", b"g", b"ffffffffff", b"1\n"])
def test_a_size_that_is_not_plain_hexadecimal_is_refused(line: bytes) -> None:
    with pytest.raises(ChunkError):
        chunk_size(line)


def test_extensions_are_passed_over() -> None:
    assert chunk_size(b"1F;name=value") == 31


@pytest.mark.parametrize("body", [b"2\r\nhix\r\n", b"hello world\r\n", b"a" * 300, b"0\r\n" + b"x: y\r\n" * 3000])
def test_a_body_that_is_not_chunked_is_refused(body: bytes) -> None:
    with pytest.raises(ChunkError):
        ChunkWalker().feed(body)
