"""Which boards are of one generation of chips: what decides whether measurements of one tell of another."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.hardware.gpu import GPUSpec

#: Libraries run the same kernels, with mma.sync, on Turing, Ampere, Ada and the Blackwell of graphics cards.
_MMA_CAPABILITIES = ("7", "8", "12")
#: Libraries' kernels let a unit of the SM fetch whole tiles (TMA), and their warps ask for no bytes themselves. Compute
#: capability 12 has the unit, too, but runs the kernels of `_MMA_CAPABILITIES`.
_FETCHING_CAPABILITIES = ("9", "10", "11")
#: Major numbers of the compute capabilities whose tensor cores take operands of 8 bits in any layout: these, and all
#: from the last on. Source: Transformer Engine's is_non_tn_fp8_gemm_supported (10.0 <= capability < 12.0, or from
#: 13.0), as recalled (unverified); its docs/features/low_precision_training at d0067d0d say Blackwell, and no more.
_ANY_LAYOUT = (10, 11, 13)
#: Compute capabilities whose boards run the kernels of an earlier one, and how fast they run what an instruction set
#: fixes stands in the catalogue. Source: CUDA C++ Programming Guide 13, family-specific targets, as recalled
#: (unverified): compute_100f is for 10.0 and 10.3, compute_120f for 12.0 and 12.1.
_FAMILIES = {"10.3": "10.0", "12.1": "12.0"}

#: Clocks of one dependent load from device memory, by compute capability, or by architecture where there is none.
#: Source: pointer chases. 8.0 (A100 PCIe), 8.9 (RTX 4090), 9.0 (H100 PCIe) of Luo et al., arXiv 2402.13499; 7.0, 8.6
#: and CDNA of RRZE-HPC/gpu-benches@1038c5d gpu-latency (its Hopper is a GH200: 689 clocks over 2 GB); 10.0 of a B200
#: reverse-engineering note (833 to 843 on eight boards). Nobody's: 12.0 is taken to be 8.9's, one die with GDDR and a
#: large L2 as well, 7.5 is 7.0's, 10.3 is 10.0's, cdna is cdna2's, cdna4 is cdna3's.
MEMORY_LATENCY_CLOCKS: Mapping[str, float] = {
    "7.0": 434.0, "7.5": 434.0, "8.0": 466.3, "8.6": 557.0, "8.9": 541.5, "9.0": 478.8, "10.0": 838.0, "10.3": 838.0,
    "12.0": 541.5, "cdna": 696.0, "cdna2": 696.0, "cdna3": 907.0, "cdna4": 907.0,
}  # fmt: skip
#: Compute capabilities whose L2 is one part, as large to every SM as the catalogue says. That of A100, H100, B200 is
#: two: each holds what the SMs beside it read, so that what all read stands there twice. Source: A100 white paper,
#: "A100 L2 cache"; the Ada and Blackwell RTX white papers have one L2.
_WHOLE_L2 = ("8.6", "8.7", "8.9", "12.0")
#: Of a board that is not listed: the middle of the table. Chosen by hand, not from data.
_OTHER_CLOCKS = 550.0


def memory_latency_s(gpu: GPUSpec) -> float:
    """Seconds of one dependent load from device memory, at boost clock: `MEMORY_LATENCY_CLOCKS`.

    >>> from predictor.hardware.gpu import load_gpu
    >>> round(memory_latency_s(load_gpu("b200")) * 1e9), round(memory_latency_s(load_gpu("h100")) * 1e9)
    (426, 242)
    """
    clocks = MEMORY_LATENCY_CLOCKS.get(gpu.compute_capability or gpu.architecture, _OTHER_CLOCKS)
    return clocks / gpu.boost_clock_hz


def l2_is_whole(gpu: GPUSpec) -> bool:
    """Whether L2 is known to be one part."""
    return chip(gpu.compute_capability) in _WHOLE_L2


def generation(gpu: GPUSpec) -> str:
    """Architecture and, for NVIDIA's, the major number of the compute capability: "hopper 9", "blackwell 12", "cdna3".

    NVIDIA gave one name to two chips: the Blackwell of data centers (B200, compute capability 10) has its own tensor
    core instructions, tensor memory and HBM; that of graphics boards (RTX 5090, RTX PRO 6000, 12) runs mma.sync as
    Ampere and Ada do. What was learned of one is not known of the other. A chip with LPDDR, shared with its CPU,
    is of a generation of its own ("ampere 8 lpddr"): boards of the same SMs tell nothing of such memory.

    >>> from predictor.hardware.gpu import load_gpu
    >>> generation(load_gpu("b200")), generation(load_gpu("rtx-pro-6000")), generation(load_gpu("mi300x"))
    ('blackwell 10', 'blackwell 12', 'cdna3')
    """
    major = (gpu.compute_capability or "").split(".")[0]
    shared = "lpddr" if (gpu.memory_type or "").startswith("LPDDR") else ""
    return " ".join(filter(None, (gpu.architecture, major, shared)))


def chip(capability: str | None) -> str:
    """The compute capability whose kernels a board runs, "" for None; boards of one are siblings.

    >>> chip("10.0"), chip("10.3"), chip("8.9"), chip(None)
    ('10.0', '10.0', '8.9', '')
    """
    return _FAMILIES.get(capability or "", capability or "")


def runs_mma(gpu: GPUSpec) -> bool:
    """Whether tensor cores take mma.sync from registers alone: no wgmma (Hopper), no tensor memory (B200)."""
    return gpu.vendor == "nvidia" and (gpu.compute_capability or "").split(".")[0] in _MMA_CAPABILITIES


def fetches_tiles(gpu: GPUSpec) -> bool:
    """Whether a unit of the SM fetches a product's tiles, as many ahead as there is room for."""
    return (gpu.compute_capability or "").split(".")[0] in _FETCHING_CAPABILITIES


def takes_any_layout(gpu: GPUSpec) -> bool:
    """Whether tensor cores take operands of 8 bits along either axis, so that nothing is transposed for them: the
    Blackwell of data centers, not that of graphics boards (`_ANY_LAYOUT`). Unverified: AMD's, which are taken to take
    one.

    >>> from predictor.hardware.gpu import load_gpu
    >>> takes_any_layout(load_gpu("b200")), takes_any_layout(load_gpu("rtx-5090"))
    (True, False)
    """
    major = int((gpu.compute_capability or "0").split(".")[0])
    return gpu.vendor == "nvidia" and (major in _ANY_LAYOUT or major >= _ANY_LAYOUT[-1])
