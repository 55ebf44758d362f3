"""A plugin of pytest: the native kernels for AVX-512 on a processor with AVX2, slowly. `-p emulated_avx512`."""

from __future__ import annotations

from pathlib import Path

from paceline_runtime.native import build

_HEADER = str(Path(__file__).with_suffix(".h"))

for _isa, _more in (("avx512", ()), ("avx512bf16", ("-DEMULATE_BF16",))):
    build.ISA_FLAGS[_isa] = ("-march=x86-64-v3", "-mprefer-vector-width=256", *_more, "-include", _HEADER)
    build._NEEDED[_isa] = build._NEEDED["avx2"]
