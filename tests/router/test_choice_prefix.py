"""The prefix index: what matches, what is forgotten, and that both implementations agree."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_router.choice import native
from paceline_router.choice.native import NativeUnavailable, library_path, make_index
from paceline_router.choice.prefix import (
    LARGE,
    MAX_BLOCKS,
    NOTED_SHARE,
    SLOTS,
    SMALL,
    SMALL_UNTIL,
    NativePrefixIndex,
    PrefixIndex,
    PythonPrefixIndex,
    block_ends,
)

Make = Callable[[int, int], PrefixIndex]


def compiled(blocks: int, slots: int) -> PrefixIndex:
    library = native.load()
    assert library is not None, "these tests need a C compiler"
    return NativePrefixIndex(library, blocks, slots)


def in_python(blocks: int, slots: int) -> PrefixIndex:
    return PythonPrefixIndex(blocks, slots)


@pytest.fixture(params=[compiled, in_python])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def block(name: str, size: int = SMALL) -> bytes:
    return (name.encode() + b" ").ljust(size, b".")


def holders(index: PrefixIndex, text: bytes, salt: int = 0) -> dict[int, int]:
    """By slot, how many bytes of the text it holds."""
    index.match(text, salt)
    found: dict[int, int] = {}
    for size, mask in index.levels:
        for slot in range(SLOTS):
            if mask >> slot & 1:
                found.setdefault(slot, size)
    return found


def test_a_text_is_found_where_it_was_sent(make: Make) -> None:
    index = make(100, 64)
    text = block("one") + block("two") + b"a rest that fills no block"
    assert index.match(text, 0) == 0
    index.insert(5)
    assert holders(index, text) == {5: 2 * SMALL}
    assert index.total == 2 * SMALL
    assert holders(index, block("one") + block("other")) == {5: SMALL}


def test_a_block_that_comes_later_in_another_text_is_not_a_prefix(make: Make) -> None:
    index = make(100, 64)
    fine, bad = block("What a fine day"), block("Not a bad day today")
    for slot, text in ((1, fine), (2, bad)):
        index.match(text, 0)
        index.insert(slot)
    assert holders(index, bad + fine) == {2: SMALL}


def test_tenants_do_not_see_each_other(make: Make) -> None:
    index = make(100, 64)
    text = block("secret")
    index.match(text, 11)
    index.insert(1)
    assert [holders(index, text, salt) for salt in (11, 12, 0)] == [{1: SMALL}, {}, {}]


def test_a_salt_may_be_any_hash(make: Make) -> None:
    index = make(100, 64)
    for salt in ((1 << 63) - 1, (1 << 31) - 2, hash("a") & ((1 << 63) - 1)):
        index.match(block("x"), salt)
        index.insert(1)
        assert holders(index, block("x"), salt) == {1: SMALL}


def test_levels_say_who_holds_how_much(make: Make) -> None:
    index = make(100, 64)
    blocks = [block(str(number)) for number in range(6)]
    for slot, count in ((0, 2), (1, 4), (2, 4), (3, 6)):
        index.match(b"".join(blocks[:count]), 7)
        index.insert(slot)
    assert index.match(b"".join(blocks) + block("more"), 7) == 6 * SMALL
    assert index.levels == [(6 * SMALL, 0b1000), (4 * SMALL, 0b1110), (2 * SMALL, 0b1111)]
    assert index.fresh == 0
    index.match(b"".join(blocks[:4]), 7)
    assert index.fresh == 0b1110


def test_memory_is_bounded_and_what_was_used_lately_stays(make: Make) -> None:
    index = make(8, 64)
    kept = block("kept") + block("kept too")
    for number in range(50):
        index.match(kept, 0)
        index.insert(0)
        index.match(block(f"passing {number}"), 0)
        index.insert(1)
        assert len(index) <= 8
    assert holders(index, kept) == {0: 2 * SMALL}
    assert holders(index, block("passing 3")) == {}


def test_children_go_before_their_parents(make: Make) -> None:
    index = make(6, 64)
    parent = block("parent")
    for number in range(5):
        index.match(parent + block(f"child {number}"), 0)
        index.insert(0)
    index.match(block("a") + block("b"), 0)
    index.insert(1)
    assert holders(index, parent + block("child 0")) == {0: SMALL}


def test_what_a_replica_cannot_hold_any_more_is_not_believed(make: Make) -> None:
    index = make(1000, 64)
    index.room(3, 20 * SMALL)
    old, kept = block("old"), block("kept")
    for text in (old, kept):
        index.match(text, 0)
        index.insert(3)
    index.match(old, 0)
    index.insert(4)
    for number in range(20):
        index.match(block(f"n{number}"), 0)
        index.insert(3)
        index.match(kept, 0)
        index.insert(3)
    assert holders(index, old) == {4: SMALL}
    assert holders(index, kept) == {3: SMALL}


def test_forgetting_costs_by_what_was_noted_and_not_by_what_the_index_holds(make: Make) -> None:
    index = make(8192, 64)
    for number in range(8192):
        index.match(block(f"of another {number}"), 0)
        index.insert(1)
    assert len(index) == 8192
    index.room(3, 20 * SMALL)
    begin = index.swept
    for number in range(2000):
        index.match(block(f"n{number}"), 0)
        index.insert(3)
    # Two hundred generations have ended, each with ten blocks.
    assert 0 < index.swept - begin <= 2000
    assert holders(index, block("n0")) == {}
    assert holders(index, block("n1999")) == {3: SMALL}
    assert holders(index, block("of another 8191")) == {1: SMALL}


def test_a_replica_with_a_large_cache_is_forgotten_at_a_bounded_price(make: Make) -> None:
    index = make(1024, 64)
    index.room(3, 2000 * SMALL)
    sent = 10_000
    for number in range(sent):
        index.match(block(f"n{number}"), 0)
        index.insert(3)
    assert 0 < index.swept <= NOTED_SHARE * sent
    assert holders(index, block(f"n{sent - 1}")) == {3: SMALL}
    index.forget(3)
    assert holders(index, block(f"n{sent - 1}")) == {}


def test_a_block_that_took_anothers_room_is_not_forgotten_for_it(make: Make) -> None:
    index = make(4, 64)
    index.room(3, 100 * SMALL)
    for slot, names in ((3, "abcd"), (5, "efgh")):  # efgh take the rooms of abcd, which are noted for 3
        for name in names:
            index.match(block(name), 0)
            index.insert(slot)
    index.forget(3)
    for name in "efgh":
        assert holders(index, block(name)) == {5: SMALL}


def test_a_replica_that_is_gone_is_forgotten(make: Make) -> None:
    index = make(100, SLOTS)
    text = block("x")
    for slot in (0, 63, 64, 255):
        index.match(text, 0)
        index.insert(slot)
    assert set(holders(index, text)) == {0, 63, 64, 255}
    index.forget(64)
    index.forget(0)
    assert set(holders(index, text)) == {63, 255}


def test_visits_count_the_texts_that_part_behind_a_block(make: Make) -> None:
    index = make(1000, 64)
    shared = block("system prompt")
    for number in range(10):
        index.match(shared + block(f"user {number}"), 0)
        index.insert(0)
    index.match(shared + block("user 10"), 0)
    assert index.visits == 9
    index.match(shared + block("user 3") + block("and on"), 0)
    assert index.visits == 0


def test_blocks_are_small_first_and_large_later() -> None:
    assert block_ends(255) == []
    assert block_ends(700) == [256, 512]
    assert block_ends(SMALL_UNTIL + LARGE)[-2:] == [SMALL_UNTIL, SMALL_UNTIL + LARGE]
    assert len(block_ends(50_000_000)) == MAX_BLOCKS


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.lists(st.integers(0, 2), max_size=8), st.integers(0, 255), st.integers(0, 1)),
        st.tuples(st.just("forget"), st.integers(0, 255)),
        st.tuples(st.just("room"), st.integers(0, 255), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 40), st.booleans())
def test_both_implementations_agree(steps: list[tuple[object, ...]], blocks: int, wide: bool) -> None:
    slots = SLOTS if wide else 64
    one, other = compiled(blocks, slots), in_python(blocks, slots)
    few = [0, 1, 2, 63] + ([64, 130, 255] if wide else [])
    for step in steps:
        match step:
            case "send", list(names), int(slot), int(salt):
                # Three sizes, so that large blocks come into play.
                sizes = (SMALL, 4 * SMALL, LARGE)
                text = b"".join(block(str(name), sizes[name]) for name in names)
                assert one.match(text, salt) == other.match(text, salt)
                for name in ("total", "matched", "visits", "fresh", "levels"):
                    assert getattr(one, name) == getattr(other, name), name
                one.insert(few[slot % len(few)])
                other.insert(few[slot % len(few)])
            case "forget", int(slot):
                one.forget(few[slot % len(few)])
                other.forget(few[slot % len(few)])
            case "room", int(slot), int(size):
                one.room(few[slot % len(few)], size * SMALL)
                other.room(few[slot % len(few)], size * SMALL)
        assert len(one) == len(other) <= blocks


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    native.load.cache_clear()
    yield tmp_path
    native.load.cache_clear()


def test_several_processes_build_and_the_next_finds_it(empty_cache: Path) -> None:
    code = "from paceline_router.choice.native import make_index; print(type(make_index(9, 9)).__name__)"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert {process.communicate(timeout=60)[0] for process in started} == {"NativePrefixIndex\n"}
    (made,) = empty_cache.glob("native/*/*")
    before = made.stat()
    assert library_path() == made
    assert made.stat().st_mtime_ns == before.st_mtime_ns


def test_without_a_compiler_python_serves_and_says_so(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert [type(make_index(9, 9)) for _ in range(2)] == [PythonPrefixIndex] * 2
    (record,) = caplog.records
    assert "there is no C compiler; install gcc, or name one in CC" in record.getMessage()


def test_what_the_compiler_says_is_told(empty_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\necho "prefix.c:1: error: stdint.h not found" >&2; exit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(NativeUnavailable, match=r"could not build it: prefix\.c:1: error: stdint\.h not found"):
        library_path()
    assert not list(empty_cache.glob("native/*/*"))


def test_where_nothing_can_be_kept_it_is_built_for_this_process(empty_cache: Path) -> None:
    (empty_cache / "native").touch()
    path = library_path()
    assert not path.is_relative_to(empty_cache)
    native.open_library(path)
