"""The kernels in plain PyTorch, for any device: what the Triton ones are held against. Clarity before speed."""

from paceline_runtime.kernels.reference.attention import decode_attention, varlen_attention
from paceline_runtime.kernels.reference.kv_cache import write_kv
from paceline_runtime.kernels.reference.layers import add_rms_norm, rms_norm, rotate, silu_and_mul
from paceline_runtime.kernels.reference.sampling import sample

__all__ = [
    "add_rms_norm",
    "decode_attention",
    "rms_norm",
    "rotate",
    "sample",
    "silu_and_mul",
    "varlen_attention",
    "write_kv",
]
