"""FlashMLA: decode of latent attention on Hopper over a paged cache; vLLM's wheel has a copy.

Read in vllm/third_party/flashmla/flash_mla_interface.py of vLLM 0.33.0. Before the autumn of 2025 `get_mla_metadata`
took lengths and heads, which are still given: later releases take and ignore them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from microbench.libraries.base import BenchLibrary, Kernel, LibraryCall

if TYPE_CHECKING:
    from predictor.ops import Attention

#: Tokens of a page, the only size that it takes. Source: FlashMLA's README.
_PAGE = 64


def _decode(op: Attention, device: Any) -> LibraryCall:
    from microbench.libraries import operands

    name = LIBRARY.module()
    mla = LIBRARY.load("flash_mla_interface" if name.startswith("vllm") else "")
    x = operands.Paged.of(op, device, page=_PAGE)
    metadata, splits = mla.get_mla_metadata(x.lengths, op.q_len * op.heads // op.kv_heads, op.kv_heads)
    query = x.q.view(op.batch, op.q_len, op.heads, op.head_dim)

    def launch(k: Any = x.k) -> Any:
        out, _ = mla.flash_mla_with_kvcache(
            query, k, x.table, x.lengths, op.value_dim, metadata, splits, softmax_scale=op.head_dim**-0.5, causal=True
        )  # fmt: skip
        return out.flatten(0, 1)

    return LibraryCall(launch, lambda: (launch(), x.reference(op)), (x.k,))


#: Compute capabilities. Source: the sources read, see above; what they leave open is the instructions' own.
LIBRARY = BenchLibrary(
    "flash_mla", ("flash_mla", "vllm.third_party.flashmla"), ("vllm", "sglang"), ("flash_mla", "flash-mla", "vllm"),
    "build github.com/deepseek-ai/FlashMLA, or pip install vllm", "as vLLM 0.33.0 has it",
    kernels={"decode": Kernel(_decode, {"vllm": "vllm_flashmla", "sglang": "flashmla"}, (9, 0), (10, 0))},
)  # fmt: skip
