"""How far two sequences are from each other. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def first_divergence(left: Sequence[Hashable], right: Sequence[Hashable]) -> int | None:
    """The first position at which they differ, counted from 0; None where they are equal.

    Where one is the beginning of the other, that is the shorter one's length.
    """
    for position, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return position
    return None if len(left) == len(right) else min(len(left), len(right))


def edit_distance(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and replacements that make one of the other (Levenshtein).

    Bit-parallel (Myers 1999, in the form of Hyyrö 2003) over Python's long integers: one step for each element of
    `right`, whose cost grows with the length of `left` in machine words. 4,000 tokens against 4,000 take milliseconds.
    """
    start = first_divergence(left, right)
    if start is None:
        return 0
    stop_left, stop_right = len(left), len(right)
    while stop_left > start and stop_right > start and left[stop_left - 1] == right[stop_right - 1]:
        stop_left, stop_right = stop_left - 1, stop_right - 1
    rows = stop_left - start
    if rows == 0:
        return stop_right - start

    where: dict[Hashable, int] = {}
    for row in range(rows):
        one = left[start + row]
        where[one] = where.get(one, 0) | (1 << row)
    mask, last = (1 << rows) - 1, 1 << (rows - 1)
    # Bit `i` of `up`/`down`: in this column, cell `i` is one more/one less than the cell above it.
    up, down, score = mask, 0, rows
    for column in range(start, stop_right):
        equal = where.get(right[column], 0)
        diagonal = (((equal & up) + up) ^ up) | equal | down
        more = down | ~(diagonal | up)
        less = up & diagonal
        if more & last:
            score += 1
        elif less & last:
            score -= 1
        more, less = (more << 1) | 1, less << 1
        up = (less | ~(diagonal | more)) & mask
        down = more & diagonal & mask
    return score


def normalised_edit_distance(left: Sequence[Hashable], right: Sequence[Hashable]) -> float:
    """The edit distance over the longer one's length: 0 where they are equal, 1 where nothing is shared."""
    longer = max(len(left), len(right))
    return edit_distance(left, right) / longer if longer else 0.0
