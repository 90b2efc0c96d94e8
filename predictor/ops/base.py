"""What every operator says of itself: FLOPs, bytes moved, the unit that computes it, and its backward pass.

Counts are of one call on one GPU. 1 FMA = 2 FLOP. Bytes are the compulsory traffic: every input once, every output
once; what a kernel reads again is the business of an estimator, never of the bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from predictor.errors import UnsupportedError
from predictor.files.records import dataclass
from predictor.formats.dtypes import bytes_of

if TYPE_CHECKING:
    from predictor.graph.tensor import Tensor
    from predictor.ops.quantize import Quantize

FORWARD = "forward"
BACKWARD = "backward"

#: The stream of a GPU that computes; every network has one of its own.
COMPUTE = "compute"
#: The link to the host's memory, whose copies no multiprocessor works on.
HOST = "host"


#: In place of positions: every input.
EVERY = (-1,)


class Gradient(NamedTuple):
    """What one operator of a backward pass makes and reads; by position, as the forward operator has its tensors.

    ``makes``: the inputs whose gradients it makes; none where what it makes is for those after it alone, which say
    ``before``: they read it. That has the shape of the operator's result, or that of the tensor ``like`` of `Op.kept`.
    ``incoming``: it reads the gradient of the result. ``inputs``, ``outputs`` and ``kept``: what it reads of the
    forward pass, so that autograd saves it.
    """

    makes: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    incoming: bool = True
    before: bool = False
    like: int = -1


class Kept(NamedTuple):
    """A tensor that an operator writes in training for its backward pass alone.

    Its axes and shape are those of the first output, or of the first input (``of_input``), but for the last ``drop``
    axes (-1: for all), which ``axes`` of ``shape`` follow. ``dtype`` "": that of the other tensor.
    """

    name: str
    dtype: str = ""
    of_input: bool = False
    drop: int = 0
    axes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()


class Piece:
    """A ``whole`` tensor of a node and the ``local`` one that a rank has of it, the very same where nothing splits it.

    ``split``: name of an axis that is split -> (entries on this rank, entries of all). ``over``: the axes of the mesh
    that it is split over.
    """

    __slots__ = ("local", "over", "split", "whole")

    def __init__(
        self, whole: Tensor, local: Tensor, split: Mapping[str, tuple[int, int]], over: tuple[str, ...]
    ) -> None:
        self.whole = whole
        self.local = local
        self.split = split
        self.over = over

    def share(self, count: int, *axes: str) -> int:
        """The rank's part of a ``count`` that grows with this tensor; with ``axes``, with those of its axes."""
        if not axes:
            return count * self.local.elements // self.whole.elements if self.split else count
        for axis in axes:
            if axis in self.split:
                part, whole = self.split[axis]
                count = count * part // whole
        return count


@dataclass(frozen=True, slots=True)
class Op(ABC):
    """One operator with its shape and dtype.

    ``family`` groups operators that one estimator predicts; ``columns`` are the fields that an estimator of the family
    is given as arrays of shape (n,), in this order, for n operators of one family.
    """

    dtype: str

    family: ClassVar[str] = ""
    columns: ClassVar[tuple[str, ...]] = ()
    called: ClassVar[Mapping[str, str]] = {}  # columns that people call otherwise
    #: "matrix" where the tensor cores (or matrix cores) can do the work, "vector" where the CUDA cores do.
    unit: ClassVar[str] = "vector"

    @property
    def label(self) -> str:
        """The operator class a reader sees in a breakdown ("linear", "softmax", ...)."""
        return self.family

    @property
    def stream(self) -> str:
        """What of a GPU it keeps busy: `COMPUTE`, or a network, named by its links."""
        return COMPUTE

    @property
    def itemsize(self) -> float:
        """Bytes of one element of the operator's dtype."""
        return bytes_of(self.dtype)

    @abstractmethod
    def flops(self) -> float:
        """Floating-point operations of one call."""

    def missed_bytes(self, l2_bytes: float) -> float:
        """Bytes that are read once more from DRAM where what is read again lies in no order, and L2 is smaller."""
        return 0.0

    def least_flops(self) -> float:
        """Floating-point operations of the cheapest algorithm that libraries have: what the roofline counts."""
        return self.flops()

    @abstractmethod
    def bytes_read(self) -> float:
        """Compulsory bytes read by one call."""

    @abstractmethod
    def bytes_written(self) -> float:
        """Compulsory bytes written by one call."""

    def bytes_moved(self) -> float:
        """Compulsory bytes read and written."""
        return self.bytes_read() + self.bytes_written()

    def activation_bytes(self) -> float:
        """Bytes of the activations that one call reads and writes: without weights, and without a cache."""
        return self.bytes_moved()

    def cold_bytes(self) -> float:
        """Bytes of weights and of cached keys and values that one call reads; a pass finds them in DRAM."""
        return 0.0

    def backward(self) -> tuple[Op, ...]:
        """The operators that eager autograd runs for this one, in order; empty where it runs none."""
        return ()

    def gradients(self) -> tuple[Gradient, ...]:
        """For each operator of `backward`, what it reads and makes. Where an operator does not say: the first reads
        the result's gradient and all inputs, each what the one before it made, and the last makes all gradients."""
        ops = len(self.backward())
        return tuple(
            Gradient(EVERY if i == ops - 1 else (), () if i else EVERY, incoming=not i, before=i > 0)
            for i in range(ops)
        )

    def backward_in_one(self) -> tuple[tuple[Op, ...], tuple[Gradient, ...]]:
        """`backward` and `gradients` where chains are fused: as in eager execution, but for what says otherwise."""
        return self.backward(), self.gradients()

    def kept(self) -> tuple[Kept, ...]:
        """What it writes for its backward pass beside its outputs."""
        return ()

    def local(self, inputs: Sequence[Piece], outputs: Sequence[Piece]) -> Op:
        """This operator on what one rank has of its node's tensors, some of which are split."""
        name = inputs[0].whole.name if inputs else self.label
        raise UnsupportedError(f"{type(self).__name__} on a part of {name!r}: expected an operator with a rule `local`")

    def made_of(self, output: int) -> Sequence[int] | None:
        """The places of the inputs that an output is made of; None: of all."""
        return None

    def stays_partial(self, partial: Sequence[bool]) -> bool:
        """Whether the result is a partial sum where those of the inputs are: a sum of partial sums is one."""
        return False

    def weights(self) -> int:
        """Elements of the parameters that the operator owns, whose gradients it makes; 0 where it owns none."""
        return 0

    def kernels(self) -> int:
        """GPU kernels that one call launches."""
        return 1

    def done_before(self) -> Quantize | None:
        """The quantization that serving libraries run in one call with it, and were measured with, and this call finds
        done; in one kernel, whichever a library runs."""
        return None

    def link_seconds(self) -> float:
        """Seconds that the links between GPUs need at least for what one call sends; 0 for work on one GPU."""
        return 0.0


@dataclass(frozen=True, slots=True)
class StreamingOp(Op):
    """An operator bound by memory: ``read_bytes`` and ``write_bytes`` are columns of its estimator, too."""

    @property
    @abstractmethod
    def read_bytes(self) -> float:
        """Compulsory bytes read by one call."""

    @property
    @abstractmethod
    def write_bytes(self) -> float:
        """Compulsory bytes written by one call."""

    def bytes_read(self) -> float:
        return self.read_bytes

    def bytes_written(self) -> float:
        return self.write_bytes
