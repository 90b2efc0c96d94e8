"""One step of an optimizer over all parameters of a GPU."""

from __future__ import annotations

from typing import ClassVar

from predictor.files.records import dataclass
from predictor.ops.base import StreamingOp

# kind -> bytes per parameter read and written with fp32 state, FLOP per parameter, kernels a chunk. Fused Adam reads
# p, g, m, v and writes p, m, v once; the foreach form runs seven multi-tensor kernels (source: torch.optim.adam,
# _multi_tensor_adam): lerp m (reads m, g), mul v, addcmul v (v, g), sqrt v, div, add eps, addcdiv p (p, m, the root);
# that is 11 reads and 7 writes of 4 bytes.
# adam_8bit keeps m and v in 8 bits, with a scale of 32 bits each for 2,048 of them (Dettmers et al., arXiv:2110.02861).
_READ = {"sgd": 8, "adam": 4 * 11, "adam_fused": 16, "adam_8bit": 10}
_WRITE = {"sgd": 4, "adam": 4 * 7, "adam_fused": 12, "adam_8bit": 6}
_FLOP = {"sgd": 2, "adam": 12, "adam_fused": 12, "adam_8bit": 20}
_KERNELS = {"sgd": 1, "adam": 7, "adam_fused": 1, "adam_8bit": 1}
KINDS = tuple(_READ)

#: Parameters that one multi-tensor launch covers (chunks of 65,536 elements, up to 320 chunks). Source:
#: PyTorch's MultiTensorApply.cuh.
PARAMETERS_PER_LAUNCH = 320 * 65536


@dataclass(frozen=True, slots=True)
class OptimizerStep(StreamingOp):
    """``kind``: "sgd", "adam" (foreach, PyTorch's default), "adam_fused" or "adam_8bit". fp32 parameters and states.

    With ``mixed`` the step also reads 16-bit gradients in place of fp32 ones and writes the 16-bit copy of the weights.
    """

    parameters: int
    kind: str = "adam"
    mixed: bool = False

    family: ClassVar[str] = "optimizer"
    columns: ClassVar[tuple[str, ...]] = ("parameters", "read_bytes", "write_bytes")

    @property
    def label(self) -> str:
        return "optimizer"

    @property
    def read_bytes(self) -> float:
        return float(self.parameters) * (_READ[self.kind] - (2 if self.mixed else 0))

    @property
    def write_bytes(self) -> float:
        return float(self.parameters) * (_WRITE[self.kind] + (2 if self.mixed else 0))

    def flops(self) -> float:
        return float(self.parameters) * _FLOP[self.kind]

    def kernels(self) -> int:
        return _KERNELS[self.kind] * max(1, -(-self.parameters // PARAMETERS_PER_LAUNCH))
