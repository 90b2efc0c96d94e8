"""Mixture of experts: routing (softmax, top-k, permutation) and the expert GEMMs of one GPU as one fused operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from predictor.files.records import dataclass, replace
from predictor.formats.dtypes import bytes_of
from predictor.formats.quantization import weight_bytes
from predictor.ops.base import EVERY, Gradient, Kept, Op, Piece, StreamingOp
from predictor.ops.elementwise import Elementwise
from predictor.ops.gemm import Gemm, output_dtype
from predictor.ops.ordering import Index
from predictor.ops.routing import BALANCED, RANDOM, SHARES, drawn, experts_touched, inclusion, within_capacity


@dataclass(frozen=True, slots=True)
class MoE(Op):
    """The expert layers of ``tokens`` tokens on one GPU of an expert group.

    ``experts`` and ``top_k`` are the model's; ``ep`` GPUs share the experts, ``tp`` GPUs share the width
    ``intermediate`` of each. ``gated`` experts have three matrices (gate, up, down), others two. ``distribution`` says
    how tokens fall on experts (`predictor.ops.routing`: "random", "zipf:1", "balanced", "power_law_1.01", ...).
    ``quant`` names the experts' quantization scheme (`predictor.formats.quantization`) where the dtype does not say it
    all. ``dispatched``: an exchange brought this GPU the tokens that pick its experts, and no others; else every GPU
    of the group has all tokens, and its kernels pass over the rows of the others' experts. ``gathered``: the tokens
    are those of ranks of data-parallel attention. ``folds``: its rows are of
    a part of the sequences, where these are split.
    """

    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    gated: bool = True
    tp: int = 1
    ep: int = 1
    distribution: str = BALANCED
    quant: str = ""
    dispatched: bool = False
    folds: bool = False
    gathered: bool = False

    family: ClassVar[str] = "moe"
    columns: ClassVar[tuple[str, ...]] = (
        "tokens", "hidden", "intermediate", "experts", "top_k", "matrices", "tp", "ep",
    )  # fmt: skip
    unit: ClassVar[str] = "matrix"

    @property
    def label(self) -> str:
        return "moe experts"

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def local_experts(self) -> float:
        return self.experts / self.ep

    @property
    def expert_rows(self) -> float:
        """Rows of all expert GEMMs of this GPU together, for an even spread over the group."""
        return self.tokens * self.top_k / self.ep

    @property
    def skew(self) -> float:
        """Rows of the GPU whose experts are the busiest over those of the mean: 1 where all are picked alike."""
        if self.ep == 1 or self.distribution == RANDOM or not drawn(self.distribution):
            return 1.0
        busiest = float(inclusion(self.distribution, self.experts, self.top_k, self.ep).sum())
        return max(1.0, busiest * self.ep / self.top_k)

    def received(self) -> MoE:
        """This layer as the kernels of a GPU see it which was ``dispatched`` its tokens: as many experts as it has, and
        the rows that come to them, of the busiest GPU.

        A token comes once, whatever it picks here: k picks of ep GPUs alike fall on ep (1 - (1 - 1 / ep)^k) different
        ones, so that it picks k over that of this GPU's experts, to the nearest whole number.
        """
        if not self.dispatched or self.ep == 1:
            return self
        local = max(1, round(self.local_experts))
        picks = self.top_k / (self.ep * (1.0 - (1.0 - 1.0 / self.ep) ** self.top_k))
        top_k = max(1, min(local, round(picks)))
        distribution = self.distribution
        if drawn(distribution) and distribution != RANDOM:
            chances = inclusion(distribution, self.experts, self.top_k, self.ep)
            distribution = SHARES + ",".join(f"{share:.6g}" for share in chances / chances.sum())
        tokens = max(1, round(self.expert_rows * self.skew / top_k))
        return replace(
            self, tokens=tokens, experts=local, top_k=top_k, ep=1, distribution=distribution, dispatched=False
        )

    def within(self, factor: float) -> MoE:
        """This layer where every expert takes ``factor`` times its even share of rows at most (0: all that come)."""
        if not factor:
            return self
        rows, kept = within_capacity(self.distribution, self.tokens, self.experts, self.top_k, factor)
        return replace(self, tokens=max(1, round(rows / self.top_k)), distribution=kept)

    @property
    def active_experts(self) -> float:
        """Experts of this GPU that see a token, as expected: their weights are what is read.

        At most one a row, and at least the ``top_k`` of one token.
        """
        if drawn(self.distribution):
            touched = experts_touched(self.distribution, self.tokens, self.experts, self.top_k, self.ep)
            return max(1.0, touched)
        if self.distribution == BALANCED:
            return max(1.0, min(self.local_experts, self.expert_rows))
        # A benchmark's skewed load hits fewer experts; the bound takes the fewest that can be hit.
        return max(1.0, min(self.local_experts, self.expert_rows, self.top_k / self.ep))

    @property
    def _expert_weights(self) -> float:
        return self.matrices * self.hidden * self.intermediate / self.tp

    def flops(self) -> float:
        return 2.0 * self.expert_rows * self._expert_weights

    def bytes_read(self) -> float:
        activations = self.tokens / self.ep * self.hidden * bytes_of(output_dtype(self.dtype))
        return self.active_experts * self._expert_weights * weight_bytes(self.dtype, self.quant) + activations

    def bytes_written(self) -> float:
        return self.tokens / self.ep * self.hidden * bytes_of(output_dtype(self.dtype))

    def activation_bytes(self) -> float:
        """Of the rows of all experts, in 16 bit: what goes in, and the inner width."""
        return self.expert_rows * (self.hidden + self.intermediate / self.tp) * 2.0

    def cold_bytes(self) -> float:
        return self.bytes_read()

    def weights(self) -> int:
        """The matrices of this GPU's experts."""
        return round(self.local_experts * self._expert_weights)

    def apart(self, active: bool = False) -> tuple[Op, Op, Op, Op, Op]:
        """The kernels of a framework that trains, of which each has a backward pass of its own: rows picked by expert,
        the product into the width, the activation, the product out of it, and rows summed for each token; both products
        grouped over the local experts (``active``: over those that get a row), with the busiest GPU's rows.

        Source: Megatron-Core's `TEGroupedMLP` between `permute` and `unpermute` (megatron/core/transformer/moe/
        experts.py, moe_utils.py), and transformers' `grouped_mm_experts_forward` (integrations/moe.py).
        """
        groups = max(1, round(self.active_experts if active else self.local_experts))
        each = max(1, round(self.expert_rows * self.skew / groups))
        rows, tokens, width = each * groups, max(1, self.tokens // self.ep), self.intermediate // self.tp
        wide = output_dtype(self.dtype)
        return (
            Index(wide, rows, self.hidden, tokens),
            Gemm(self.dtype, each, (self.matrices - 1) * width, self.hidden, groups, "grouped", quant=self.quant),
            Elementwise(wide, "swiglu" if self.gated else "gelu", rows * width),
            Gemm(self.dtype, each, self.hidden, width, groups, "grouped", quant=self.quant),
            Index(wide, rows, self.hidden, tokens, "scatter_add"),
        )

    def backward(self) -> tuple[Op, ...]:
        """Those of `apart`, from the last to the first; rows are added into a gradient that starts from zeros there."""
        picked, up, activation, down, summed = self.apart()
        (into_rows,), (into_width,) = summed.backward(), activation.backward()
        (of_rows, of_up), (of_width, of_down) = up.backward(), down.backward()
        _, into_tokens = picked.backward()
        return (into_rows, of_width, of_down, into_width, of_up, of_rows, into_tokens)

    def gradients(self) -> tuple[Gradient, ...]:
        """Inputs: tokens, choices, the matrices into the width and out of it. The choices get the gradient of the
        weights by which the experts' results are summed."""
        activated, result = (3, 4) if self.gated else (2, 3)
        return (
            Gradient((), (1,), like=result),
            Gradient((), (3,), incoming=False, before=True, like=activated),
            Gradient((3, 1), kept=(activated, result)),
            Gradient((), kept=(1, 2) if self.gated else (1,), incoming=False, before=True, like=1),
            Gradient((2,), kept=(0,), incoming=False, before=True),
            Gradient((), (2,), incoming=False, before=True, like=0),
            Gradient((0,), incoming=False, before=True),
        )

    def kept(self) -> tuple[Kept, ...]:
        """Rows gathered by expert, what gate and up (or up alone) give, the activation, its product with the other
        half, and the experts' results; of the busiest GPU."""
        rows, width, dtype = round(self.expert_rows * self.skew), self.intermediate // self.tp, output_dtype(self.dtype)
        along = "sequence" if self.folds else "tokens"
        wide = "expert_width" if self.folds else "mlp"  # which no rule splits
        hidden, mlp = (along, "hidden"), (along, wide)
        whole, half = (rows, self.hidden), (rows, width)
        inner = [("activation", mlp, half)]
        if self.gated:
            inner = [("gate and up", (along, f"{wide} | {wide}"), (rows, 2 * width)), *inner, ("product", mlp, half)]
        else:
            inner = [("up", mlp, half), *inner]
        every = (("gathered", hidden, whole), *inner, ("result", hidden, whole))
        return tuple(Kept(name, dtype, drop=-1, axes=axes, shape=shape) for name, axes, shape in every)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> MoE:
        """``tp`` and ``ep`` of those who share the weights (the operator names the whole width), and its tokens."""
        tp, ep, down = self.tp, self.ep, inputs[-1].split
        for axis, (part, whole) in down.items():
            if axis == "expert":
                ep *= whole // part
            else:
                tp *= whole // part
        return replace(self, tokens=outputs[0].share(self.tokens), tp=tp, ep=ep)

    def made_of(self, output: int) -> Sequence[int] | None:
        """The result of all; what is kept beside it sums nothing over the ranks."""
        return (0,) if output else None

    def kernels(self) -> int:
        return 4  # permute, two grouped GEMMs with the activation fused, un-permute


@dataclass(frozen=True, slots=True)
class Routing(StreamingOp):
    """Router scores to expert choices: softmax or sigmoid over (tokens, experts), then the top k."""

    tokens: int
    experts: int
    top_k: int

    family: ClassVar[str] = "routing"
    columns: ClassVar[tuple[str, ...]] = ("tokens", "experts", "top_k", "read_bytes", "write_bytes")

    @property
    def label(self) -> str:
        return "moe routing"

    @property
    def read_bytes(self) -> float:
        return self.tokens * self.experts * self.itemsize

    @property
    def write_bytes(self) -> float:
        return self.tokens * self.top_k * 8.0  # a weight and an index

    def flops(self) -> float:
        return 6.0 * self.tokens * self.experts

    def backward(self) -> tuple[Op, ...]:
        from predictor.ops.norm import Softmax

        return (Softmax(self.dtype, self.tokens, self.experts, "backward"),)

    def gradients(self) -> tuple[Gradient, ...]:
        return (Gradient(EVERY, kept=(0,)),)

    def kept(self) -> tuple[Kept, ...]:
        """The probabilities."""
        return (Kept("probabilities", self.dtype, of_input=True),)

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Routing:
        """Its tokens: every rank scores all experts."""
        return Routing(self.dtype, inputs[0].share(self.tokens), self.experts, self.top_k)
