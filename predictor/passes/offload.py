"""Activations in the host's memory: what layers save for their backward pass goes there, and comes back in time.

As Transformer Engine does for Megatron Core (transformer_engine/pytorch/cpu_offload_v1.py 2.20, lines 346 to 363): of L
layers N are copied, each beside the computation of L / N layers, so that the link is as busy in one layer as in the
next; in the backward pass the copies come back in the same windows. Here every layer moves N / L of what it saves.

What is on its way is still on the GPU: that of one layer, of every micro-batch that a pipeline's stage has begun. At
least one layer stays, as there (megatron/core/transformer/transformer_config.py 0.16.1, lines 1137 to 1151). Pipelines
and recomputation, which Megatron refuses beside it, are built: of a stage every layer moves the same part, and of one
that runs again what it still saves (its input: checkpoints in the host's memory, as DeepSpeed's cpu_checkpointing).
"""

from __future__ import annotations

from predictor.errors import RequestError
from predictor.files.records import replace
from predictor.graph.graph import Block, Graph, Node
from predictor.graph.saved import SavedTensor, saved_tensors
from predictor.hardware.gpu import GPUSpec
from predictor.models.base import Stack
from predictor.ops.base import BACKWARD, FORWARD
from predictor.ops.host_copy import HostCopy
from predictor.passes.recompute import is_layer

#: Of the PCIe link's rate, what copies reach: 55.1 of 63 GB/s, device to host, PCIe 5 x16. Source: nvbandwidth on an
#: H100's host, a test fixture of a public benchmark parser.
REACHED = 55.1 / 63.0
#: Elements from which on a tensor is moved. Source: transformer_engine/pytorch/cpu_offload.py 2.20, line 459.
_LEAST = 256 * 1024


def check_offload(config: Stack, layers: int, gpu: GPUSpec) -> None:
    """RequestError, one line, where so many ``layers`` cannot be offloaded."""
    if layers >= config.layers:
        raise RequestError(
            f"--offload-layers {layers}: {config.name} has {config.layers} layers, of which one stays; expected at most"
            f" {config.layers - 1}"
        )
    if not gpu.pcie_bandwidth:
        raise RequestError(f"--offload-layers {layers}: {gpu.id} has no pcie_bandwidth; expected a GPU with one")


def offload(graph: Graph, layers: int, of: int, link_bandwidth: float) -> Graph:
    """A rank's joint ``graph`` of which ``layers`` of ``of`` are kept in the host's memory, behind a link of
    ``link_bandwidth`` bytes/s; itself for none."""
    if not layers:
        return graph
    saved = _by_block(graph)
    blocks = list(graph.blocks)
    for b, block in enumerate(graph.blocks):
        forward = b if block.backward_of is None else block.backward_of
        entries = saved.get(forward, ())
        size = round(sum(entry.nbytes for entry in entries) / graph.blocks[forward].repeat * layers / of)
        if size:
            back = block.backward_of is not None
            op = HostCopy("bf16", size, link_bandwidth * REACHED, back)
            name = f"activations {'from' if back else 'to'} host"
            phase = BACKWARD if back else FORWARD
            copy = Node(op, name, phase=phase, host_calls=len(entries), scope=name)
            blocks[b] = replace(block, nodes=(copy, *block.nodes))
    return replace(graph, blocks=tuple(blocks))


def moved_bytes(graph: Graph) -> float:
    """Bytes of saved activations that are not on the GPU when the backward pass begins."""
    heads = [(block, block.nodes[0].op) for block in graph.blocks if block.nodes]  # where `offload` puts a copy
    copies = [(block, op.size) for block, op in heads if isinstance(op, HostCopy) and not op.back]
    whole = sum(size * block.repeat for block, size in copies)
    if not whole:
        return 0.0
    saved = _by_block(graph)
    each = (sum(e.nbytes for e in saved[b]) / block.repeat for b, block in enumerate(graph.blocks) if b in saved)
    return max(0.0, whole - max(each))


def mixed(block: Block, other: Block, share: float) -> Block:
    """A forward ``block`` whose copies to the host are for a ``share`` of its runs those of ``other``, the same block
    of a graph that runs it again."""
    sizes = [node.op.size for node in other.nodes if isinstance(node.op, HostCopy)]
    if not sizes or not isinstance(block.nodes[0].op, HostCopy):
        return block
    op = block.nodes[0].op
    size = round(op.size + share * (sizes[0] - op.size))
    return replace(block, nodes=(replace(block.nodes[0], op=replace(op, size=size)), *block.nodes[1:]))


def _by_block(graph: Graph) -> dict[int, list[SavedTensor]]:
    """What the layers save that is large enough to be moved, by the place of the block that makes it."""
    maker = {
        id(t.storage): b for b, block in enumerate(graph.blocks) if _is_layer(block)
        for node in block.nodes for t in node.outputs
    }  # fmt: skip
    by_block: dict[int, list[SavedTensor]] = {}
    for entry in saved_tensors(graph):
        b = maker.get(id(entry.tensor))
        if b is not None and entry.tensor.elements >= _LEAST:
            by_block.setdefault(b, []).append(entry)
    return by_block


def _is_layer(block: Block) -> bool:
    return block.backward_of is None and is_layer(block)
