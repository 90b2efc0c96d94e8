"""A board's name as its driver says it -> its id in the catalogue. What is not in the table gets a name of its own."""

from __future__ import annotations

import re

from microbench.environment import slug

# In this order: the first pattern that is found decides. Names are those of cudaGetDeviceProperties.
_BOARDS: tuple[tuple[str, str], ...] = (
    (r"MIG", ""),
    (r"GB300", "gb300"), (r"GB200", "gb200"), (r"\bB300", "b300-sxm"), (r"\bB200", "b200-sxm"),
    (r"H200 NVL", ""), (r"\bH200", "h200-sxm"), (r"H100 NVL", "h100-nvl"), (r"H100 PCIe", "h100-pcie"),
    (r"H100 80GB HBM3", "h100-sxm"), (r"\bH100 SXM", "h100-sxm"), (r"H800 PCIe", ""), (r"\bH800", "h800-sxm"),
    (r"\bH20\b", "h20-sxm"),
    (r"A100-SXM4-80GB", "a100-sxm-80gb"), (r"A100-SXM4-40GB", "a100-sxm-40gb"), (r"A100 80GB PCIe", "a100-pcie-80gb"),
    (r"A100-PCI[eE]-40GB", "a100-pcie-40gb"), (r"A100-PCI[eE]-80GB", "a100-pcie-80gb"), (r"NVIDIA A30\b", "a30"),
    (r"NVIDIA A40\b", "a40"), (r"NVIDIA A10\b", "a10"),
    (r"V100-SXM\d-16GB", "v100-sxm-16gb"), (r"V100-SXM\d-32GB", "v100-sxm-32gb"), (r"V100-PCIE-32GB", "v100-pcie-32gb"),
    (r"P100-PCIE-16GB", "p100-pcie-16gb"), (r"Tesla T4\b", "t4"), (r"Tesla P4\b", "p4"),
    (r"NVIDIA L40S", "l40s"), (r"NVIDIA L40\b", "l40"), (r"NVIDIA L20\b", "l20"), (r"NVIDIA L4\b", "l4"),
    (r"RTX PRO 6000 Blackwell Server", "rtx-pro-6000-server"), (r"RTX 6000 Ada", "rtx-6000-ada"),
    (r"RTX A6000", "rtx-a6000"), (r"RTX 5090\b(?! D| Laptop)", "rtx-5090"), (r"RTX 4090\b(?! D| Laptop)", "rtx-4090"),
    (r"RTX 3090\b(?! Ti)", "rtx-3090"), (r"RTX 3090 Ti\b", "rtx-3090-ti"),
)  # fmt: skip


def catalogue_id(name: str) -> str:
    """ "NVIDIA H100 80GB HBM3" -> "h100-sxm"; an unknown board or a slice of one (MIG) -> a slug of its name."""
    for pattern, gpu in _BOARDS:
        if re.search(pattern, name):
            return gpu or slug(name)
    return slug(name)
