"""What one pass through a model works on: which tokens, in which dtypes, by which kind of kernels."""

from __future__ import annotations

from collections import Counter

from predictor.errors import RequestError
from predictor.files.records import dataclass
from predictor.ops.attention import attended_pairs
from predictor.ops.routing import RANDOM

MODES = ("forward", "prefill", "decode", "train")
#: Batches of a ragged batch's parts below this are a line between whole ones, others are rounded. Chosen by hand,
#: not from data.
_INTERPOLATED = 16
#: Words for the linear layers that get adapters: all of a layer, or attention's projections.
ALL_LINEAR, ATTENTION_LINEAR = "all", "attention"


@dataclass(frozen=True, slots=True)
class Step:
    """One pass: ``batch`` sequences with ``seq_len`` query tokens each, after ``context_len`` tokens in the KV cache.

    ``kv_dtype`` is ``act_dtype`` where it is "". What an engine runs whole is chosen here: ``attention`` is
    "math" or "flash", ``experts`` that are a loop in eager PyTorch are "loop" or "whole". ``logits``: of "all"
    positions or the "last" one of every sequence. ``training``: dropout is active and autograd saves tensors.

    ``lens``: a ragged batch, packed without padding: in decode the tokens that each sequence has in the cache, else
    each one's query tokens; ``context_len`` or ``seq_len`` is then the longest, and a longer ``seq_len`` of a forward
    pass what attention alone is padded to: unfused attention works on such sequences, and a fused kernel's queries of a
    sequence meet as many keys, because the kernel is made for them (FasterTransformer's take 64 to 384).

    ``routing``: how tokens fall on experts (`predictor.ops.routing`). ``lora``: rank of the adapters
    beside linear layers, in training (0: none); ``lora_targets``: which layers have them, `ALL_LINEAR`,
    `ATTENTION_LINEAR` or names with commas (`predictor.models.built.adapted`). ``masked``: positions of each sequence
    that the masked-language-model head works on (0: all). ``sampling``: how the next tokens are chosen, of
    `predictor.engines.SAMPLINGS`; "" where the pass ends with its logits. ``exchanges``: of unfused attention in
    training, GPUs that have a part of every sequence each, and exchange heads for positions around it.
    ``capacity``: in training, rows that an expert takes at most, over those of an even spread (0: all that come).
    ``classes``: release of the classes of models that run, kernel by kernel (`predictor.engines.vintage.Vintage`); "":
    those of 2023, or an engine's own code.
    """

    mode: str = "forward"
    batch: int = 1
    seq_len: int = 1
    context_len: int = 0
    act_dtype: str = "fp32"
    kv_dtype: str = ""
    attention: str = "math"
    logits: str = "all"
    training: bool = False
    lens: tuple[int, ...] = ()
    routing: str = RANDOM
    experts: str = "loop"
    sampling: str = ""
    lora: int = 0
    lora_targets: str = ATTENTION_LINEAR
    masked: int = 0
    exchanges: int = 1
    capacity: float = 0.0
    classes: str = ""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise RequestError(f"unknown mode {self.mode!r}: expected one of {', '.join(MODES)}")
        if self.attention not in ("math", "flash"):
            raise RequestError(f"unknown attention {self.attention!r}: expected math or flash")
        if self.experts not in ("loop", "whole"):
            raise RequestError(f"unknown experts {self.experts!r}: expected loop or whole")
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
        if self.lens:
            longest = self.context_len if self.mode == "decode" else self.seq_len
            fits = max(self.lens) == longest or (self.mode == "forward" and max(self.lens) < longest)
            if len(self.lens) != self.batch or not fits:
                raise RequestError(f"lengths {self.lens}: expected {self.batch}, the longest of {longest}")
            if self.mode == "train" or (self.mode != "decode" and self.context_len):
                raise RequestError(f"lengths in {self.mode} after {self.context_len} tokens: expected none")

    @property
    def tokens(self) -> int:
        """Query tokens of the batch."""
        return sum(self.lens) if self.lens and self.mode != "decode" else self.batch * self.seq_len

    @property
    def kv_tokens(self) -> int:
        """Positions of all sequences that their last queries can see."""
        if not self.lens:
            return self.batch * self.kv_len
        return sum(self.lens) + (self.batch if self.mode == "decode" else 0)

    def parts(self, q_len: int, kv_len: int, causal: bool, window: int) -> tuple[tuple[int, int, int, float], ...]:
        """Attention of the batch as (batch, q_len, kv_len, share): one part, or one for each length of a ragged batch.

        One kernel works on all sequences. Sequences of one length are timed as part of a batch of such sequences that
        holds as much work (pairs of query and key) as the whole batch, so that the GPU is as full; ``share`` is their
        part of it. That batch is rarely whole: small ones are a line between two whole ones. Shares times FLOPs add
        up to those of the sequences, and shares to (about) one kernel.
        """
        if not self.lens:
            return ((self.batch, q_len, kv_len, 1.0),)
        decode = self.mode == "decode"
        counts = Counter(self.lens)
        padded = kv_len if max(self.lens) < q_len and not causal else 0
        shapes = {n: (1, n + 1) if decode else (n, padded or n) for n in counts}
        pairs = {n: attended_pairs(*shapes[n], causal, window) for n in counts}
        work = sum(pairs[n] * times for n, times in counts.items())
        parts = []
        for n, times in sorted(counts.items()):
            shape = shapes[n]
            alike = work / pairs[n]  # sequences of this length that would be as much work
            lower = int(alike) if alike < _INTERPOLATED else round(alike)
            upper = alike - lower if alike < _INTERPOLATED else 0.0
            share = times / (alike if alike < _INTERPOLATED else lower)
            parts.append((lower, *shape, share * (1.0 - upper)))
            if upper > 1e-9:
                parts.append((lower + 1, *shape, share * upper))
        return tuple(parts)

    @property
    def kv_len(self) -> int:
        """Positions that the last query can see."""
        return self.context_len + self.seq_len

    @property
    def cached(self) -> bool:
        """True where keys and values go into a cache."""
        return self.mode in ("prefill", "decode") or self.context_len > 0
