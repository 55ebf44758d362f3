"""The model: reading its files, the network, attention over the paged cache, sampling.

On a CPU the network runs in the kernels of `native/`. The reference in PyTorch runs on CPU and GPU alike; whatever
replaces a part of it is measured against it.
"""
