"""NCCL: collectives alone. Rows may name it as their framework; PyTorch and the engines call it in any case."""

from predictor.engines.pytorch.engine import PYTORCH
from predictor.files.records import replace

LIBRARIES = (replace(PYTORCH, name="nccl", sends_tokens=True),)
