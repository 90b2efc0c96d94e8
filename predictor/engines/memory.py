"""What engines do with a GPU's memory: the share that they take, and of what.

``--memory-fraction`` stands for each engine's own option. Without it an engine takes its default, of the newest version
that its file lists unless another is asked for; one that lists none may use the whole GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from predictor.engines.releases import as_of
from predictor.errors import RequestError
from predictor.files.records import dataclass

#: What a fraction is of, and what has to stay within it.
BASES = {
    "total": "of the GPU's memory, for everything that the run keeps",
    "static": "of the GPU's memory, for weights and KV cache; the rest of the GPU is for everything else",
    "free": "of what weights, activations, context and workspaces leave free, for the KV cache",
}


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """One engine's share of memory from ``version`` on.

    ``option`` is the engine's own name for the fraction, ``base`` one of `BASES`, ``fraction`` the default: a number,
    or a function of (the GPU's memory in MiB, the tensor-parallel degree); ``source`` is where it was read.
    """

    engine: str
    version: str
    option: str
    base: str
    fraction: float | Callable[[float, int], float]
    source: str

    def default(self, memory_bytes: float, tp: int) -> float:
        """The fraction that the engine takes by itself on a GPU of ``memory_bytes``, one of ``tp``."""
        return self.fraction if isinstance(self.fraction, float) else self.fraction(memory_bytes / 2**20, tp)

    @property
    def words(self) -> str:
        """Whose default it is: "vLLM 0.24 gpu_memory_utilization"; "" where nothing is set aside."""
        return " ".join(part for part in (self.engine, self.version, self.option) if part)


#: torch.cuda.set_per_process_memory_fraction where nobody calls it.
WHOLE = MemoryRule("", "", "", "total", 1.0, "nothing is set aside")


def rule_of(rules: Sequence[MemoryRule], version: str = "") -> MemoryRule:
    """The rule of ``rules`` as of ``version``: `predictor.engines.releases.as_of`."""
    return as_of(rules, version)


def check_fraction(value: object) -> None:
    """RequestError, one line, for what is no fraction above 0 and at most 1."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and 0.0 < value <= 1.0:  # type: ignore[operator]
        return
    hint = ""
    if number and 1.0 < value <= 100.0:  # type: ignore[operator]
        hint = f"; nearest: {1.0 if value < 10.0 else value / 100:g}"  # type: ignore[operator]
    shown = f"{value:g}" if number else repr(value)
    raise RequestError(f"--memory-fraction {shown}: expected a number above 0 and at most 1, such as 0.9{hint}")
