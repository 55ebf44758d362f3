"""Attention over the paged cache, with a running maximum and sum (Milakov and Gimelshein 2018; Dao 2023).

A tile of keys is gathered token by token: each looks its block up, so that tiles know nothing of the block size.

`FORMAT` says how the cache is kept: "plain", "int8", "e4m3" (the GPU converts), "e4m3_bits" (uint8, converted here).
`SCALES` is "none", "head" or "token".
"""

import triton
import triton.language as tl

from paceline_runtime.kernels.device.numerics import LOG2_E, dot, from_e4m3, tanh


@triton.jit
def _load(cache, offsets, mask, dtype: tl.constexpr, FORMAT: tl.constexpr):
    raw = tl.load(cache + offsets, mask=mask, other=0.0 if FORMAT == "plain" or FORMAT == "e4m3" else 0)
    if FORMAT == "e4m3_bits":
        raw = from_e4m3(raw)
    elif FORMAT == "int8":
        raw = raw.to(tl.float32)  # no step of its own on a GPU; the interpreter knows no other way to bfloat16
    return raw.to(dtype)


@triton.jit
def _at(base, token, heads, dims, stride_token, stride_head):
    """Where heads of a token (or of a column of tokens) lie: [ROWS, DIMS]."""
    return base + token * stride_token + heads[:, None] * stride_head + dims[None, :]


