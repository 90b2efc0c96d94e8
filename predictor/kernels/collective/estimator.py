"""Collectives: the core of `predictor.kernels.collective.core` with the scalars of measured systems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.hardware.gpu import GPUSpec
from predictor.kernels.base import Batch, Launched
from predictor.kernels.collective.core import OWN, CollectiveCalls, Constants, Own, OwnKernels, seconds, with_links
from predictor.kernels.device import Device
from predictor.ops.roofline import FloatArray


class Collectives(Launched):
    """Seconds of collectives from shared constants and the scalars of measured systems."""

    def __init__(
        self, name: str, constants: Constants, scalars: Mapping[str, Own], host_s: Mapping[str, float]
    ) -> None:
        self.name = name
        self._constants = constants
        self._own = {system: scalars_of_system.logs() for system, scalars_of_system in scalars.items()}
        self._calls, self._own_calls = {"collective": {gpu: (host, 0.0) for gpu, host in host_s.items()}}, {}

    @classmethod
    def from_artifact(cls, manifest: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]]) -> Collectives:
        """From an artifact's manifest; SpecError where a constant or a factor is missing."""
        return cls(
            str(manifest["name"]),
            Constants.from_manifest(manifest["constants"], "constants"),
            {system: Own.from_manifest(values, system) for system, values in manifest["systems"].items()},
            {str(gpu): float(value) for gpu, value in manifest["host_s"].items()},
        )

    def seconds(self, batch: Batch, gpu: GPUSpec) -> FloatArray:
        """Kernel time, shape (n,)."""
        if "net_size" in batch.columns:
            from predictor.kernels.collective.core import exchange_seconds  # experts over GPUs alone need it

            return exchange_seconds(batch.columns, [getattr(op, "library", "") for op in batch.ops])
        links = with_links(CollectiveCalls.of(batch.columns), gpu)
        unseen = np.zeros(len(OWN))
        scalars = np.array([self._own.get(getattr(op, "system", ""), unseen) for op in batch.ops])
        kernels = OwnKernels.of([batch.kernels] * len(batch.ops), links.ranks)
        return seconds(links, Device.sheet(gpu), self._constants, scalars, kernels)
