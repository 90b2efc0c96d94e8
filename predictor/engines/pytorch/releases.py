"""PyTorch without a serving engine: what its host was seen to need, who reduces, and how it trains on many GPUs (FSDP).

Three ages are told apart, by fused attention alone: FlashAttention 1 until PyTorch 2.2 brought FlashAttention 2, and
from 2.9 on cuDNN's kernels where the board is a Hopper, which are about as fast as those that were measured there. With
the last come transformers 5 and its classes, which share their attention and masks; before it, those of 4.28.
"""

from __future__ import annotations

from predictor.engines.attention_ages import FLASH_1, FLASH_2
from predictor.engines.base import CALLS, CAPTURED
from predictor.engines.pytorch.engine import CLASSES
from predictor.engines.reductions import AllReduceRules
from predictor.engines.vintage import Host, HostTime, TrainingFramework, Vintage
from predictor.files.records import replace

_COLLECTIVES = AllReduceRules(
    "torch.distributed, backend nccl", unverified="symmetric memory, which callers may ask for"
)
_TIMES = (
    HostTime(
        "launches of a decode step of 96 layers, beyond one captured graph", "OPT-175B, 8 A100, July 2022",
        "facebookresearch/metaseq pull 270: 95 against 66 ms a token", step_s=(29e-3, 29e-3),
    ),
    HostTime(
        "launches of a decode step of 32 layers, beyond a graph", "LLaMA-7B, August 2023, GPU not said",
        "vLLM issue 914: 30 against 69 tokens/s", step_s=(18.8e-3, 18.8e-3),
    ),
)  # fmt: skip

_EAGER_HOST = Host(CALLS, CALLS, overlaps=(), source="PyTorch, eager: a framework call for each operator", times=_TIMES)
_COMPILED_HOST = Host(CAPTURED, CAPTURED, overlaps=(), source='torch.compile, mode "reduce-overhead"')
#: Framework calls that the hooks of a unit take as long as, forward and backward: by unit and by weight. Fitted by
#: benchmarks/fsdp_hooks.py on PyTorch 2.13 (FSDP2 on a CPU, nothing sent, the middle one of three runs, 2026-11-23).
_HOOKS = ((130.0, 3.2), (85.0, 3.9))
#: FSDP (backward_prefetch BACKWARD_PRE, limit_all_gathers; FSDP2 prefetches a layer ahead), and the buckets of DDP.
#: Source: pytorch/pytorch, torch/distributed/fsdp; the documentation of DistributedDataParallel, bucket_cap_mb.
_FSDP = TrainingFramework(
    "torch/distributed/fsdp, pytorch.org/docs/stable/fsdp; DDP reduces buckets of 25 MiB beside the backward pass",
    gradients_overlap=True, bucket_bytes=25 * 2.0**20, shards=True, copies_out=True, hooks=_HOOKS,
    scales=("fp8_current", "fp8_row"), scales_now=True, keeps_products=True, products_apart=True,
    unverified="that FSDP2 is what runs from 2.9 on, whose documentation calls FSDP1 deprecated",
)  # fmt: skip
_FSDP_OF_2022 = replace(
    _FSDP,
    attention=FLASH_1,
    copies_out=False,
    limits_gathers=True,
    unverified="that FSDP1's hooks take as long as FSDP2's, which a CPU can run, and that models of that"
    " time called FlashAttention 1 (llm-foundry did)",
)
#: Source: PyTorch's release notes of 2.2 (FlashAttention-2), and of 2.5.1 (cuDNN's attention, new in 2.5, off again).
_FSDP_OF_2024 = replace(
    _FSDP,
    attention=FLASH_2,
    copies_out=False,
    limits_gathers=True,
    unverified="FSDP1's hooks, as above; that cuDNN answers on Hopper from 2.9 on (sdp_utils.cpp, from memory)",
)


def _ages(host: Host) -> tuple[Vintage, ...]:
    return (
        Vintage("1.13", "", host, collectives=_COLLECTIVES, since="2022-10", training=_FSDP_OF_2022),
        Vintage("2.2", "", host, collectives=_COLLECTIVES, since="2024-01", training=_FSDP_OF_2024),
        Vintage("2.9", "", host, collectives=_COLLECTIVES, since="2025-10", training=_FSDP, classes=CLASSES),
    )


EAGER_VINTAGES, COMPILE_VINTAGES = _ages(_EAGER_HOST), _ages(_COMPILED_HOST)
