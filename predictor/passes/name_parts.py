"""Which part of the model (`predictor.formats.parts`) the products of a recorded graph are of, read off the paths of
modules.

A builder says of each product which part its weight is of; a recording has the path of its module alone. Products of
numbered modules (a layer of a list) are of the layers, others of the head or of what is ahead of the layers, which
stays as wide as it is. Of a model without numbered modules every linear layer counts as one of a layer, as
`quantize_` of torchao takes every `nn.Linear`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from predictor.files.records import replace
from predictor.graph.graph import Graph, Node
from predictor.graph.tensor import WEIGHT
from predictor.ops.embedding import Embedding
from predictor.ops.gemm import Gemm
from predictor.ops.moe import MoE

#: Last name of a module -> part, by definition of transformers' classes (and of DeepSeek's, whose queries and keys have
#: a latent vector). A name that is not here is of a feed-forward layer.
_NAMES = {
    **dict.fromkeys(
        ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "q", "k", "v", "query", "key",
         "value", "qkv", "in_proj_qkv", "in_proj_z", "to_q", "to_k", "to_v"),
        "attention.qkv",
    ),
    **dict.fromkeys(("o_proj", "out_proj", "o", "to_out"), "attention.out"),
    "q_a_proj": "attention.q_a", "q_b_proj": "attention.q_b", "kv_a_proj_with_mqa": "attention.kv_a",
    "kv_b_proj": "attention.kv_b", "in_proj_a": "router", "in_proj_b": "router",
    **dict.fromkeys(("down_proj", "fc2", "dense_4h_to_h", "w2", "wo"), "mlp.down"),
}  # fmt: skip
#: Names of modules that have an output projection and a feed-forward layer's second product under one name.
_ATTENTION = re.compile(r"att|mixer", re.IGNORECASE)
_BOTH = ("c_proj", "dense")
_ROUTERS = ("gate", "router", "classifier", "shared_expert_gate")


def with_parts(graph: Graph) -> Graph:
    """A recorded ``graph`` whose linear layers and experts say of which part they are, and read (input, weight, bias)
    in this order; backward products are of the part of their module."""
    nodes = [node for block in graph.blocks for node in block.nodes]
    tables = {id(t) for node in nodes if isinstance(node.op, Embedding) for t in node.inputs if t.role == WEIGHT}
    layers = any(_is_linear(node) and _numbered(node.inputs) for node in nodes)
    experts = {_module(node) for node in nodes if isinstance(node.op, MoE)}
    experts |= {path.partition(".experts.")[0] for path in map(_module, nodes) if ".experts." in path}
    parts: dict[str, str] = {}  # by module
    for node in nodes:
        if _is_linear(node):
            parts[node.scope] = _part(node, tables, layers, experts)
        elif isinstance(node.op, MoE):
            parts[node.scope] = "experts"
    blocks = []
    for block in graph.blocks:
        new = tuple(_named(node, parts.get(node.scope, "")) for node in block.nodes)
        blocks.append(replace(block, nodes=new))
    return replace(graph, blocks=tuple(blocks))


def _is_linear(node: Node) -> bool:
    return isinstance(node.op, Gemm) and node.op.kind in ("linear", "grouped") and _weight(node) is not None


def _weight(node: Node) -> int | None:
    """The place of the matrix among what a product reads."""
    return next((i for i, t in enumerate(node.inputs) if t.role == WEIGHT and len(t.shape) > 1), None)


def _module(node: Node) -> str:
    """The path of a node's module from the root of the model: its weight's where it has one, as scopes of a layer that
    repeats leave the layer out."""
    at = _weight(node)
    return node.scope if at is None else node.inputs[at].name.rpartition(".")[0]


def _numbered(inputs: Iterable[object]) -> bool:
    return any(part.isdigit() for t in inputs if getattr(t, "role", "") == WEIGHT
               for part in getattr(t, "name", "").split("."))  # fmt: skip


def _part(node: Node, tables: set[int], layers: bool, experts: set[str]) -> str:
    path, at = _module(node), _weight(node)
    assert at is not None
    if id(node.inputs[at].storage) in tables or (layers and not _numbered(node.inputs)):
        return "head"
    before, _, name = path.rpartition(".")
    op = node.op
    assert isinstance(op, Gemm)
    if op.n == 1 or (name in _ROUTERS and any(before and each.startswith(before) for each in experts)):
        return "router"
    if "shared_expert" in path:
        return "shared_experts"
    if ".experts." in f".{path}.":
        return "experts"
    if name in _BOTH:
        return "attention.out" if _ATTENTION.search(before.rpartition(".")[2]) else "mlp.down"
    return _NAMES.get(name, "mlp.up")


def _named(node: Node, part: str) -> Node:
    """The node with its part, and what it reads in order."""
    op, at = node.op, _weight(node)
    if not part or not isinstance(op, (Gemm, MoE)) or (isinstance(op, Gemm) and op.kind == "bmm"):
        return node
    inputs = node.inputs
    if isinstance(op, Gemm) and at is not None and node.phase == "forward":
        first = next((t for t in inputs if t.role != WEIGHT), inputs[0])
        rest = [t for i, t in enumerate(inputs) if i != at and t is not first]
        inputs = (first, inputs[at], *rest)
    return replace(node, part=part, inputs=inputs)
