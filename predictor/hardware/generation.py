"""Which boards are of one generation of chips: what decides whether measurements of one tell of another."""

from __future__ import annotations

from collections.abc import Collection

from predictor.hardware.gpu import GPUSpec

#: Libraries run the same kernels, with mma.sync, on Turing, Ampere, Ada and the Blackwell of graphics cards.
_MMA_CAPABILITIES = ("7", "8", "12")
#: Compute capabilities whose boards run the kernels of an earlier one, and how fast they run what an instruction set
#: fixes stands in the catalogue. Source: CUDA C++ Programming Guide 13, family-specific targets: compute_100f is for
#: 10.0 and 10.3.
_FAMILIES = {"10.3": "10.0"}


def generation(gpu: GPUSpec) -> str:
    """Architecture and, for NVIDIA's, the major number of the compute capability: "hopper 9", "blackwell 12", "cdna3".

    NVIDIA gave one name to two chips: the Blackwell of data centers (B200, compute capability 10) has its own tensor
    core instructions, tensor memory and HBM; that of graphics boards (RTX 5090, RTX PRO 6000, 12) runs mma.sync as
    Ampere and Ada do. What was learned of one is not known of the other.

    >>> from predictor.hardware.gpu import load_gpu
    >>> generation(load_gpu("b200")), generation(load_gpu("rtx-pro-6000")), generation(load_gpu("mi300x"))
    ('blackwell 10', 'blackwell 12', 'cdna3')
    """
    major = (gpu.compute_capability or "").split(".")[0]
    return f"{gpu.architecture} {major}".strip()


def chip(capability: str | None) -> str:
    """The compute capability whose kernels a board runs, "" for None; boards of one are siblings.

    >>> chip("10.0"), chip("10.3"), chip("8.9"), chip(None)
    ('10.0', '10.0', '8.9', '')
    """
    return _FAMILIES.get(capability or "", capability or "")


def is_among(gpu: GPUSpec, generations: Collection[str]) -> bool:
    """Whether a GPU is of one of these generations; sets trained before there were any name architectures alone."""
    return generation(gpu) in generations or gpu.architecture in generations


def runs_mma(gpu: GPUSpec) -> bool:
    """Whether tensor cores take mma.sync from registers alone: no wgmma (Hopper), no tensor memory (B200)."""
    return gpu.vendor == "nvidia" and (gpu.compute_capability or "").split(".")[0] in _MMA_CAPABILITIES
