"""The matrix product with a weight, in the layout that is fastest on the device."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def prepack_supported() -> bool:
    """Whether this torch can lay weights out for oneDNN (at small batches two to four times faster than MKL)."""
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Linear:
    """y = x Wᵀ + b for x [tokens, in].

    On the CPU in float32 the weight is kept in oneDNN's own layout only: one copy, the plain one is let go.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self._packed = weight.device.type == "cpu" and weight.dtype == torch.float32 and prepack_supported()
        if self._packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        else:
            self._weight = weight.contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in] → [tokens, out]."""
        if self._packed:
            result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return result
        return F.linear(x, self._weight, self._bias)
