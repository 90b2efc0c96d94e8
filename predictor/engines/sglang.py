"""SGLang: decode steps are captured, prompts are launched one kernel at a time.

Its backends write new keys and values before the attention kernel, in the same call (`set_kv_buffer`).

It picks an attention backend by GPU (`server_args.py`, 0.4 to 0.5): FlashAttention-3 on Hopper, FlashInfer on Ampere
and Ada. The measured tables have FlashInfer under its name on L40S and RTX PRO 6000, but on A100 "flash_attention",
that is FlashAttention-3 built for sm80, which no default takes there. It decodes at 0.5 to 1.2 TB/s, where vLLM's
FlashAttention-2, which splits the cache as FlashInfer does, reaches 0.8 to 1.6. On the boards that have rows of both,
decode calls above 50 us take vLLM's kernels 1.12 (L40S) and 1.05 (RTX PRO 6000) times as long as FlashInfer (medians
over grouped queries, heads of 128). So vLLM's rows come nearer. In prefill the two tables differ on A100 as vLLM and
FlashInfer do elsewhere (1.17, 1.12 and 1.23): what was measured stays.
"""

from predictor.engines.base import CAPTURED, LAUNCHES, Engine

ENGINES = (Engine("sglang", "sglang", LAUNCHES, CAPTURED, serves=True, decode_attention_of={"8.0": "vllm"}),)
