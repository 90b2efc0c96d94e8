"""FasterTransformer as its last commits have it: all that was read is who reduces; batches are served as they come."""

from __future__ import annotations

from predictor.engines.base import LAUNCHES
from predictor.engines.reductions import AllReduceRules
from predictor.engines.vintage import Host, Vintage

VINTAGES = (
    Vintage(
        "", "df4a7534",
        Host(LAUNCHES, LAUNCHES, overlaps=(), source="kernels launched from C++, no graphs", unverified="all"),
        collectives=AllReduceRules(
            "NVIDIA/FasterTransformer@df4a7534 examples/cpp/multi_gpu_gpt/gpt_config.ini:15 "
            "(enable_custom_all_reduce=0; where it is set, up to 50,331,648 bytes: "
            "src/fastertransformer/kernels/custom_ar_kernels.h:26)"
        ),
    ),
)  # fmt: skip
