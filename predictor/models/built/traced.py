"""Models that no reader knows: what runs is recorded (`predictor.models.traced`), or was, in place of being built."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol, Self

from predictor.errors import UnsupportedError
from predictor.formats.parts import Checkpoint
from predictor.graph.graph import Graph
from predictor.graph.recording import Recording
from predictor.graph.samples import TOKENS
from predictor.models.built.config import ModelConfig
from predictor.models.built.step import Step


class Source(Protocol):
    """Where recordings of a model come from.

    ``sizes``: (batch, tokens) where the inputs fix them, None where a step says them. ``dtype``: the one that all of
    its recordings have ("": that of the step). ``modes``: those that it can record. ``splits``: an input says which of
    its axes context parallelism splits. What is asked of one of ``tp`` ranks of tensor parallelism is cut by a plan:
    pattern of a module's path -> style (`predictor.models.traced.tensor_plan`).
    """

    sizes: tuple[int, int] | None
    dtype: str
    modes: tuple[str, ...]
    splits: bool = False
    #: The model as a reader builds it, where one knows its type.
    built: ModelConfig | None = None

    def part(self, cp: int) -> Source | None:
        """The same over what one of ``cp`` ranks has of its inputs; None where all have all of them."""
        return None

    def record(self, step: Step, accumulate: bool | None, tp: int = 1) -> Recording:
        """The pass of a step; with ``accumulate`` not None its backward pass with it. RequestError, one line."""
        ...

    def parameters(self, tp: int = 1) -> int:
        """Elements of all weights of a rank, each once."""
        ...

    @property
    def unit(self) -> str:
        """What its throughput is counted in, of `predictor.graph.samples.UNITS`, once a pass is recorded."""
        return TOKENS

    def cache_bytes(self, batch: int, tokens: int, kv_dtype: str, tp: int = 1) -> float:
        """What a rank keeps of so many tokens of each sequence between decode steps."""
        ...

    def planned(self, plan: Mapping[str, str]) -> Self:
        """The same, cut by the user's ``plan``."""
        ...


class Alone:
    """Of sources whose modules are not at hand: they cannot be cut."""

    name = ""

    def check_whole(self, tp: int, recorded_with: int = 1) -> None:
        """UnsupportedError, one line, where a recording is not one of so many ranks."""
        if tp != recorded_with:
            raise UnsupportedError(
                f"--tp {tp}: {self.name} was recorded with {recorded_with}, and its modules are not at hand;"
                f" expected {recorded_with}"
            )

    def planned(self, plan: Mapping[str, str]) -> Self:
        """UnsupportedError: there is nothing to cut."""
        raise UnsupportedError(f"--tp-plan: the modules of {self.name} are not at hand; leave it out")


class Part(NamedTuple):
    """A part of a pipeline: ``model``, run ``times`` times over ``batch`` sequences of ``seq_len`` tokens (where its
    inputs do not say its sizes), in ``dtype`` ("": that of the run). ``mode``: "train" with its backward pass."""

    name: str
    model: ModelConfig
    times: int = 1
    dtype: str = ""
    batch: int = 1
    seq_len: int = 1
    mode: str = "forward"


class Pipeline(Protocol):
    """A source whose model is several, one after the other (`Source` beside it), some of them at each of ``steps``. Its
    batch is that of all GPUs, whose number is the size "gpus"."""

    steps: int

    def parts(self) -> tuple[Part, ...]:
        """In the order in which they run. RequestError, one line, for one that there is not."""
        ...

    def sized(self, **sizes: int) -> Pipeline:
        """The same with other sizes: "batch", "steps", "gpus"."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TracedModel(ModelConfig):
    """A model whose graphs are recorded. The sizes of a transformer, which `ModelConfig` has, are not known of it."""

    source: Source | None = None

    def __hash__(self) -> int:
        return id(self.source)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TracedModel) and self.source is other.source)

    @property
    def unit(self) -> str:
        return self.traces.unit

    @property
    def traces(self) -> Source:
        """Where its recordings come from."""
        assert self.source is not None
        return self.source


def traced_model(
    name: str, source: Source, model_type: str = "traced", max_positions: int = 2**31,
    checkpoint: Checkpoint | None = None,
) -> TracedModel:  # fmt: skip
    """A model of that name, whose passes ``source`` records; ``checkpoint``: what its config says of its numbers."""
    return TracedModel(
        name=name, model_type=model_type, architecture=name, head="none", hidden=1, layers=1, heads=1, kv_heads=1,
        head_dim=1, intermediate=1, vocab=1, max_positions=max_positions, activation="gelu", source=source,
        checkpoint=checkpoint,
    )  # fmt: skip


def recorded(config: ModelConfig) -> Source | None:
    """Where the graphs of a model come from that is recorded; None for one that is built."""
    return config.traces if isinstance(config, TracedModel) else None


#: In place of a plan of tensor parallelism: the one that the class brings.
CLASS_PLAN = "class"


@lru_cache(maxsize=32)
def planned(config: TracedModel, plan: tuple[tuple[str, str], ...]) -> TracedModel:
    """The traced model with a user's plan of tensor parallelism, pairs of pattern and style."""
    return replace(config, source=config.traces.planned(dict(plan)))


def sized(config: ModelConfig, graph: Graph) -> ModelConfig:
    """A traced model with what a pipeline asks of it, read off its ``graph``: how many layers it has, how wide is what
    goes from one to the next, and the size of a weight that stands at both ends. A built model is returned as it is."""
    if not isinstance(config, TracedModel):
        return config
    ahead = [block for block in graph.blocks if block.backward_of is None]
    layers = [b for b, block in enumerate(ahead) if block.layers]
    handed = [block.carried[0] for b in layers if (block := ahead[b]).carried]
    if not handed:  # no layers, or such as stand side by side (tables of a recommender)
        return config
    of_layer = re.compile(re.escape(ahead[layers[0]].name) + r"\.(\d+)(?:\.|$)")
    alone = (of_layer.match(node.scope) for block in ahead if not block.layers for node in block.nodes)
    last = max(*ahead[layers[-1]].layers, *(int(found[1]) for found in alone if found), 0)
    before, after = (
        {id(w): w for w, _ in Graph(tuple(part)).weights()} for part in (ahead[: layers[0]], ahead[layers[-1] + 1 :])
    )
    tied = max((w.elements for key, w in before.items() if key in after), default=0)
    hidden = max(handed, key=lambda t: t.elements).shape[-1]
    return replace(
        config, layers=last + 1, hidden=hidden, tie_embeddings=tied > 0,
        vocab=max(1, tied // hidden),
    )  # fmt: skip


def parts_of(config: ModelConfig) -> tuple[Part, ...]:
    """The parts of a pipeline; () for any other model."""
    source = recorded(config)
    return source.parts() if source is not None and hasattr(source, "parts") else ()
