"""The kernels on a CPU where the native library does not serve the model: PyTorch, with its scaled dot product."""

from paceline_runtime.kernels.cpu.attention import decode_attention, varlen_attention
from paceline_runtime.kernels.cpu.kv_cache import write_kv
from paceline_runtime.kernels.reference import add_rms_norm, rms_norm, rotate, sample, silu_and_mul

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
