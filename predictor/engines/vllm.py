"""vLLM: decode steps are captured, prompts are launched one kernel at a time.

Its backends write new keys and values before the attention kernel, in the same call (`reshape_and_cache_flash` in
vllm/v1/attention/backends/flash_attn.py, 0.14): the measured call holds both.
"""

from predictor.engines.base import CAPTURED, LAUNCHES, Engine
from predictor.engines.memory import MemoryRule

#: The memory of CUDA graphs counts within the fraction from 0.24 on, before that it came on top.
MEMORY = (
    MemoryRule("vLLM", "0.2", "gpu_memory_utilization", "total", 0.90, "vLLM 0.2.7 worker/worker.py:107"),
    MemoryRule(
        "vLLM", "0.24", "gpu_memory_utilization", "total", 0.92,
        "vLLM 0.24.0 config/cache.py:67-75, v1/worker/gpu_worker.py:447-492",
    ),
)  # fmt: skip

ENGINES = (Engine("vllm", "vllm", LAUNCHES, CAPTURED, serves=True, fp8_cache=True, memory=MEMORY),)
