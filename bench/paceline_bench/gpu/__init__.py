"""The prepared check of the engine on a GPU: is it right there, and how fast. `make gpu-check`; see bench/README.md.

| module | subject |
|---|---|
| `command`, `parts` | what is run, each part in a process of its own with a time limit; what came of it |
| `record` | what a part writes down, line by line, so that a part that was cut off has told what it knew |
| `models` | random Llamas |
| `kernels`, `engine`, `logits` | parity |
| `attention`, `decode` | measurement |
| `pack` | wheels for a machine without a network |

Without a GPU each part runs on tiny sizes and measures nothing.
"""
