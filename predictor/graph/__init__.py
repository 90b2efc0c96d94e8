"""Graphs: blocks of operators, their backward pass, their fused form."""

from predictor.graph.backward import backward_graph, optimizer_graph
from predictor.graph.graph import OPTIMIZER, Block, Graph, Node

__all__ = ["OPTIMIZER", "Block", "Graph", "Node", "backward_graph", "optimizer_graph"]
