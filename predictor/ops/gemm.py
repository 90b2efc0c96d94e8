"""Matrix products C[M, N] = A[M, K] B[K, N], alone (linear), batched (bmm) or grouped (one B for every group)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from predictor.files.records import dataclass
from predictor.formats.dtypes import bytes_of
from predictor.formats.quantization import activation_bytes, weight_bytes
from predictor.ops.base import Gradient, Op, Piece

if TYPE_CHECKING:
    from predictor.ops.quantize import Quantize


def output_dtype(dtype: str) -> str:
    """Dtype of the result: quantized products accumulate in 32 bit and write bf16."""
    return "bf16" if bytes_of(dtype) < 2 else dtype


@dataclass(frozen=True, slots=True)
class Gemm(Op):
    """``batch`` independent products of shape (m, k) x (k, n).

    ``kind`` is "linear" (B is a weight), "bmm" (both are activations) or "grouped" (expert GEMMs: ``batch`` groups of m
    rows each). ``layout`` names how A and B lie in memory as BLAS does: "tn" for a PyTorch linear layer forward
    (row-major weight of shape (n, k)), "nn" for a plain matmul, "nt" for a weight gradient. ``quant`` names a
    quantization scheme (`predictor.formats.quantization`) where the dtype, in which the product computes, does not say
    it all. ``quantized``: A comes in its narrow format from another node of the graph, so that no kernel of this call
    makes it.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    kind: str = "linear"
    bias: bool = False
    layout: str = "tn"
    quant: str = ""
    quantized: bool = False

    family: ClassVar[str] = "gemm"
    columns: ClassVar[tuple[str, ...]] = ("batch", "m", "n", "k")
    unit: ClassVar[str] = "matrix"

    @property
    def label(self) -> str:
        return self.kind

    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k

    def bytes_read(self) -> float:
        a = self.batch * self.m * self.k * activation_bytes(self.dtype, self.quant)
        b = self.batch * self.k * self.n * weight_bytes(self.dtype, self.quant)
        return a + b + (self.n * bytes_of(output_dtype(self.dtype)) if self.bias else 0.0)

    def bytes_written(self) -> float:
        return self.batch * self.m * self.n * bytes_of(output_dtype(self.dtype))

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Gemm:
        """An axis of both operands and the result is one of the batch; of the operands alone, the contracted one.

        Of gradients of grouped products, whose operands come in another order, sizes tell rows from columns.
        """
        a, b, c = inputs[0].split, inputs[1].split, outputs[0].split
        m, n, k, batch = self.m, self.n, self.k, self.batch
        for axis, (part, whole) in c.items():
            if axis in a and axis in b:
                batch = batch * part // whole
            elif whole == self.m if self.kind == "grouped" and (whole == self.m) != (whole == self.n) else axis in a:
                m = m * part // whole
            else:
                n = n * part // whole
        summed: dict[str, tuple[int, int]] = {}  # by axis of the mesh
        for piece in inputs:
            for of, over in zip(piece.split.values(), piece.over, strict=True):
                if over not in outputs[0].over and (over not in summed or of[1] == self.k):
                    summed[over] = of
        for part, whole in summed.values():
            k = k * part // whole
        return Gemm(self.dtype, m, n, k, batch, self.kind, self.bias, self.layout, self.quant, self.quantized)

    def activation_bytes(self) -> float:
        if self.kind == "linear":
            return self.m * self.k * self.itemsize + self.bytes_written()
        return self.bytes_moved()

    def cold_bytes(self) -> float:
        return self.n * self.k * weight_bytes(self.dtype, self.quant) if self.kind == "linear" else 0.0

    def weights(self) -> int:
        """A linear layer's weight and bias; the operands of another product are activations, or an expert's."""
        return self.n * self.k + (self.n if self.bias else 0) if self.kind == "linear" else 0

    def done_before(self) -> Quantize | None:
        """The quantization of A, where another node has done it."""
        if not self.quantized or activation_bytes(self.dtype, self.quant) >= 2:
            return None
        from predictor.ops.quantize import Quantize

        return Quantize(self.dtype, self.batch * self.m, self.k)

    def backward(self) -> tuple[Op, ...]:
        """dA = dC B^T and dB = A^T dC; with a bias, the column sum of dC."""
        grad_a = Gemm(self.dtype, self.m, self.k, self.n, self.batch, self.kind, False, "nn")
        if self.kind == "linear":
            grad_b = Gemm(self.dtype, self.n, self.k, self.m, self.batch, self.kind, False, "nt")
        else:
            grad_b = Gemm(self.dtype, self.k, self.n, self.m, self.batch, self.kind, False, "nt")
        if not self.bias:
            return (grad_a, grad_b)
        from predictor.ops.elementwise import Reduce

        return (grad_a, grad_b, Reduce(output_dtype(self.dtype), self.m, self.n))

    def gradients(self) -> tuple[Gradient, ...]:
        return _GRADIENTS if self.bias else _GRADIENTS[:2]


_GRADIENTS = (Gradient((0,), (1,)), Gradient((1,), (0,)), Gradient((2,)))
