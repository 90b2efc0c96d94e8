"""Model: what a forecast asks of a model, whatever it was made from.

A config.json that a reader knows (`predictor.models.built`), a module, a class or a file that is traced
(`predictor.models.traced`), and a pipeline of several models implement it. A caller never needs to know which kind it
has: a method answers for sizes that only some models know, and `Model.refusal` says why a model lacks a `Feature`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from predictor.graph.samples import TOKENS

if TYPE_CHECKING:
    from predictor.engines import Engine
    from predictor.formats.parts import Checkpoint, Formats
    from predictor.graph.graph import Graph
    from predictor.graph.recording import Recording
    from predictor.models.built.vision import VisionTower
    from predictor.models.step import Step

#: (logical axis, size) -> what one GPU of a mesh has of it (`predictor.passes.shard.local_size`).
Local = Callable[[str, int], int]
#: Modes of a run, of which some models have some.
MODES = ("forward", "train", "prefill", "decode", "generate")
#: Modes that keep keys and values in a cache.
CACHED = ("prefill", "decode", "generate")

#: In place of a plan of tensor parallelism: the one that the model's class brings.
CLASS_PLAN = "class"


def whole(axis: str, size: int) -> int:
    """All of an axis: the model on one GPU."""
    return size


class Feature(Enum):
    """What can be asked of some models alone."""

    CONTEXT_OF_A_PASS = "cp of a forward pass: an input that is split over GPUs"
    REPLICAS_OF_A_PASS = "dp of a forward pass: one batch over all GPUs"
    CONTEXT = "cp"
    EXPERTS = "ep: experts that are spread over GPUs"
    SEQUENCE = "sp"
    ADAPTERS = "lora"
    SELECTIVE = "recompute selective"
    OFFLOAD = "offload-layers"
    PLAN = "tp-plan"
    LENGTH = "seq-len: inputs of as many tokens a sequence as are asked for"
    NAMES = "axes and parts of its weights have names: passes cut them over GPUs, each part in a format of its own"
    OPEN_SIZES = "its graphs follow from their sizes alone, which a template leaves open"


class Stack(Protocol):
    """The layers of a model, as a pipeline cuts them; ``hidden``: elements of a token that one hands to the next.

    ``tie_embeddings``: the first stage and the last have a copy of one table of ``vocab`` x ``hidden``. ``heads``
    and ``kv_heads``: those of attention that have a name, 0 where none have.
    """

    @property
    def name(self) -> str: ...
    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def tie_embeddings(self) -> bool: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def is_mla(self) -> bool: ...
    @property
    def causal(self) -> bool: ...
    @property
    def encoder_layers(self) -> int: ...
    @property
    def is_encoder_decoder(self) -> bool: ...
    def layers_alike(self, encoder: bool = False) -> tuple[tuple[bool, int, tuple[int, ...]], ...]:
        """Layers that differ, in order of first appearance: (sparse, window, their numbers)."""
        ...


class Model(ABC):
    """One model. Counts are of the whole model, bytes and elements of one rank where ``local`` or ``tp`` say so."""

    __slots__ = ()

    # -- what it is ----------------------------------------------------------------------------------------------------

    if TYPE_CHECKING:  # fields without a default: a dataclass would take a property of its base class for one

        @property
        def name(self) -> str: ...
        @property
        def model_type(self) -> str: ...
        @property
        def max_positions(self) -> int:
            """Tokens that a sequence can have by its config."""

    @property
    @abstractmethod
    def checkpoint(self) -> Checkpoint | None:
        """Number formats of a quantized checkpoint."""

    @property
    @abstractmethod
    def assumed(self) -> tuple[str, ...]:
        """Fields that its config leaves out, with what was assumed."""

    @property
    @abstractmethod
    def ignored(self) -> tuple[str, ...]:
        """Keys of its config that nobody knows."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What an answer has to say of how the model stands for its config."""
        return ()

    @property
    def unit(self) -> str:
        """What its throughput is counted in, of `predictor.graph.samples.UNITS`."""
        return TOKENS

    @property
    def published_fp8(self) -> str:
        """The word of ``--dtype`` of the fp8 checkpoint that its publisher has beside one in 16 bit; "" for none."""
        return ""

    @property
    def tower(self) -> VisionTower | None:
        """What images pass on their way to it; None for a model that sees nothing."""
        return None

    def tower_model(self) -> Model:
        """The layers of its `tower`, with what is before and after them, as a model of their own."""
        raise NotImplementedError  # of models that see nothing

    def seeing(self) -> Self:
        """The model with its tower, which its config was not read without."""
        return self

    # -- what is known of its layers; 0, "" or False where a model does not know --------------------------------------

    @property
    def experts(self) -> int:
        """Routed experts of a layer, over which a run can say how tokens fall."""
        return 0

    @property
    def top_k(self) -> int:
        """Experts that a token picks."""
        return 0

    @property
    def expert_groups(self) -> int:
        """Groups of neighbouring experts, of which a token picks from `top_groups` alone; 0: from any."""
        return 0

    @property
    def top_groups(self) -> int:
        """Groups of experts that a token picks from."""
        return 0

    @property
    def moe_intermediate(self) -> int:
        """Width of a routed expert."""
        return 0

    @property
    def expert_capacity(self) -> int:
        """Rows that an expert takes at most by the model's own config."""
        return 0

    @property
    def every_expert(self) -> bool:
        """Whether its class runs all experts on all tokens."""
        return False

    @property
    def is_encoder_decoder(self) -> bool:
        """True for two stacks, of which the second reads what the first made."""
        return False

    @property
    def is_mla(self) -> bool:
        """True for multi-head latent attention."""
        return False

    @property
    def causal(self) -> bool:
        """True where a position sees no later one."""
        return True

    @property
    def position(self) -> str:
        """How it knows positions: "learned", "rotary", "alibi", "relative", "none"; "" where that is not known."""
        return ""

    @property
    def trained_positions(self) -> int:
        """Longest sequence that it was made for."""
        return self.max_positions

    @property
    def masked_head(self) -> bool:
        """Whether its head can work on the masked positions of a sequence alone."""
        return False

    @property
    def head_width(self) -> int:
        """Elements of an attention head; 0 where they have no name."""
        return 0

    @property
    def draft_layers(self) -> int:
        """Layers behind the last that guess further tokens (multi-token prediction); no pass of its own runs them."""
        return 0

    # -- what a run may ask of it --------------------------------------------------------------------------------------

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes that it has a pass for."""
        return MODES

    @property
    def sizes(self) -> tuple[int, int] | None:
        """(batch, tokens) where its inputs fix them; None where a run says them."""
        return None

    @property
    def dtype(self) -> str:
        """The one that all of its passes have; "" for that of the run."""
        return ""

    @property
    def steps(self) -> int | None:
        """How often a pass runs where the model says so; None where a run says it."""
        return None

    @abstractmethod
    def refusal(self, feature: Feature) -> str:
        """Why it has not got a feature, as the rest of a line behind the word that asks for it; "" where it has."""

    def supports(self, feature: Feature) -> bool:
        """Whether it has a feature."""
        return not self.refusal(feature)

    def with_sizes(self, **sizes: int) -> Self:
        """The model with other sizes of its own ("batch", "steps", "gpus"); itself where it has none."""
        return self

    def as_run(
        self, engine: Engine, mode: str, tp: int, plan: str | Mapping[str, str] | None = None
    ) -> tuple[Model, tuple[str, ...]]:
        """The model whose passes ``engine`` runs, and lines about it for the answer. ``plan``: how layers are shared
        out over ``tp`` GPUs, as pattern of a module's path -> style, or `CLASS_PLAN`;
        only of a model that has `Feature.PLAN`."""
        return self, ()

    def check_adapters(self, targets: str) -> None:
        """UnsupportedError, one line, where ``targets`` (`--lora-targets`) name what is none of its linear layers."""
        return

    @abstractmethod
    def check_tensor(self, tp: int, spread: bool = False) -> None:
        """RequestError that names every size that ``tp`` does not divide, and the nearest degree that works.
        ``spread``: experts are shared out otherwise (`predictor.passes.expert_parallel`)."""

    # -- what it runs --------------------------------------------------------------------------------------------------

    @abstractmethod
    def graph(self, step: Step, accumulate: bool | None = None, tp: int = 1) -> Graph:
        """The eager graph of a pass. Axes of tensors that have names are whole: `predictor.passes.shard` cuts them over
        GPUs; a model without names gives what one of ``tp`` ranks runs.

        ``accumulate`` not None asks for training; the backward pass comes along where the model knows how it is made,
        else `predictor.passes.autograd` makes it. RequestError, one line, for a pass that there is not.
        """

    def graph_of_part(self, step: Step, accumulate: bool | None, tp: int, cp: int) -> Graph | None:
        """The same over what one of ``cp`` ranks has of its inputs; None where no input says how it is split."""
        return None

    def update(self, step: Step, accumulate: bool) -> Graph | None:
        """The step of the optimizer that the model brings along; None where that of the run is used."""
        return None

    @abstractmethod
    def recording(self, step: Step, accumulate: bool | None, tp: int, dtype: str) -> Recording:
        """A pass as a file of a graph holds it (``dtype``: the word of the run); its graph is that of `graph`."""

    @abstractmethod
    def logits(self, graph: Graph, step: Step) -> int:
        """Width of the row of logits that ``graph``, a pass of ``step``, ends with for each sequence; 0 for none."""

    @abstractmethod
    def stack(self, graph: Graph | None = None) -> Stack:
        """Its layers, as a pipeline cuts them; ``graph``: a pass of it, where sizes have to be read off one."""

    def parts(self) -> tuple[Part, ...]:
        """The models of a pipeline in the order in which they run; () for a model that is no pipeline."""
        return ()

    # -- what it keeps -------------------------------------------------------------------------------------------------

    @abstractmethod
    def parameters(self, tp: int = 1) -> int:
        """Elements of all weights, each once; of a rank where the model has no names for axes (see `graph`)."""

    @abstractmethod
    def weight_bytes(self, formats: Formats, local: Local = whole, tp: int = 1) -> float:
        """Bytes of all weights of a rank, by part in its own format where the model says its parts."""

    def weight_bytes_of_stage(self, formats: Formats, local: Local, share: float) -> float:
        """Bytes of the weights of the stage of a pipeline that has most, with that ``share`` of the layers."""
        raise NotImplementedError  # of models without `Feature.NAMES`, whose stages are read off their graph

    @abstractmethod
    def kv_bytes(self, batch: int, tokens: int, kv_dtype: str, local: Local = whole, tp: int = 1) -> float:
        """Bytes that a rank keeps of ``batch`` sequences of ``tokens`` each between decode steps."""


class Part(NamedTuple):
    """A part of a pipeline: ``model``, run ``times`` times over ``batch`` sequences of ``seq_len`` tokens (where its
    inputs do not say its sizes), in ``dtype`` ("": that of the run). ``mode``: "train" with its backward pass."""

    name: str
    model: Model
    times: int = 1
    dtype: str = ""
    batch: int = 1
    seq_len: int = 1
    mode: str = "forward"
