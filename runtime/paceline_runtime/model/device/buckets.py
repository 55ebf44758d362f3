"""Batch sizes for which a decode step is captured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def bucket_sizes(most: int) -> tuple[int, ...]:
    """Ascending sizes up to `most`, which is the last: powers of two, and from 8 on also halfway between them.

    A batch so has less than half of its places empty, from 8 on at most a third. An empty place costs little: a decode
    step reads the weights, whatever the batch; and each size costs some memory and a moment of the start.
    """
    sizes = {most}
    size = 1
    while size < most:
        sizes.update({size} | ({size * 3 // 2} if size >= 8 else set()))
        size *= 2
    return tuple(sorted(size for size in sizes if size <= most))


def bucket_for(count: int, sizes: Sequence[int]) -> int | None:
    """The smallest of the sizes that has room for `count` sequences; `None` if none has."""
    place = bisect_left(sizes, count)
    return sizes[place] if count > 0 and place < len(sizes) else None
