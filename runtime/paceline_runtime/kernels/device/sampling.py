"""Drawing a token without sorting the vocabulary.

Whatever runs from the likeliest token down (top-k, top-p, the draw itself) ends at a threshold: at some logit, and
after so many of the tokens that have just this logit. The logit is found by bisection over the order of float32 as
whole numbers, at most 32 readings of the row, which lies in the cache of the second level by then.

Where nothing is cut off, the draw runs over the tokens by id: three readings.
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-2139095041)
"""The key of -inf."""


@triton.jit
def _keys(x):
    """int32 in the order of float32 x."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _upper_middle(low, high):
    """Half the sum of two int32, rounded up, without the sum."""
    return (low | high) - ((low ^ high) >> 1)


@triton.jit
def _lower_middle(low, high):
    return (low & high) + ((low ^ high) >> 1)


@triton.jit
def _count(row, key, V: tl.constexpr, BLOCK: tl.constexpr):
    """How many logits are at or above a key, and how many just there."""
    above = tl.zeros([], tl.int32)
    equal = tl.zeros([], tl.int32)
    for start in range(0, V, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        known = columns < V
        keys = _keys(tl.load(row + columns, mask=known, other=float("-inf")))
        above += tl.sum((known & (keys >= key)).to(tl.int32), 0)
        equal += tl.sum((known & (keys == key)).to(tl.int32), 0)
    return above, equal


@triton.jit
def _mass(row, highest, key, V: tl.constexpr, BLOCK: tl.constexpr):
    """The weight of all logits at or above a key; float64, of sums of one block each in float32."""
    mass = tl.zeros([], tl.float64)
    for start in range(0, V, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(row + columns, mask=columns < V, other=float("-inf"))
        mass += tl.sum(tl.where(_keys(x) >= key, tl.exp(x - highest), 0.0), 0).to(tl.float64)
    return mass


@triton.jit
def _value(key):
    """The float32 of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _weight(key, highest):
    return tl.exp(_value(key) - highest).to(tl.float64)


@triton.jit
def _find_mass(row, highest, low, high, wanted, V: tl.constexpr, BLOCK: tl.constexpr):
    """The highest key from low to high at or above which the weight is more than `wanted`, else low; and the weight
    above it."""
    while low < high:
        middle = _upper_middle(low, high)
        if _mass(row, highest, middle, V, BLOCK) > wanted:
            low = middle
        else:
            high = middle - 1
    return low, _mass(row, highest, low + 1, V, BLOCK)


@triton.jit
def _draw_by_id(row, highest, uniform, V: tl.constexpr, BLOCK: tl.constexpr):
    """The token at which the running sum of all weights, by id, passes its share."""
    wanted = uniform * _mass(row, highest, LOWEST, V, BLOCK)
    # The last block with some weight that begins at or before that.
    passed = tl.zeros([], tl.float64)
    before = tl.zeros([], tl.float64)
    first = tl.zeros([], tl.int32)
    for start in range(0, V, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(row + columns, mask=columns < V, other=float("-inf"))
        mass = tl.sum(tl.exp(x - highest), 0).to(tl.float64)
        here = (mass > 0.0) & (passed <= wanted)
        first = tl.where(here, start, first)
        before = tl.where(here, passed, before)
        passed += mass
    columns = first + tl.arange(0, BLOCK)
    weights = tl.exp(tl.load(row + columns, mask=columns < V, other=float("-inf")) - highest)
    running = tl.cumsum(weights.to(tl.float64), 0)
    place = tl.sum((running <= wanted - before).to(tl.int32), 0)
    # Rounding may leave the end of the block below its own sum: then the place that reaches it is meant.
    last = tl.sum((running < tl.max(running, 0)).to(tl.int32), 0)
    return first + tl.minimum(place, last)


@triton.jit
def _draw_by_rank(row, highest, k, share, least, uniform, V: tl.constexpr, BLOCK: tl.constexpr):
    """The same from the likeliest down, over what top-k, top-p and min-p leave."""
    high = tl.max(_keys(tl.zeros([1], tl.float32) + highest), 0)

    # Top-k: the k-th logit, and how many that have it are among the first k.
    key = tl.zeros([], tl.int32) + LOWEST
    if k < V:
        low = key
        up = high
        while low < up:
            middle = _upper_middle(low, up)
            above, _ = _count(row, middle, V, BLOCK)
            if above >= k:
                low = middle
            else:
                up = middle - 1
        key = low
    above, equal = _count(row, key, V, BLOCK)
    members = tl.minimum(k, above).to(tl.int32) - (above - equal)
    total = _mass(row, highest, key + 1, V, BLOCK) + members.to(tl.float64) * _weight(key, highest)

    # Top-p: a token stays while those before it have not reached the share.
    if share < 1.0:
        # The highest key at which the share is reached; the first token always stays.
        low = key
        up = high
        while low < up:
            middle = _upper_middle(low, up)
            if _mass(row, highest, middle, V, BLOCK) >= share * total:
                low = middle
            else:
                up = middle - 1
        before = _mass(row, highest, low + 1, V, BLOCK)
        _, equal = _count(row, low, V, BLOCK)
        if low == key:
            equal = members
        weight = _weight(low, highest)
        needed = tl.ceil(((share * total - before) / weight).to(tl.float32)).to(tl.int32)
        key = low
        members = tl.minimum(tl.maximum(needed, 1), equal)

    # Min-p, a share of the first token's weight, which is 1: the lowest key that is heavy enough.
    if _weight(key, highest) < least:
        low = key
        up = high
        while low < up:
            middle = _lower_middle(low, up)
            if _weight(middle, highest) >= least:
                up = middle
            else:
                low = middle + 1
        key = up
        _, members = _count(row, key, V, BLOCK)

    total = _mass(row, highest, key + 1, V, BLOCK) + members.to(tl.float64) * _weight(key, highest)
    wanted = uniform * total
    found, before = _find_mass(row, highest, key, high, wanted, V, BLOCK)
    if found != key:
        _, members = _count(row, found, V, BLOCK)
    nth = tl.floor(((wanted - before) / _weight(found, highest)).to(tl.float32)).to(tl.int32)
    nth = tl.minimum(tl.maximum(nth, 0), members - 1)

    # The nth token, by id, that has this logit.
    passed = tl.zeros([], tl.int32)
    token = tl.zeros([], tl.int32)
    for start in range(0, V, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        known = columns < V
        same = (known & (_keys(tl.load(row + columns, mask=known, other=float("-inf"))) == found)).to(tl.int32)
        place = passed + tl.cumsum(same, 0) - same
        token += tl.sum(tl.where((same == 1) & (place == nth), columns, 0), 0)
        passed += tl.sum(same, 0)
    return token


@triton.jit
def sample_kernel(scaled, top_k, top_p, min_p, uniform, out, V: tl.constexpr, BLOCK: tl.constexpr):
    """Program (row)."""
    row_index = tl.program_id(0).to(tl.int64)
    row = scaled + row_index * V
    highest = tl.full([], float("-inf"), tl.float32)
    for start in range(0, V, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        highest = tl.maximum(highest, tl.max(tl.load(row + columns, mask=columns < V, other=float("-inf")), 0))
    k = tl.load(top_k + row_index)
    share = tl.load(top_p + row_index)
    least = tl.load(min_p + row_index)
    at = tl.load(uniform + row_index)
    token = tl.zeros([], tl.int32)
    if (k >= V) & (share >= 1.0) & (least <= 0.0):
        token = _draw_by_id(row, highest, at, V, BLOCK)
    else:
        token = _draw_by_rank(row, highest, k, share, least, at, V, BLOCK)
    tl.store(out + row_index, token.to(tl.int64))
