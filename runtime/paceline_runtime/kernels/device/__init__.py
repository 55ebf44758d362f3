"""Triton code. Pointers and strides only, in what Triton 3.6 and 3.9 both take.

Offsets that a step's size or the cache's multiplies into are 64 bits wide. `WIDEN` is for Triton's interpreter, whose
product of bfloat16 matrices is wrong: the operands are rounded as on a GPU, then multiplied in float32.
"""
