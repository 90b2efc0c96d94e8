"""Shapes that the harness measures and no graph holds: ceilings of a device, writes of a KV cache, samplers.

They are rows of their own folders. Their fields have no column in the measurement schema, so they stand in the
harness's `shape` column as JSON, and an import leaves them out by name until the predictor has a class for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from predictor.ops import OPERATORS, Op


@dataclass(frozen=True, slots=True)
class Ceiling(Op):
    """What a device can sustain. ``kind`` and the meaning of ``size``:

    "matmul"    a square product of ``size`` rows: sustained FLOP/s of the dtype
    "read", "copy"  over ``size`` bytes: bandwidth of device memory, or of the cache where ``size`` fits into it
    "launch"    an empty-ish kernel in a stream of them: the time of one launch (``size`` elements)
    "dispatch"  the same, host side alone: the CPU time of one operator call
    """

    kind: str
    size: int

    family: ClassVar[str] = "ceiling"
    unit: ClassVar[str] = "matrix"

    def flops(self) -> float:
        return 2.0 * self.size**3 if self.kind == "matmul" else 0.0

    def bytes_read(self) -> float:
        if self.kind == "matmul":
            return 2.0 * self.size**2 * self.itemsize
        return float(self.size) if self.kind in ("read", "copy") else 0.0

    def bytes_written(self) -> float:
        if self.kind == "matmul":
            return self.size**2 * self.itemsize
        return float(self.size) if self.kind == "copy" else 0.0


@dataclass(frozen=True, slots=True)
class KvWrite(Op):
    """Keys and values of ``tokens`` put into a paged cache; ``latent``: one vector a token (latent attention)."""

    tokens: int
    kv_heads: int
    head_dim: int
    latent: bool = False

    family: ClassVar[str] = "kv_write"

    def bytes_read(self) -> float:
        return self.tokens * self.kv_heads * self.head_dim * (1 if self.latent else 2) * self.itemsize

    def bytes_written(self) -> float:
        return self.bytes_read()

    def flops(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Sampler(Op):
    """Logits of ``rows`` sequences to what top-k and top-p leave, or to a token of it."""

    rows: int
    vocab: int
    top_k: int
    top_p: float = 0.9  # chosen by hand, not from data: sweeps name it

    family: ClassVar[str] = "sampler"

    def bytes_read(self) -> float:
        return float(self.rows * self.vocab * self.itemsize)

    def bytes_written(self) -> float:
        return 4.0 * self.rows

    def flops(self) -> float:
        return 0.0


OWN: dict[str, type[Op]] = {"ceiling": Ceiling, "kv_write": KvWrite, "sampler": Sampler}
KNOWN: dict[str, type[Op]] = {**OPERATORS, **OWN}
