"""DeepEP: kernels that bring tokens to experts on other GPUs, which vLLM and SGLang call where they are asked to.

Decode steps use its low-latency kernels, which write a copy of each row into the memory of the GPU that has its
expert, over NVLink or RDMA. Prompts use the normal ones: a row goes to each node once and is forwarded there. Rows go
out in fp8 (a scale for 128 numbers) and come back in 16 bit.

Where its numbers are from (README.md of deepseek-ai/DeepEP@567632d; H800 with 200 GB/s of NVLink and 50 GB/s of
InfiniBand a GPU, hidden 7168, top-8): low latency, 128 tokens, takes 77, 118, 155, 173, 192, 194 microseconds out and
114, 195, 273, 314, 369, 360 back on 8 to 256 GPUs. A line through the two of eight GPUs has 168 GB/s and 38
microseconds; of the ten over nodes, with 48 GB/s, what is left over is 35 to 46 microseconds, but for two of the way
back over 128 and 256 (82, 64). Normal, 4,096 tokens: 153 and 158 GB/s over NVLink on eight GPUs; 58 and 51 GB/s on 32
and 64, of bytes that stay in the node, too: 43.5 and 44.6 of those that leave it. The normal ones run on 20 SMs
(Buffer.num_sms; DeepSeek-V3, arXiv:2412.19437, section 3.2.2).
"""

from __future__ import annotations

from predictor.engines.library import Exchanges, Library

#: Shares of links and time of a call: read off README.md of deepseek-ai/DeepEP@567632d, as said above.
LIBRARIES = (
    Library(
        "deepep",
        sends_tokens=True,
        exchanges=Exchanges(
            start_s=40e-6, share_link_direct=0.84, share_net_direct=0.96, share_link_forwarded=0.77,
            share_net_forwarded=0.88, sms=20, source="deepseek-ai/DeepEP@567632d README.md",
            unverified="fewer tokens than 128 a GPU, Blackwell, what a call of the normal kernels takes at least",
        ),
    ),
)  # fmt: skip
