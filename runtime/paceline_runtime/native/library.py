"""The compiled library's C interface. Raw pointers go in; whoever calls keeps what they point to alive."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

F32, BF16 = 0, 1
"""Kinds of packed weights."""

KEPT_F32, KEPT_INT8, KEPT_E4M3 = 0, 1, 2
"""How keys and values are kept (`Kept` in src/kept.h)."""


class Shape(ctypes.Structure):
    """Mirrors `Shape` in src/llama.h."""

    _fields_ = (
        *((name, c_int32) for name in ("vocab", "hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim")),
        ("block_size", c_int32),
        ("max_position", c_int32),
        ("weights", c_int32),
        ("kept", c_int32),
        ("eps", c_float),
    )


class Cache(ctypes.Structure):
    """Mirrors `Cache` in src/kept.h: of one layer, with scales only where it is kept in 8 bits."""

    _fields_ = tuple((name, c_void_p) for name in ("keys", "values", "key_scales", "value_scales"))


class Step(ctypes.Structure):
    """Mirrors `Step` in src/llama.h."""

    _fields_ = (
        *((name, c_int32) for name in ("tokens", "seqs", "logits", "threads")),
        *((name, c_void_p) for name in ("token_ids", "query_start", "positions", "block_start", "blocks")),
        ("num_logits", c_void_p),
        *((name, c_void_p) for name in ("out", "best_tokens", "best_logits")),
    )


@dataclass(frozen=True, slots=True)
class Library:
    """The kernels for one instruction set.

    Attributes:
        isa: one of `build.ISA_FLAGS`.
        lanes: floats in a vector; a panel of packed weights has twice as many columns.
    """

    isa: str
    lanes: int
    functions: ctypes.CDLL


def open_library(path: Path, isa: str) -> Library:
    """Load a compiled library.

    Raises:
        OSError: if it is none.
    """
    functions = ctypes.CDLL(str(path))
    pointers = POINTER(c_void_p)
    for name, result, arguments in (
        ("paceline_lanes", c_int32, ()),
        ("paceline_pack", None, (c_void_p, c_int32, c_int32, c_int32, c_int32, c_int32, c_void_p, c_int32)),
        ("paceline_checksum", c_uint64, (c_void_p, c_size_t)),
        ("paceline_create", c_void_p, (POINTER(Shape), pointers, c_void_p, c_void_p)),
        ("paceline_set_cache", None, (c_void_p, POINTER(Cache), c_int32)),
        ("paceline_forward", c_int32, (c_void_p, POINTER(Step))),
        ("paceline_destroy", None, (c_void_p,)),
    ):
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    return Library(isa, functions.paceline_lanes(), functions)
