"""What a forecast has to beat: the roofline itself, and the roofline divided by one constant efficiency.

The constant is the median efficiency (cold roofline over latency) of the training rows by operator and dtype. It is
written into the set's manifest when the set is trained, so that both sides saw the same GPUs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.estimators.artifact import ArtifactSet, RooflineOnly

Frame = Any
FloatArray = npt.NDArray[np.float64]


def constant_efficiencies(frame: Frame, roofline: npt.NDArray[np.float64]) -> dict[str, float]:
    """Median of roofline over latency by "op dtype", from rows with ``latency_ms`` and their roofline in ms."""
    keys = frame["op"].astype(str) + " " + frame["dtype"].astype(str)
    ratio = roofline / np.asarray(frame["latency_ms"], dtype=np.float64)
    return {str(key): float(np.median(ratio[rows])) for key, rows in keys.groupby(keys).indices.items()}


def roofline_ms(rows: Frame) -> npt.NDArray[np.float64]:
    """The roofline (cold cache) of predicted rows."""
    return np.asarray(rows["roofline_ms"], dtype=np.float64)


def constant_efficiency_ms(rows: Frame, selector: ArtifactSet | RooflineOnly) -> npt.NDArray[np.float64]:
    """The roofline over the set's constant efficiency; NaN for an operator that the set saw no row of."""
    known = selector.manifest.get("constant_efficiency", {}) if isinstance(selector, ArtifactSet) else {}
    keys = (rows["op"].astype(str) + " " + rows["dtype"].astype(str)).tolist()
    efficiency = np.array([known.get(key, np.nan) for key in keys], dtype=np.float64)
    return roofline_ms(rows) / efficiency
