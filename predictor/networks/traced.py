"""Models that no reader knows: what runs is recorded (`predictor.frontends`), or was, in place of being built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from predictor.graph.recording import Recording
from predictor.networks.config import ModelConfig
from predictor.networks.step import Step


class Source(Protocol):
    """Where recordings of a model come from.

    ``sizes``: (batch, tokens) where the inputs fix them, None where a step says them. ``dtype``: the one that all of
    its recordings have ("": that of the step). ``modes``: those that it can record.
    """

    sizes: tuple[int, int] | None
    dtype: str
    modes: tuple[str, ...]

    def record(self, step: Step, accumulate: bool | None) -> Recording:
        """The pass of a step; with ``accumulate`` not None its backward pass with it. RequestError, one line."""
        ...

    def parameters(self) -> int:
        """Elements of all weights, each once."""
        ...

    def cache_bytes(self, batch: int, tokens: int, kv_dtype: str) -> float:
        """What it keeps of so many tokens of each sequence between decode steps."""
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
    def traces(self) -> Source:
        """Where its recordings come from."""
        assert self.source is not None
        return self.source


def traced_model(name: str, source: Source, model_type: str = "traced", max_positions: int = 2**31) -> TracedModel:
    """A model of that name, whose passes ``source`` records."""
    return TracedModel(
        name=name, model_type=model_type, architecture=name, head="none", hidden=1, layers=1, heads=1, kv_heads=1,
        head_dim=1, intermediate=1, vocab=1, max_positions=max_positions, activation="gelu", source=source,
    )  # fmt: skip


def recorded(config: ModelConfig) -> Source | None:
    """Where the graphs of a model come from that is recorded; None for one that is built."""
    return config.traces if isinstance(config, TracedModel) else None
