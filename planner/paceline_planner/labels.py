"""Which accelerator a pod gets, from what the pod itself asks for: the resource's name and the labels of its node.

Only what is certain counts. A resource such as `nvidia.com/gpu` alone says nothing about the memory behind it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .accelerators import CATALOGUE, GB, Accelerator

LABELS: Mapping[str, Mapping[str, str]] = {
    # NVIDIA's GPU feature discovery.
    "nvidia.com/gpu.product": {
        "NVIDIA-A10": "A10",
        "NVIDIA-A10G": "A10",
        "NVIDIA-L4": "L4",
        "NVIDIA-L40S": "L40S",
        "NVIDIA-A100-SXM4-40GB": "A100-40GB",
        "NVIDIA-A100-PCIE-40GB": "A100-40GB",
        "NVIDIA-A100-SXM4-80GB": "A100-80GB",
        "NVIDIA-A100-80GB-PCIe": "A100-80GB",
        "NVIDIA-H100-80GB-HBM3": "H100",
        "NVIDIA-H100-PCIe": "H100-PCIe",
        "NVIDIA-H200": "H200",
        "NVIDIA-B200": "B200",
    },
    "cloud.google.com/gke-accelerator": {
        "nvidia-l4": "L4",
        "nvidia-tesla-a100": "A100-40GB",
        "nvidia-a100-80gb": "A100-80GB",
        "nvidia-h100-80gb": "H100",
        "nvidia-h100-mega-80gb": "H100",
        "nvidia-h200-141gb": "H200",
        "nvidia-b200": "B200",
    },
    # An `a100` there may have 40 or 80 GB: it is left out.
    "karpenter.k8s.aws/instance-gpu-name": {
        "a10g": "A10",
        "l4": "L4",
        "l40s": "L40S",
        "h100": "H100",
        "h200": "H200",
        "b200": "B200",
    },
    "amd.com/gpu.product-name": {"AMD_Instinct_MI300X_OAM": "MI300X"},
}
"""Label of a node → its values → name in the catalogue. A10G: an A10 with the same memory and bandwidth."""

_PART = re.compile(r"mig-\d+g\.(\d+)gb(?:[.+-].*)?")


class UnknownAccelerator(ValueError):
    """What the pod asks for does not say which device it gets; the message says what would."""


def accelerator_of(resource: str, node_selector: Mapping[str, str]) -> Accelerator:
    """The device behind a resource, for a pod that only such nodes take.

    A part of a device (`nvidia.com/mig-1g.10gb`) has the memory that its name says, in units of 10^9 since a little of
    it is kept; what it reads and multiplies in a second is not known.

    Raises:
        UnknownAccelerator: nothing says which device it is, or the labels name another than is in the catalogue.
    """
    domain, _, kind = resource.partition("/")
    if (part := _PART.fullmatch(kind)) is not None:
        return Accelerator(kind, int(part[1]) * GB, None, source=f"the name of the resource {resource}")
    for label, names in LABELS.items():
        value = node_selector.get(label)
        if value is None:
            continue
        if value in names:
            return CATALOGUE[names[value]]
        raise UnknownAccelerator(f"{label} {value} is no accelerator that is known here")
    hint = "amd.com/gpu.product-name" if domain == "amd.com" else "nvidia.com/gpu.product"
    raise UnknownAccelerator(f"nothing in nodeSelector says which device {resource} is (a label such as {hint} would)")
