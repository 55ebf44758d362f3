"""What lies between the matrix products: norms, rotation, gate."""

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    stride_x,
    stride_residual,
    stride_out,
    eps,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):
    """Program (row). With `ADD` the row of x is added to that of `residual` first, and the sum kept there."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < N
    value = tl.load(x + row * stride_x + columns, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        place = residual + row * stride_residual + columns
        kept = tl.load(place, mask=mask, other=0.0)
        # The sum goes on in the residual's type, as if two kernels had done it.
        kept = (kept.to(tl.float32) + value).to(kept.dtype)
        tl.store(place, kept, mask=mask)
        value = kept.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / N + eps)
    value = value * scale * tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * stride_out + columns, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def rotate_kernel(
    heads,
    positions,
    cos,
    sin,
    stride_token,
    stride_head,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Program (token, ROWS of its heads)."""
    token = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    position = tl.load(positions + token)
    c = tl.load(cos + position * HALF + dims, mask=dims < HALF, other=0.0)[None, :]
    s = tl.load(sin + position * HALF + dims, mask=dims < HALF, other=0.0)[None, :]
    mask = (rows < HEADS)[:, None] & (dims < HALF)[None, :]
    place = heads + token * stride_token + rows[:, None] * stride_head + dims[None, :]
    first = tl.load(place, mask=mask, other=0.0)
    second = tl.load(place + HALF, mask=mask, other=0.0)
    a = first.to(tl.float32)
    b = second.to(tl.float32)
    tl.store(place, (a * c - b * s).to(first.dtype), mask=mask)
    tl.store(place + HALF, (b * c + a * s).to(first.dtype), mask=mask)


@triton.jit
def silu_and_mul_kernel(gate_up, out, stride_in, N: tl.constexpr, BLOCK: tl.constexpr):
    """Program (row, BLOCK columns)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < N
    gate = tl.load(gate_up + row * stride_in + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride_in + N + columns, mask=mask, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * N + columns, value.to(out.dtype.element_ty), mask=mask)
