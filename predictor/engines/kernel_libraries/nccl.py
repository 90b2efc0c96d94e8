"""NCCL: collectives alone. Rows may name it as their framework; PyTorch and the engines call it in any case."""

from dataclasses import replace

from predictor.engines.pytorch.engine import PYTORCH

LIBRARIES = (replace(PYTORCH, name="nccl", sends_tokens=True),)
