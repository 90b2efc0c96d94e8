"""Graphs: blocks of operators on tensors."""

from predictor.graph.graph import OPTIMIZER, Block, Graph, Node
from predictor.graph.tensor import Tensor

__all__ = ["OPTIMIZER", "Block", "Graph", "Node", "Tensor"]
