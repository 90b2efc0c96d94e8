"""A board's name as its driver says it -> its id in the catalogue. What is not there gets a name of its own."""

from __future__ import annotations

from microbench.environment import slug
from predictor.errors import UnknownNameError
from predictor.hardware.gpu import load_gpu


def catalogue_id(name: str) -> str:
    """ "NVIDIA H100 80GB HBM3" -> "h100-sxm"; an unknown board or a slice of one (MIG) -> a slug of its name."""
    if "/" in name or "\\" in name:  # which would be a file's
        return slug(name)
    try:
        return load_gpu(name).id
    except UnknownNameError:
        return slug(name)
