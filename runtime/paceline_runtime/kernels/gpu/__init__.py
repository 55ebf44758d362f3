"""The kernels on Triton: a GPU of compute capability 8.0 or later; with TRITON_INTERPRET=1, slowly, any processor."""

from paceline_runtime.kernels.gpu.attention import decode_attention, varlen_attention
from paceline_runtime.kernels.gpu.kv_cache import write_kv
from paceline_runtime.kernels.gpu.layers import add_rms_norm, rms_norm, rotate, silu_and_mul
from paceline_runtime.kernels.gpu.sampling import sample

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
