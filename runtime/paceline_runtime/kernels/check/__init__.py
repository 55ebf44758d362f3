"""What can be shown of the kernels: that they compute what the reference does, and that they compile.

`python -m paceline_runtime.kernels.check parity` runs each kernel beside its reference, in Triton's interpreter or on a
GPU; `… compile` compiles each for GPUs that need not be there.
"""
