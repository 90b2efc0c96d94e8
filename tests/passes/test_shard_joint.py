"""The sharding pass on forward and backward passes of whole models: conjugate collectives, work conserved each way."""

from __future__ import annotations

import pytest

from predictor.engines.pytorch.engine import COMPILE, EAGER
from predictor.graph import Block, Graph, Tensor
from predictor.hardware.gpu import load_gpu
from predictor.hardware.system import default_system
from predictor.models.built import Step, build, load_config, parameters
from predictor.ops import BACKWARD, FORWARD, Attention, Gemm, MoE
from predictor.ops.collective import Collective
from predictor.passes.autograd import joint
from predictor.passes.fuse import fuse
from predictor.passes.mesh import Mesh
from predictor.passes.shard import local_size, shard
from predictor.passes.tensor_parallel import TENSOR
from predictor.simulate.lower import Lowering, lower

SYSTEM = default_system(load_gpu("h100"))
BATCH, LENGTH = 2, 64
#: Nothing of these is copied but norms and positions, and their vocabularies are divided by 2 and 4.
DENSE = ("llama-3.1-8b", "phi-3-mini", "gemma-2-2b", "opt-1.3b", "bloom-7b1")
KERNELS: tuple[tuple[str, bool], ...] = (("math", False), ("flash", False), ("flash", True))


def whole(model: str, attention: str = "math") -> Graph:
    step = Step("train", BATCH, LENGTH, act_dtype="bf16", attention=attention, training=True)
    return joint(build(load_config(model), step))


def local(graph: Graph, tp: int, fused: bool = False) -> Graph:
    part = shard(graph, Mesh((("tp", tp),), SYSTEM), TENSOR)
    return fuse(part, COMPILE, apart=True) if fused else part


def flops(graph: Graph, phase: str) -> float:
    return sum(
        n.op.flops() * t for n, t in graph.nodes() if n.phase == phase and isinstance(n.op, (Gemm, Attention, MoE))
    )


def handed_on(block: Block) -> list[Tensor]:
    """What one run of a block hands to the next."""
    return [last for _, last in (*block.running, *([block.carried] if block.carried else []))]


def reduced(graph: Graph, phase: str) -> dict[str, int]:
    """All_reduces of activations of all tokens and of their gradients, by the block that they stand in."""
    found: dict[str, int] = {}
    for block in graph.blocks:
        for n in block.nodes:
            if isinstance(n.op, Collective) and n.phase == phase and n.inputs[0].axes[-1:] == ("hidden",):
                assert n.op.size == BATCH * LENGTH * n.inputs[0].shape[-1] * 2
                found[block.name] = found.get(block.name, 0) + n.count
    return found


@pytest.mark.parametrize(("model", "kernels", "tp"), [(m, k, tp) for m in DENSE for k in KERNELS for tp in (2, 4)])
def test_the_backward_pass_is_conjugate(model: str, kernels: tuple[str, bool], tp: int) -> None:
    """Two of a layer each way; one of the embedding forward, of the head backward."""
    attention, fused = kernels
    graph = local(whole(model, attention), tp, fused)
    forward, backward = reduced(graph, FORWARD), reduced(graph, BACKWARD)
    assert forward.pop("embedding") == backward.pop("head backward") == 1
    assert {f"{name} backward": count for name, count in forward.items()} == backward
    assert set(forward.values()) == {2}


@pytest.mark.parametrize(("model", "kernels", "tp"), [(m, k, tp) for m in DENSE for k in KERNELS for tp in (2, 4)])
def test_work_is_conserved_each_way(model: str, kernels: tuple[str, bool], tp: int) -> None:
    attention, fused = kernels
    graph = whole(model, attention)
    part = local(graph, tp, fused)
    for phase in (FORWARD, BACKWARD):
        assert tp * flops(part, phase) == pytest.approx(flops(graph, phase), rel=1e-12)


@pytest.mark.parametrize(
    "model",
    ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "switch-base-8", "gemma-3-1b", "bert-base", "t5-small"],
)
def test_what_is_copied_is_copied_both_ways(model: str) -> None:
    """Routers, latent projections, single KV heads, poolers: what ranks do again forward they do again backward."""
    graph = whole(model)
    part = local(graph, 2)
    again = [2 * flops(part, phase) / flops(graph, phase) for phase in (FORWARD, BACKWARD)]
    assert 1 <= again[0] < 1.03
    assert again[1] == pytest.approx(again[0], rel=1e-3)


@pytest.mark.parametrize("model", [*DENSE, "mixtral-8x7b", "deepseek-v2-lite", "t5-small"])
def test_gradients_are_those_of_the_weights_of_the_rank(model: str) -> None:
    """A rank's gradients have the shapes of its weights, and its weights are those of a forward pass."""
    part = local(whole(model), 2)
    config = load_config(model)
    assert part.parameters() == parameters(config, local_size(Mesh((("tp", 2),), SYSTEM), TENSOR))
    weights = {(t.name, t.shape) for t, _ in part.weights()}
    kinds = {(t.name, t.axes) for t, _ in part.weights()}
    made = {
        (t.name, t.shape)
        for n, _ in part.nodes()
        if n.phase == BACKWARD
        for t in n.outputs
        if (t.name, t.axes) in kinds and not isinstance(n.op, Collective)
    }
    assert made <= weights
    assert len(made) > len(weights) / 2


@pytest.mark.parametrize("model", ["llama-3.1-8b", "t5-small", "mixtral-8x7b"])
def test_what_blocks_say_of_themselves_stays(model: str) -> None:
    """Whose backward pass they are, which layers, what goes from run to run: in the rank's tensors."""
    graph = whole(model, "flash")
    part = local(graph, 2)
    for old, new in zip(graph.blocks, part.blocks, strict=True):
        for name in ("name", "repeat", "layers", "backward_of"):
            assert getattr(new, name) == getattr(old, name)
        assert len(handed_on(new)) == len(handed_on(old))
        made_before, made = ({id(t) for n in block.nodes for t in n.outputs} for block in (old, new))
        for before, after in zip(handed_on(old), handed_on(new), strict=True):
            assert (id(after.storage) in made) == (id(before.storage) in made_before), new.name


@pytest.mark.parametrize("model", ["llama-3.1-8b", "t5-small"])
def test_unrolled_is_repeated(model: str) -> None:
    graph = whole(model, "flash")
    one, other = (
        sorted((n.name, repr(n.op)) for n, _ in written.nodes())
        for written in (local(graph, 2).unrolled(), local(graph.unrolled(), 2))
    )
    assert one == other


@pytest.mark.parametrize("fused", [False, True])
def test_lowering_a_training_step_shards_it_after_autograd_and_before_fusion(fused: bool) -> None:
    config = load_config("llama-3.2-1b")
    step = Step("train", BATCH, LENGTH, act_dtype="bf16", attention="flash", training=True)
    mesh, engine = Mesh((("tp", 2),), SYSTEM), COMPILE if fused else EAGER
    found = lower(Lowering(config, step, mesh, None, engine, accumulate=False))
    wanted = local(whole("llama-3.2-1b", "flash"), 2, fused)
    assert [(n.name, n.op, times) for n, times in found.nodes()] == [
        (n.name, n.op, times) for n, times in wanted.nodes()
    ]
    assert reduced(found, BACKWARD) and not reduced(lower(Lowering(config, step, None, accumulate=False)), BACKWARD)
