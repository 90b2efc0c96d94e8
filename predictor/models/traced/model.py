"""Models that no reader knows: what runs is recorded (`predictor.models.traced`), or was, in place of being built."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol, Self

from predictor.engines import Engine
from predictor.errors import RequestError, UnsupportedError
from predictor.files.records import dataclass, replace
from predictor.formats.parts import Checkpoint, Formats
from predictor.graph.graph import Graph, Node
from predictor.graph.recording import Recording
from predictor.graph.samples import TOKENS
from predictor.models.base import CLASS_PLAN, Feature, Local, Model, Stack, whole
from predictor.models.built.config import LINEAR, ModelConfig, of_tower
from predictor.models.built.vision import VisionTower
from predictor.models.step import Step
from predictor.ops.attention import Attention
from predictor.ops.gemm import Gemm


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
    #: What an answer has to say of the passes that were recorded.
    notes: tuple[str, ...] = ()
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


class LayerStack(NamedTuple):
    """What a pipeline asks of a traced model (`predictor.models.base.Stack`), read off a pass of it. A model whose
    layers are not known counts as one layer, which is not cut."""

    name: str
    layers: int = 1
    hidden: int = 0
    vocab: int = 0
    tie_embeddings: bool = False
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    is_mla: bool = False
    causal: bool = True
    encoder_layers: int = 0
    is_encoder_decoder: bool = False

    def layers_alike(self, encoder: bool = False) -> tuple[tuple[bool, int, tuple[int, ...]], ...]:
        return ((False, 0, tuple(range(self.layers))),)


#: Features whose passes need the names of a built model's axes, with what asks for them in words.
_OF_NAMES = (Feature.CONTEXT, Feature.EXPERTS, Feature.SEQUENCE, Feature.ADAPTERS, Feature.SELECTIVE, Feature.OFFLOAD)


@dataclass(frozen=True, slots=True, eq=False)
class TracedModel(Model):
    """A model whose passes ``source`` records. It has an input and operators; layers, heads and widths have no name."""

    name: str
    source: Source
    model_type: str = "traced"
    #: None has a limit of its own: a guard beyond any sequence, chosen by hand, not from data.
    max_positions: int = 2**31
    checkpoint: Checkpoint | None = None
    assumed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    #: What images pass, of a model that is forecast from its language model.
    tower: VisionTower | None = None
    #: Whether its inputs are as long as a step says; images and samples of speech are as its config says.
    reads_length: bool = True

    def __hash__(self) -> int:
        return id(self.source)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TracedModel) and self.source is other.source)

    @property
    def unit(self) -> str:
        return self.source.unit

    @property
    def notes(self) -> tuple[str, ...]:
        return self.source.notes

    @property
    def causal(self) -> bool:
        return self.source.built is None or self.source.built.causal

    @property
    def modes(self) -> tuple[str, ...]:
        return self.source.modes

    @property
    def sizes(self) -> tuple[int, int] | None:
        return self.source.sizes

    @property
    def dtype(self) -> str:
        return self.source.dtype

    def refusal(self, feature: Feature) -> str:
        if feature in _OF_NAMES:
            return f"not built for models that are traced ({self.name}); leave it out"
        if feature is Feature.CONTEXT_OF_A_PASS and not self.source.splits:
            return (
                f"no input of {self.name} says which axis is split; expected --input with one such as"
                " x:float[8,4096/cp,64]"
            )
        if feature is Feature.REPLICAS_OF_A_PASS:
            return "not built yet for --mode forward; expected --mode train"
        if feature is Feature.LENGTH and not self.reads_length:
            return f"the config of {self.name} says the size of its inputs, which have no tokens; leave it out"
        if feature in (Feature.NAMES, Feature.OPEN_SIZES):
            return "known of models that are built"
        return ""

    def as_run(
        self, engine: Engine, mode: str, tp: int, plan: str | Mapping[str, str] | None = None
    ) -> tuple[Model, tuple[str, ...]]:
        """The model as Tilecast builds it, where the class is not what runs; else the class, cut by the user's plan."""
        built = self.source.built if plan is None else None
        why = "" if built is None else not_its_class(built, engine, mode, tp)
        if built is not None and why:
            return built, (f"{self.name} is forecast from its config, not from its class: {why}",)
        model = _planned(self, tuple(plan.items())) if isinstance(plan, Mapping) else self
        if not engine.serves or isinstance(self.source, Alone):
            return model, ()
        return model, (
            f"{engine.name} has its own code for {self.name}, which Tilecast does not know. The forecast runs"
            f" the model's class with the kernels of {engine.name} (a fused QKV projection, an in-place KV cache, one"
            " kernel per norm).",
        )

    def check_tensor(self, tp: int, spread: bool = False) -> None:
        """A plan of its modules says what is cut, and is checked where a rank is recorded; no search looks for one."""
        if tp > 1:
            raise RequestError(f"--tp {tp}: the axes of {self.name} have no names, by which they are cut; expected 1")

    def graph(self, step: Step, accumulate: bool | None = None, tp: int = 1) -> Graph:
        """What was recorded on one of ``tp`` ranks, with the real backward pass in training; attention reads the KV
        cache in its format, which recorders know nothing of."""
        graph = self.source.record(step, accumulate, tp).graph
        if not any(block.nodes for block in graph.blocks):
            raise RequestError(f"{self.name}: runs no operator; expected a model that computes something")
        return _over_cache(graph, step.kv_dtype) if graph.recorded and step.cached and step.kv_dtype else graph

    def tower_model(self) -> ModelConfig:
        assert self.tower is not None
        return of_tower(self.tower, self.name)

    def graph_of_part(self, step: Step, accumulate: bool | None, tp: int, cp: int) -> Graph | None:
        part = self.source.part(cp)
        return None if part is None else part.record(step, accumulate, tp).graph

    def update(self, step: Step, accumulate: bool) -> Graph | None:
        update = self.source.record(step, accumulate).update
        return update if update.blocks else None

    def recording(self, step: Step, accumulate: bool | None, tp: int, dtype: str) -> Recording:
        return self.source.record(step, accumulate, tp)

    def logits(self, graph: Graph, step: Step) -> int:
        """Read off the product of the head that ends the pass, where its rows are the batch's sequences."""
        nodes = graph.blocks[-1].nodes if graph.blocks else ()
        heads = [node.op for node in nodes if isinstance(node.op, Gemm) and node.part == "head"]
        if step.mode not in ("prefill", "decode", "generate") or not heads or heads[-1].m != step.batch:
            return 0
        return nodes[-1].outputs[0].elements // step.batch if nodes[-1].outputs else 0

    def stack(self, graph: Graph | None = None) -> Stack:
        """How many layers it has, how wide is what goes from one to the next, and the size of a weight that stands at
        both ends."""
        ahead = [block for block in graph.blocks if block.backward_of is None] if graph is not None else []
        layers = [b for b, block in enumerate(ahead) if block.layers]
        handed = [block.carried[0] for b in layers if (block := ahead[b]).carried]
        if not handed:  # no layers, or such as stand side by side (tables of a recommender)
            return LayerStack(self.name)
        of_layer = re.compile(re.escape(ahead[layers[0]].name) + r"\.(\d+)(?:\.|$)")
        alone = (of_layer.match(node.scope) for block in ahead if not block.layers for node in block.nodes)
        last = max(*ahead[layers[-1]].layers, *(int(match[1]) for match in alone if match), 0)
        before, after = (
            {id(w): w for w, _ in Graph(tuple(part)).weights()}
            for part in (ahead[: layers[0]], ahead[layers[-1] + 1 :])
        )
        tied = max((w.elements for key, w in before.items() if key in after), default=0)
        hidden = max(handed, key=lambda t: t.elements).shape[-1]
        return LayerStack(self.name, last + 1, hidden, tied // hidden, tied > 0)

    def parameters(self, tp: int = 1) -> int:
        return self.source.parameters(tp)

    def weight_bytes(self, formats: Formats, local: Local = whole, tp: int = 1) -> float:
        """All in the high format: what products in a narrow one save is read off their graph."""
        return self.source.parameters(tp) * formats.high.weight_bytes

    def kv_bytes(self, batch: int, tokens: int, kv_dtype: str, local: Local = whole, tp: int = 1) -> float:
        return self.source.cache_bytes(batch, tokens, kv_dtype, tp)


@lru_cache(maxsize=32)
def _planned(model: TracedModel, plan: tuple[tuple[str, str], ...]) -> TracedModel:
    return replace(model, source=model.source.planned(dict(plan)))


def not_its_class(built: ModelConfig, engine: Engine, mode: str, tp: int) -> str:
    """Why a run is not that of a model's class, "" where it is: then the model runs as Tilecast builds it.

    A class says what eager PyTorch runs on one GPU. Engines that fuse have their own code of a model, or fuse its
    modules, which only a built model names. Megatron-LM shares out every layer over GPUs; the plans of classes leave
    parts of a layer whole. Linear attention runs the kernels of its libraries; without these a class writes it out
    (transformers 5.24, is_fast_path_available of modeling_qwen3_next.py). Sparse attention reads the keys that it
    picks; a class computes all scores and masks the others. Steps that read latent vectors from a cache multiply by
    the matrices that expand them; a class keeps the keys and values of every head. Classes of encoder-decoders compute
    logits of all tokens of a prompt, or have no such pass.
    """
    if engine.fuses:
        return f"--execution {engine.name} fuses by modules"
    if isinstance(tp, int) and tp > 1:
        return f"--tp {tp} splits layers as Megatron-LM does (--tp-plan {CLASS_PLAN} splits them as the class does)"
    if any(kind.mixer in LINEAR for kind in (built, *built.variants)):
        return "linear attention runs the kernels of its libraries (flash-linear-attention, causal-conv1d)"
    if built.index_heads:
        return "sparse attention reads only the keys that it picks"
    if built.is_mla and mode in ("decode", "generate"):
        return f"--mode {mode} keeps latent vectors"
    if built.is_encoder_decoder and mode in ("prefill", "decode", "generate"):
        return f"--mode {mode} of an encoder-decoder computes logits of the last token only"
    return ""


def _over_cache(graph: Graph, kv_dtype: str) -> Graph:
    """``graph`` with all fused attention over a cache in ``kv_dtype``."""

    def over_cache(node: Node) -> Node:
        return replace(node, op=replace(node.op, kv_dtype=kv_dtype)) if isinstance(node.op, Attention) else node

    return replace(graph, blocks=tuple(replace(b, nodes=tuple(map(over_cache, b.nodes))) for b in graph.blocks))
