"""What the estimators of serving kernels share: a physical core times the exponential of boosted trees.

    latency = core(shape, GPU, a few constants) * exp(shrink * clip(trees(dimensionless features)))

The constants of a core are fitted for every measured (GPU, framework, dtype); for a GPU that nobody measured, constants
shared by all of them stand in ("*" for the GPU), and the trees are a booster that has never seen which GPU a row is of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from predictor.dtypes import bytes_of
from predictor.errors import SpecError, UnsupportedError
from predictor.estimators.trees import Trees
from predictor.hardware.gpu import GPUSpec

FloatArray = npt.NDArray[np.float64]

ANY_GPU = "*"

#: Framework -> number in the features. Eager PyTorch runs the kernels of vLLM's unquantized path.
FRAMEWORKS: Mapping[str, int] = {"trtllm": 0, "sglang": 1, "vllm": 2}
_ALIASES: Mapping[str, str] = {"pytorch": "vllm"}

#: Watts per SM and GHz from which on a board holds its boost clock under tensor-core load. Boards with GDDR memory lie
#: at 1.0 (L40S) and 1.3 (RTX PRO 6000), those with HBM at 2.6; below the threshold the sustained clock falls in
#: proportion. Chosen on the measured boards (1.2 to 1.4 do about equally well), not fitted.
FULL_CLOCK_WATTS = 1.3


def framework_name(kernels: str) -> str:
    """The framework whose measured kernels answer for ``kernels``; an unknown one is taken as vLLM."""
    name = _ALIASES.get(kernels, kernels)
    return name if name in FRAMEWORKS else "vllm"


@dataclass(frozen=True, slots=True)
class Device:
    """The scalars of a GPU that a core reads: FLOP/s of one dtype (already cut by power), bytes/s, bytes, SMs, Hz."""

    peak_flops: float
    bandwidth: float
    l2_bytes: float
    sms: float
    clock_hz: float

    @classmethod
    def of(cls, gpu: GPUSpec, dtype: str) -> Device:
        """From a GPU's data sheet; a dtype without a peak computes as bf16, fp16 or fp32, the first that there is."""
        watts = gpu.power_limit_w / (gpu.sm_count * gpu.boost_clock_hz * 1e-9)
        sustained = min(1.0, watts / FULL_CLOCK_WATTS)
        peak = 0.0
        for name in (dtype, "bf16", "fp16", "fp32"):
            try:
                peak = gpu.peak_flops(name)
                break
            except UnsupportedError:
                continue
        return cls(peak * sustained, gpu.memory_bandwidth, float(gpu.l2_bytes), float(gpu.sm_count), gpu.boost_clock_hz)


class Corrections:
    """Constants of the cores and boosters of one artifact, by key; boosters are unpacked when first asked for."""

    def __init__(self, manifest: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]]) -> None:
        try:
            self.cores = {key: np.array(values, dtype=np.float64) for key, values in manifest["cores"].items()}
            self._boosters = dict(manifest["boosters"])
        except KeyError as error:
            raise SpecError(f"manifest lacks {error}; expected what tilecast train writes") from None
        self._weights = weights
        self._trees: dict[str, Trees] = {}

    def core(self, gpu: str, framework: str, *path: str) -> tuple[str, FloatArray]:
        """(the GPU or "*", constants) of the first key there is.

        This GPU's with this framework, then with another one, then those shared by all GPUs in the same order.
        """
        frameworks = (framework, *(name for name in ("vllm", "trtllm", "sglang") if name != framework))
        for name in (gpu, ANY_GPU):
            for run_by in frameworks:
                values = self.cores.get("|".join((name, run_by, *path)))
                if values is not None:
                    return name, values
        raise SpecError(f"the artifact has no constants for {'|'.join((framework, *path))}")

    def has(self, *path: str) -> bool:
        """Whether constants exist under exactly this key."""
        return "|".join(path) in self.cores

    def factor(self, key: str, architecture: str, features: Callable[[], FloatArray]) -> FloatArray | float:
        """exp of the trees' answer under ``key``, clipped and shrunk as its booster says; 1 where there is none.

        The booster for GPUs that nobody measured is trusted in full where a GPU of the same architecture was, and
        shrunk elsewhere: what is common to the measured ones holds only in part for a new generation.
        """
        booster = self._boosters.get(key)
        if booster is None:
            return 1.0
        trees = self._trees.get(key)
        if trees is None:
            trees = self._trees[key] = Trees.unpack(self._weights, booster["prefix"])
        low, high = booster["clip"]
        shrink = 1.0 if architecture in booster["architectures"] else booster["shrink"]
        answer: FloatArray = np.exp(shrink * np.clip(trees.predict(features()), low, high))
        return answer

    def gpus(self) -> tuple[str, ...]:
        """Ids of the GPUs that were measured, sorted."""
        return tuple(sorted({key.split("|", 1)[0] for key in self.cores} - {ANY_GPU}))


def as_utilization(bound_s: FloatArray, seconds: FloatArray) -> FloatArray:
    """Share of the roofline in (0, 1] of kernels that take ``seconds``; what claims to beat the bound reaches it."""
    used: FloatArray = np.clip(bound_s / np.maximum(seconds, 1e-12), 1e-6, 1.0)
    return used


def measured_dtype(dtype: str) -> str:
    """The dtype whose measurements stand in for ``dtype``: 8 bit and less run as fp8 does, the rest as bf16."""
    return "fp8" if bytes_of(dtype) < 2 else "bf16"


class ServingEstimator:
    """What the estimators of serving kernels share: constants and trees, and the GPUs they were fitted on."""

    def __init__(self, name: str, corrections: Corrections) -> None:
        self.name = name
        self._corrections = corrections
        self._gpus = frozenset(corrections.gpus())

    @classmethod
    def from_artifact(cls, manifest: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]]) -> Self:
        """From an artifact's two files; SpecError where a key is missing."""
        return cls(str(manifest.get("name", manifest.get("kind", ""))), Corrections(manifest, weights))

    def covers(self, gpu_id: str) -> bool:
        """Whether the artifact was fitted on measurements of this GPU."""
        return gpu_id in self._gpus
