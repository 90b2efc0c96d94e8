"""Which of a run's passes an engine has captured, what pads them to a graph's size, and what it launches between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, groupby

import numpy as np

from predictor.engines import CAPTURED
from predictor.files.records import replace
from predictor.graph import Block, Graph, Node
from predictor.ops.base import Op
from predictor.request.run import Run
from predictor.simulate.columns import Size, agree, each_of

#: Families that end a piece of a captured pass, as they look at the cache: vLLM splits its graphs at them. Source:
#: vLLM 0.14.1 config/compilation.py (splitting_ops).
_SPLITS = ("attention", "causal_conv1d", "delta_rule")


def splits(op: Op) -> bool:
    """Whether the operator runs between two captured pieces of a pass over prompts."""
    return op.family in _SPLITS


def decode_size(run: Run) -> Size | None:
    """Tokens of the graph that a rank's decode step runs in, those that pad it included: of every sequence, and of its
    drafts. None where it is launched.

    Its own where the engine captures nothing by default, or where nobody read what it captures.
    """
    engine, work = run.work.engine, run.work
    drafts = 0 if work.serving is None else work.serving.drafts
    batch = work.sequences_a_pass
    if engine.decode_host != CAPTURED:
        return batch * (1 + drafts)
    from predictor.engines.defaults import graphs  # engines that capture alone have defaults of it
    from predictor.engines.vintage import Setting

    setting = Setting(run.gpu, work.parallelism.tp, work.parallelism.pp, drafts=drafts, latent=run.config.is_mla)
    held = graphs(engine, setting)
    if held is None:
        return batch * (1 + drafts)
    return _sizes(lambda n, longest: held.tokens_of(n, 1 + drafts, longest), batch, work.longest_sequence)


def _sizes(captured: Callable[..., int | None], *asked: Size) -> Size | None:
    """What is captured of the sizes ``asked``, of every point of columns; None where nothing is."""
    if not isinstance(asked[0], np.ndarray):
        return captured(*asked)
    sizes = each_of(captured, *asked)
    return None if agree(np.array([size is None for size in sizes])) else np.array(sizes)


def prompt_size(run: Run) -> Size | None:
    """Tokens of the graphs that a rank's pass over prompts runs in, in pieces; None where all of it is launched."""
    engine, work = run.work.engine, run.work
    if engine.decode_host != CAPTURED or not engine.serves or run.config.is_encoder_decoder:
        return None
    from predictor.engines.defaults import graphs
    from predictor.engines.vintage import Setting

    setting = Setting(run.gpu, work.parallelism.tp, work.parallelism.pp, latent=run.config.is_mla)
    held = graphs(engine, setting)
    return None if held is None else _sizes(held.pieces, tokens_of(run))


def tokens_of(run: Run) -> Size:
    """Tokens of a rank's pass over prompts."""
    return sum(run.work.lens_a_pass) or run.work.sequences_a_pass * run.work.seq_len


def padded_lens(run: Run, size: int) -> tuple[int, ...]:
    """Prompts of a pass with ``size`` tokens in all: the run's own, the last with what pads them."""
    work = run.work
    lens = work.lens_a_pass or (work.seq_len,) * work.sequences_a_pass
    return (*lens[:-1], lens[-1] + size - sum(lens))


def padded(wide: Sequence[Graph], exact: Sequence[Graph]) -> list[Graph]:
    """Passes of ``wide``, of a captured size, that look at the cache for the sequences of ``exact`` only."""
    return [
        replace(graph, blocks=tuple(map(_looking, graph.blocks, alone.blocks)))
        for graph, alone in zip(wide, exact, strict=True)
    ]


def _looking(wide: Block, alone: Block) -> Block:
    """A block of ``wide`` with the kernels between its pieces from ``alone``."""
    if not any(splits(node.op) for node in alone.nodes):
        return wide
    between = [nodes for split, nodes in _runs(alone) if split]
    taken = iter(between)
    nodes = (next(taken, other) if split else other for split, other in _runs(wide))
    return replace(wide, nodes=tuple(chain.from_iterable(nodes)))


def _runs(block: Block) -> list[tuple[bool, list[Node]]]:
    """The block's nodes in order, those between pieces apart from those within."""
    return [(split, list(nodes)) for split, nodes in groupby(block.nodes, lambda node: splits(node.op))]


def capture_notes(run: Run) -> tuple[str, ...]:
    """That a run's decode steps are launched, where the engine captures others; nothing of all other runs."""
    if run.work.mode not in ("decode", "generate") or decode_size(run) is not None:
        return ()
    name = run.work.engine.name
    sequences = run.work.sequences_a_pass
    return (f"{name} captures no CUDA graph of {sequences} sequences by default: the CPU launches every kernel.",)


def launches_of_pieces(block: Block, begins: bool) -> list[int]:
    """Launches in front of every node of a block that runs in captured pieces: one for the piece that begins with it,
    its own kernels where it is between two."""
    launches = []
    for node in block.nodes:
        alone = splits(node.op)
        launches.append((node.op.kernels() if node.host_calls else 0) if alone else int(begins))
        begins = alone
    return launches
