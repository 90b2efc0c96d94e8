"""vLLM: decode steps are captured, prompts are launched one kernel at a time.

Its backends write new keys and values before the attention kernel, in the same call (`reshape_and_cache_flash` in
vllm/v1/attention/backends/flash_attn.py, 0.14): the measured call holds both.
"""

from predictor.engines.base import CAPTURED, LAUNCHES, Engine

ENGINES = (Engine("vllm", "vllm", LAUNCHES, CAPTURED, serves=True),)
