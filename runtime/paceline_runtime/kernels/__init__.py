"""The kernels of the network on a GPU, in Triton, and what each of them is held against, in PyTorch.

| module | subject |
|---|---|
| `interface` | what each side offers, with shapes and types; `select` picks one by device |
| `plan` | on the host, before a step: which sequence goes to which attention kernel, in what pieces |
| `tiling` | pure: sizes of tiles, and why |
| `cpu` | PyTorch where it is fast on a CPU |
| `reference` | plain PyTorch, for every device; sums in float32 |
| `gpu` | the same functions on Triton: checks, grids, launches |
| `device` | the Triton code itself |
| `check` | parity and offline compilation: `python -m paceline_runtime.kernels.check` |

Importing this package imports no Triton; `gpu` does.
"""
