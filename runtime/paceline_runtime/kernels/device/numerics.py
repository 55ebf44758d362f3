"""Pieces that several kernels share: products, 8-bit numbers, tanh."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
E4M3_MAX = tl.constexpr(448.0)


@triton.jit
def dot(a, b, acc, WIDEN: tl.constexpr):
    """acc + a b; float32 operands without the 10-bit mantissa of TF32."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def tanh(x):
    """Exact to about 1e-7 absolute; does not overflow."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def from_e4m3(bits):
    """float16 values of e4m3 numbers given as uint8, exactly.

    The bits of e4m3 in the places of float16 are the number over 2⁸ (exponents are biased by 7 and 15), subnormal ones
    included. No GPU before compute capability 8.9 converts this type itself.
    """
    wide = bits.to(tl.uint16)
    magnitude = (wide & 0x7F).to(tl.uint16)
    half = (((wide & 0x80) << 8) | (magnitude << 7)).to(tl.uint16).to(tl.float16, bitcast=True)
    return tl.where(magnitude == 0x7F, float("nan"), half * 256.0).to(tl.float16)


@triton.jit
def to_e4m3(x):
    """uint8 bits of the e4m3 numbers nearest to x (float32), ties to even, held to ±448; NaN stays NaN."""
    magnitude = tl.abs(x)
    magnitude = tl.where(magnitude > E4M3_MAX, E4M3_MAX, magnitude)
    bits = magnitude.to(tl.uint32, bitcast=True)
    # Three of 23 bits of mantissa stay; the exponent's bias falls from 127 to 7.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
    # Below 2⁻⁶ numbers are multiples of 2⁻⁹, which is the last place of a float32 at 2¹⁴: the sum rounds.
    small = (magnitude + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0.015625, small, normal)
    code = tl.where(x != x, 0x7F, code)
    sign = (x.to(tl.uint32, bitcast=True) >> 31) << 7
    return (code | sign).to(tl.uint8)


@triton.jit
def to_int8(x):
    """Nearest whole numbers of x (float32), ties to even, held to ±127; NaN becomes 0."""
    x = tl.where(x > 127.0, 127.0, tl.where(x < -127.0, -127.0, x))
    x = tl.where(x != x, 0.0, x)
    # Above 2²³ a float32 has no places behind the point: the sum rounds.
    return ((x + 12582912.0) - 12582912.0).to(tl.int8)
