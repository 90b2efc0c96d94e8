"""What every operator says of itself: FLOPs, bytes moved, the unit that computes it, and its backward pass.

Counts are of one call on one GPU. 1 FMA = 2 FLOP. Bytes are the compulsory traffic: every input once, every output
once; what a kernel reads again is the business of an estimator, never of the bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from predictor.dtypes import bytes_of

FORWARD = "forward"
BACKWARD = "backward"

#: The stream of a GPU that computes; every network has one of its own.
COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class Op(ABC):
    """One operator with its shape and dtype.

    ``family`` groups operators that one estimator predicts; ``columns`` are the fields that an estimator of the family
    is given as arrays of shape (n,), in this order, for n operators of one family.
    """

    dtype: str

    family: ClassVar[str] = ""
    columns: ClassVar[tuple[str, ...]] = ()
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

    @abstractmethod
    def bytes_read(self) -> float:
        """Compulsory bytes read by one call."""

    @abstractmethod
    def bytes_written(self) -> float:
        """Compulsory bytes written by one call."""

    def bytes_moved(self) -> float:
        """Compulsory bytes read and written."""
        return self.bytes_read() + self.bytes_written()

    def backward(self) -> tuple[Op, ...]:
        """The operators that eager autograd runs for this one, in order; empty where it runs none."""
        return ()

    def weights(self) -> int:
        """Elements of the parameters that the operator owns, whose gradients it makes; 0 where it owns none."""
        return 0

    def kernels(self) -> int:
        """GPU kernels that one call launches."""
        return 1

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
