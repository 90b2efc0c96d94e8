"""Megatron by age: what it overlaps, in which dtype it keeps gradients, and how it attends. Versions are year.month.

Sources: NVIDIA/Megatron-LM@a8d172b31e92 (April 2021), @55ba1f7b96d1 (June 2022), @baf94af3 (core_v0.8.0, August 2024),
@d98e8a64ddf3 (August 2026).
"""

from __future__ import annotations

from predictor.engines.attention_ages import CUDNN_9
from predictor.engines.base import CALLS, CAPTURES
from predictor.engines.reductions import AllReduceRules
from predictor.engines.vintage import Host, TrainingFramework, Vintage

_HOST = Host(CALLS, CALLS, overlaps=(), source="PyTorch modules, called from Python")
_COLLECTIVES = AllReduceRules("torch.distributed, backend nccl")
#: Elements of a bucket of gradients where their reduction overlaps, at least. Source: Megatron Core
#: distributed_data_parallel.py:134-137, max(40 M, 1 M x dp) parameters; of 4 bytes.
_BUCKET = 40e6 * 4

VINTAGES = (
    Vintage(
        "21.04", "a8d172b31e92", _HOST, collectives=_COLLECTIVES, since="2021-04",
        training=TrainingFramework(
            "training.py:376-405, model/distributed.py:174, p2p_communication.py:108-112",
            scatters_p2p=True, main_gradients="fp32", norm_and_clip=True,
            unverified="fp16 runs keep main gradients in fp32 (a flag there, the default with bf16)",
        ),
    ),
    Vintage(
        "22.06", "55ba1f7b96d1", _HOST, collectives=_COLLECTIVES, since="2022-06",
        training=TrainingFramework(
            "mpu/layers.py:225-297, arguments.py:502-583", tensor_overlaps=True, scatters_p2p=True,
            adds_in_product=True, main_gradients="fp32", norm_and_clip=True,
        ),
    ),
    Vintage(
        "24.08", "baf94af3", _HOST, collectives=_COLLECTIVES, since="2024-08",
        training=TrainingFramework(
            "core/distributed, arguments.py:1413-1429 (the overlaps are flags, which NeMo sets wherever there are"
            " replicas: nemo_toolkit 2.0.0 lightning/pytorch/callbacks/megatron_comm_overlap.py); Transformer Engine"
            " 1.13 pytorch/attention.py:925-935 (on Hopper cuDNN's attention before FlashAttention);"
            " docs/user-guide/features/cuda_graph.md:26-37 (a graph a layer, or full_iteration without the optimizer)",
            tensor_overlaps=True, gradients_overlap=True, weights_overlap=True, p2p_overlaps=True, bucket_bytes=_BUCKET,
            adds_in_product=True, main_gradients="fp32", norm_and_clip=True, scales=("fp8_current", "fp8_block"),
            whole_adapters=True, attention=CUDNN_9, keeps_narrow=True,
            attends_again=True, captures=CAPTURES,
            unverified="that adapters beside its layers are NeMo's",
        ),
    ),
)  # fmt: skip
