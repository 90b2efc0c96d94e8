"""What one pass through a model works on: which tokens, in which dtypes, by which kind of kernels."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.errors import RequestError

MODES = ("forward", "prefill", "decode", "train")


@dataclass(frozen=True, slots=True)
class Step:
    """One pass: ``batch`` sequences with ``seq_len`` query tokens each, after ``context_len`` tokens in the KV cache.

    ``gemm_dtype`` (of the linear layers; the head, the router and attention stay at 16 bit or more) and ``kv_dtype``
    are ``act_dtype`` where they are "". ``attention``: "math" or "flash". ``fused``: what torch.compile or a serving
    engine runs, in place of the operators of eager PyTorch. ``logits``: of "all" positions or the "last" one of every
    sequence. ``training``: dropout is active and autograd saves tensors.
    """

    mode: str = "forward"
    batch: int = 1
    seq_len: int = 1
    context_len: int = 0
    act_dtype: str = "fp32"
    gemm_dtype: str = ""
    kv_dtype: str = ""
    attention: str = "math"
    fused: bool = False
    logits: str = "all"
    training: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise RequestError(f"unknown mode {self.mode!r}: expected one of {', '.join(MODES)}")
        if self.attention not in ("math", "flash"):
            raise RequestError(f"unknown attention {self.attention!r}: expected math or flash")
        if self.logits not in ("all", "last"):
            raise RequestError(f"unknown logits {self.logits!r}: expected all or last")
        if self.batch < 1 or self.seq_len < 1 or self.context_len < 0:
            raise RequestError(
                f"batch {self.batch}, seq_len {self.seq_len} and context_len {self.context_len}: "
                "expected at least 1, 1 and 0"
            )
        if self.mode == "decode" and self.seq_len != 1:
            raise RequestError(f"seq_len is {self.seq_len} in decode, expected 1 token a sequence")
        if self.mode == "train" and self.context_len:
            raise RequestError(f"context_len is {self.context_len} in train, expected 0")

    @property
    def tokens(self) -> int:
        """Query tokens of the batch."""
        return self.batch * self.seq_len

    @property
    def kv_len(self) -> int:
        """Positions that the last query can see."""
        return self.context_len + self.seq_len

    @property
    def cached(self) -> bool:
        """True where keys and values go into a cache."""
        return self.mode in ("prefill", "decode") or self.context_len > 0
