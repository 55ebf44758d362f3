"""Blocks on their way between cache, host memory and disk: bit for bit, and never under another's name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paceline_runtime.engine.batch import BlockCopy
from paceline_runtime.engine.tiers import Memory, Place, Transfer
from paceline_runtime.model.kv_mover import KVMover

BLOCKS, HOST, DISK = 6, 3, 3


def key(number: int) -> bytes:
    return bytes([number]) * 32


def device(number: int) -> Place:
    return Place(Memory.DEVICE, number)


def host(number: int) -> Place:
    return Place(Memory.HOST, number)


def disk(number: int) -> Place:
    return Place(Memory.DISK, number)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def cache(request: pytest.FixtureRequest) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two layers, whose keys and values differ in shape, as some attention backends have them."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn((BLOCKS, 4, 2, 8), generator=generator).to(request.param),
            torch.randn((BLOCKS, 2, 8, 5), generator=generator).to(request.param),
        )
        for _ in range(2)
    ]


@pytest.fixture(params=["as bytes", "as on a GPU"])
def mover(
    cache: list[tuple[torch.Tensor, torch.Tensor]], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[KVMover]:
    mover = KVMover(cache, host_blocks=HOST, disk_blocks=DISK, folder=tmp_path)
    mover._on_cpu = request.param == "as bytes"
    yield mover
    mover.close()


def snapshot(cache: list[tuple[torch.Tensor, torch.Tensor]], block: int) -> list[torch.Tensor]:
    return [tensor[block].clone() for pair in cache for tensor in pair]


def same(cache: list[tuple[torch.Tensor, torch.Tensor]], block: int, content: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(snapshot(cache, block), content, strict=True))


def test_a_block_comes_back_bit_for_bit_through_every_memory(
    cache: list[tuple[torch.Tensor, torch.Tensor]], mover: KVMover
) -> None:
    content, other = snapshot(cache, 1), snapshot(cache, 2)
    report = mover.execute([Transfer(device(1), host(0), key(1)), Transfer(device(2), disk(1), key(2))])
    assert not report.failed
    assert set(report.seconds) == {(Memory.DEVICE, Memory.HOST), (Memory.DEVICE, Memory.DISK)}
    assert not mover.execute([Transfer(host(0), disk(2), key(1))]).failed
    for tensor in (tensor for pair in cache for tensor in pair):
        tensor.zero_()
    report = mover.execute([Transfer(disk(2), device(4), key(1)), Transfer(disk(1), device(5), key(2))])
    assert not report.failed
    assert same(cache, 4, content)
    assert same(cache, 5, other)
    assert not torch.count_nonzero(cache[0][0][:4])


def test_many_blocks_at_once_keep_their_places(cache: list[tuple[torch.Tensor, torch.Tensor]], tmp_path: Path) -> None:
    pair = cache[0]
    large = [(pair[0].repeat(40, 1, 1, 1), pair[1].repeat(40, 1, 1, 1))]
    for number in range(len(large[0][0])):
        large[0][0][number] = number % 128
    mover = KVMover(large, host_blocks=200)
    mover.execute([Transfer(device(n), host(199 - n), bytes([n]) * 32) for n in range(200)])
    large[0][0].zero_()
    mover.execute([Transfer(host(199 - n), device(n), bytes([n]) * 32) for n in range(200)])
    assert [int(large[0][0][n, 0, 0, 0]) for n in range(200)] == [n % 128 for n in range(200)]
    mover.close()


@pytest.mark.parametrize("place", [host(0), disk(0)], ids=["host", "disk"])
def test_a_place_hands_nothing_out_under_another_hash(
    cache: list[tuple[torch.Tensor, torch.Tensor]], mover: KVMover, place: Place
) -> None:
    mover.execute([Transfer(device(1), place, key(1))])
    mover.execute([Transfer(device(2), place, key(2))])
    before = snapshot(cache, 5)
    wrong = Transfer(place, device(5), key(1))
    never = Transfer(Place(place.memory, 1), device(4), key(3))
    assert set(mover.execute([wrong, never]).failed) == {wrong, never}
    assert same(cache, 5, before)


def test_a_damaged_block_on_disk_is_a_miss(cache: list[tuple[torch.Tensor, torch.Tensor]], mover: KVMover) -> None:
    content = snapshot(cache, 2)
    mover.execute([Transfer(device(1), disk(0), key(1)), Transfer(device(2), disk(1), key(2))])
    pool = mover._pools[Memory.DISK]
    descriptor = pool._file.fileno()  # type: ignore[attr-defined]
    byte = os.pread(descriptor, 1, 3)
    os.pwrite(descriptor, bytes([byte[0] ^ 1]), 3)
    before = snapshot(cache, 4)
    bad, good = Transfer(disk(0), device(4), key(1)), Transfer(disk(1), device(5), key(2))
    assert mover.execute([bad, good]).failed == (bad,)
    assert same(cache, 4, before)
    assert same(cache, 5, content)


def test_a_damaged_block_is_not_passed_on(cache: list[tuple[torch.Tensor, torch.Tensor]], mover: KVMover) -> None:
    mover.execute([Transfer(device(1), disk(0), key(1))])
    wrong = Transfer(host(0), disk(0), key(2))
    assert mover.execute([wrong]).failed == (wrong,)
    # What was there before is gone too: nobody may take it for either.
    gone = Transfer(disk(0), device(3), key(1))
    assert mover.execute([gone]).failed == (gone,)


def test_a_file_that_is_gone_bad_fails_the_transfer_and_not_the_process(
    cache: list[tuple[torch.Tensor, torch.Tensor]], mover: KVMover
) -> None:
    mover.execute([Transfer(device(1), disk(0), key(1))])
    os.ftruncate(mover._pools[Memory.DISK]._file.fileno(), 0)  # type: ignore[attr-defined]
    gone = Transfer(disk(0), device(3), key(1))
    assert mover.execute([gone]).failed == (gone,)


def test_room_that_the_disk_does_not_have_is_found_at_the_start(
    cache: list[tuple[torch.Tensor, torch.Tensor]], tmp_path: Path
) -> None:
    with pytest.raises(OSError, match=r"space|large"):
        KVMover(cache, disk_blocks=2**46, folder=tmp_path)


def test_copies_within_the_cache_leave_their_sources(
    cache: list[tuple[torch.Tensor, torch.Tensor]], mover: KVMover
) -> None:
    content = snapshot(cache, 1)
    mover.copy([BlockCopy(1, 3), BlockCopy(1, 4), BlockCopy(2, 5)])
    assert same(cache, 3, content)
    assert same(cache, 4, content)
    assert same(cache, 1, content)
    assert same(cache, 5, snapshot(cache, 2))