@triton.jit
def _no_sums(ROWS: tl.constexpr, DIMS: tl.constexpr):
    """Sums, maximum and total weight of rows that have seen nothing yet."""
    acc = tl.zeros([ROWS, DIMS], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    return acc, top, total


@triton.jit
def _store_rows(places, acc, total, mask):
    """The rows' results; zeros where nothing was seen."""
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(places, acc.to(places.dtype.element_ty), mask=mask)


@triton.jit
def _attend(
    query,
    acc,
    top,
    total,
    base,
    end,
    position,
    window,
    scale,
    soft_cap,
    key_cache,
    value_cache,
    key_scale,
    value_scale,
    table,
    kv_head,
    stride_block,
    stride_slot,
    stride_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    DIMS: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    FORMAT: tl.constexpr,
    SCALES: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One tile of keys, tokens base to min(base + TOKENS, end), into the running sums of all rows."""
    tokens = base + tl.arange(0, TOKENS)
    dims = tl.arange(0, DIMS)
    known = tokens < end
    block = tl.load(table + tokens // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
    offsets = block * stride_block + (tokens % BLOCK_SIZE) * stride_slot + kv_head * stride_head
    mask = known[:, None] & (dims < HEAD_DIM)[None, :]
    key = _load(key_cache, offsets[:, None] + dims[None, :], mask, query.dtype, FORMAT)
    scores = dot(query, tl.trans(key), tl.zeros([query.shape[0], TOKENS], tl.float32), WIDEN) * scale
    if SCALES == "token":
        places = (block * BLOCK_SIZE + tokens % BLOCK_SIZE) * KV_HEADS + kv_head
        scores *= tl.load(key_scale + places, mask=known, other=0.0)[None, :]
    if CAPPED:
        scores = soft_cap * tanh(scores / soft_cap)
    seen = known[None, :]
    if CAUSAL:
        seen = seen & (tokens[None, :] <= position[:, None])
    if WINDOWED:
        seen = seen & (tokens[None, :] > position[:, None] - window)
    scores = tl.where(seen, scores * LOG2_E, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    # A row may have seen nothing yet; -inf less -inf would be no number.
    anchor = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - anchor[:, None])
    shrink = tl.exp2(top - anchor)
    total = total * shrink + tl.sum(weights, 1)
    value = _load(
        value_cache, offsets[:, None] + dims[None, :], mask, tl.float32 if SCALES == "token" else query.dtype, FORMAT
    )
    if SCALES == "token":
        # Not into the weights: those of a long context would leave float16's range.
        value = (value * tl.load(value_scale + places, mask=known, other=0.0)[:, None]).to(query.dtype)
    acc = dot(weights.to(query.dtype), value, acc * shrink[:, None], WIDEN)
    return acc, higher, total


@triton.jit
def _split(seq_len, window, split, SPLITS: tl.constexpr, TOKENS: tl.constexpr, WINDOWED: tl.constexpr):
    """First token and end of one part of a decode's context: equal parts, in whole tiles."""
    first = 0
    if WINDOWED:
        first = tl.maximum(seq_len - window, 0)
    part = tl.cdiv(tl.cdiv(seq_len - first, SPLITS), TOKENS) * TOKENS
    start = first + split * part
    return start, tl.minimum(start + part, seq_len)


# A step's sizes make no form of their own: one would be compiled in the middle of serving.
@triton.jit(do_not_specialize=["stride_table"])
def decode_kernel(
    query,
    key_cache,
    value_cache,
    key_scale,
    value_scale,
    block_table,
    seq_lens,
    query_start_loc,
    decodes,
    out,
    parts,
    tops,
    totals,
    scale,
    soft_cap,
    window,
    stride_query_token,
    stride_query_head,
    stride_out_token,
    stride_out_head,
    stride_block,
    stride_slot,
    stride_head,
    stride_table,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DIMS: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    FORMAT: tl.constexpr,
    SCALES: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Program (decode × key head, split). With one split it writes `out`, else its part of the sums:
    parts [n, H, SPLITS, HEAD_DIM], tops and totals [n, H, SPLITS], float32."""
    nth = tl.program_id(0) // KV_HEADS
    kv_head = tl.program_id(0) % KV_HEADS
    split = tl.program_id(1)
    sequence = tl.load(decodes + nth).to(tl.int64)
    token = tl.load(query_start_loc + sequence).to(tl.int64)
    seq_len = tl.load(seq_lens + sequence)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    heads = kv_head * GROUP + rows
    mask = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(_at(query, token, heads, dims, stride_query_token, stride_query_head), mask=mask, other=0.0)
    if SCALES == "head":
        scale = scale * tl.load(key_scale + kv_head)
    acc, top, total = _no_sums(ROWS, DIMS)
    start, end = _split(seq_len, window, split, SPLITS, TOKENS, WINDOWED)
    for base in range(start, end, TOKENS):
        acc, top, total = _attend(
            q,
            acc,
            top,
            total,
            base,
            end,
            rows,
            window,
            scale,
            soft_cap,
            key_cache,
            value_cache,
            key_scale,
            value_scale,
            block_table + sequence * stride_table,
            kv_head,
            stride_block,
            stride_slot,
            stride_head,
            KV_HEADS,
            HEAD_DIM,
            BLOCK_SIZE,
            TOKENS,
            DIMS,
            False,  # the split's bounds are the mask
            False,
            CAPPED,
            FORMAT,
            SCALES,
            WIDEN,
        )
    if SCALES == "head":
        acc *= tl.load(value_scale + kv_head)
    if SPLITS == 1:
        _store_rows(_at(out, token, heads, dims, stride_out_token, stride_out_head), acc, total, mask)
    else:
        place = (nth.to(tl.int64) * KV_HEADS * GROUP + heads) * SPLITS + split
        tl.store(parts + place[:, None] * HEAD_DIM + dims[None, :], acc, mask=mask)
        tl.store(tops + place, top, mask=rows < GROUP)
        tl.store(totals + place, total, mask=rows < GROUP)


@triton.jit
def reduce_kernel(
    parts,
    tops,
    totals,
    seq_lens,
    query_start_loc,
    decodes,
    out,
    window,
    stride_out_token,
    stride_out_head,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    SPLITS: tl.constexpr,
    TOKENS: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """Program (decode × query head): the parts of `decode_kernel` put together."""
    nth = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    sequence = tl.load(decodes + nth).to(tl.int64)
    token = tl.load(query_start_loc + sequence).to(tl.int64)
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, DIMS)
    # From the bounds, not from the sums: a part that is no number has to be seen.
    start, end = _split(tl.load(seq_lens + sequence), window, splits, SPLITS, TOKENS, WINDOWED)
    used = start < end
    place = tl.program_id(0).to(tl.int64) * SPLITS + splits
    top = tl.load(tops + place, mask=used, other=float("-inf"))
    highest = tl.max(top, 0)
    weights = tl.exp2(top - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(weights * tl.load(totals + place, mask=used, other=0.0), 0)
    mask = used[:, None] & (dims < HEAD_DIM)[None, :]
    part = tl.load(parts + place[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
    acc = tl.sum(part * weights[:, None], 0)
    acc = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(
        out + token * stride_out_token + head * stride_out_head + dims,
        acc.to(out.dtype.element_ty),
        mask=dims < HEAD_DIM,
    )


@triton.jit(do_not_specialize=["num_tiles", "stride_table"])
def varlen_kernel(
    query,
    key_cache,
    value_cache,
    key_scale,
    value_scale,
    block_table,
    seq_lens,
    query_start_loc,
    tiles,
    out,
    scale,
    soft_cap,
    window,
    num_tiles,
    stride_query_token,
    stride_query_head,
    stride_out_token,
    stride_out_head,
    stride_block,
    stride_slot,
    stride_head,
    stride_table,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DIMS: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    FORMAT: tl.constexpr,
    SCALES: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Program (tile × key head). Rows are new tokens times the query heads of the key head."""
    tile = tl.program_id(0) // KV_HEADS
    kv_head = tl.program_id(0) % KV_HEADS
    sequence = tl.load(tiles + tile).to(tl.int64)
    first = tl.load(tiles + num_tiles + tile)
    begin = tl.load(query_start_loc + sequence)
    new = tl.load(query_start_loc + sequence + 1) - begin
    seq_len = tl.load(seq_lens + sequence)
    before = seq_len - new
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    token = first + rows // GROUP
    position = before + token
    heads = kv_head * GROUP + rows % GROUP
    mask = ((rows < ROWS // GROUP * GROUP) & (token < new))[:, None] & (dims < HEAD_DIM)[None, :]
    places = (begin + token).to(tl.int64)[:, None]
    q = tl.load(_at(query, places, heads, dims, stride_query_token, stride_query_head), mask=mask, other=0.0)
    if SCALES == "head":
        scale = scale * tl.load(key_scale + kv_head)
    acc, top, total = _no_sums(ROWS, DIMS)
    table = block_table + sequence * stride_table
    end = tl.minimum(before + first + ROWS // GROUP, seq_len)
    # What the first row sees all rows see, unless there is a window: no mask is needed there.
    if WINDOWED:
        start = tl.maximum(before + first - window + 1, 0)
    else:
        start = (before + first + 1) // TOKENS * TOKENS
        for base in range(0, start, TOKENS):
            acc, top, total = _attend(
                q,
                acc,
                top,
                total,
                base,
                start,
                position,
                window,
                scale,
                soft_cap,
                key_cache,
                value_cache,
                key_scale,
                value_scale,
                table,
                kv_head,
                stride_block,
                stride_slot,
                stride_head,
                KV_HEADS,
                HEAD_DIM,
                BLOCK_SIZE,
                TOKENS,
                DIMS,
                False,
                False,
                CAPPED,
                FORMAT,
                SCALES,
                WIDEN,
            )
    for base in range(start, end, TOKENS):
        acc, top, total = _attend(
            q,
            acc,
            top,
            total,
            base,
            end,
            position,
            window,
            scale,
            soft_cap,
            key_cache,
            value_cache,
            key_scale,
            value_scale,
            table,
            kv_head,
            stride_block,
            stride_slot,
            stride_head,
            KV_HEADS,
            HEAD_DIM,
            BLOCK_SIZE,
            TOKENS,
            DIMS,
            True,
            WINDOWED,
            CAPPED,
            FORMAT,
            SCALES,
            WIDEN,
        )
    if SCALES == "head":
        acc *= tl.load(value_scale + kv_head)
    _store_rows(_at(out, places, heads, dims, stride_out_token, stride_out_head), acc, total, mask)
