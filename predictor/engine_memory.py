"""What serving engines do with a GPU's memory, by engine and version: the share that they take, and of what.

``--memory-fraction`` stands for each engine's own option. Without it an engine takes its default, of the newest version
that is listed unless another is asked for. PyTorch by itself (eager, compile, training), and engines that are not
listed, may use the whole GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from predictor.errors import RequestError

#: What a fraction is of, and what has to stay within it.
BASES = {
    "total": "of the GPU's memory, for all that the run keeps",
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


def _sglang_0_4(memory_mib: float, tp: int) -> float:
    """By the tensor-parallel degree alone."""
    return 0.79 if tp >= 16 else 0.81 if tp >= 8 else 0.85 if tp >= 4 else 0.87 if tp >= 2 else 0.88


def _sglang_0_5(memory_mib: float, tp: int) -> float:
    """1 - reserved / memory: 512 MB, 1.5 MB a token of a prefill chunk, 2 MB a sequence of the largest CUDA graph, and
    128 MB a rank, where chunk and graph are chosen by the GPU's memory."""
    gb = memory_mib / 1024
    chunk = 2048 if gb < 35 else 4096 if gb < 60 else 8192 if gb < 160 else 16384
    largest_graph = 24 if gb < 35 else 32 if gb < 60 else 256 if tp < 4 else 512
    reserved = 512 + 1.5 * max(chunk, 2048) + 2 * largest_graph + 128 * tp
    return max(0.0, round(1.0 - reserved / memory_mib, 3))


#: Execution -> its rules, the oldest first. vLLM counts the memory of its CUDA graphs within the fraction from 0.24 on,
#: before that it came on top.
ENGINES: Mapping[str, tuple[MemoryRule, ...]] = {
    "vllm": (
        MemoryRule("vLLM", "0.2", "gpu_memory_utilization", "total", 0.90, "vLLM 0.2.7 worker/worker.py:107"),
        MemoryRule("vLLM", "0.24", "gpu_memory_utilization", "total", 0.92,
                   "vLLM 0.24.0 config/cache.py:67-75, v1/worker/gpu_worker.py:447-492"),
    ),
    "sglang": (
        MemoryRule("SGLang", "0.4", "mem_fraction_static", "static", _sglang_0_4,
                   "SGLang 0.4.0 server_args.py:158-168"),
        MemoryRule("SGLang", "0.5", "mem_fraction_static", "static", _sglang_0_5,
                   "SGLang 0.5.9 server_args.py:1020-1066, 935-1000"),
    ),
    "tensorrt_llm": (
        MemoryRule("TensorRT-LLM", "1.0", "free_gpu_memory_fraction", "free", 0.90,
                   "TensorRT-LLM tensorrt_llm/llmapi/llm_args.py, KvCacheConfig"),
    ),
}  # fmt: skip

#: torch.cuda.set_per_process_memory_fraction where nobody calls it.
WHOLE = MemoryRule("", "", "", "total", 1.0, "nothing is set aside")


def memory_rule(execution: str, version: str = "") -> MemoryRule:
    """The rule of an execution's engine as of ``version`` ("0.19.1"; "": the newest listed); `WHOLE` for others.

    A version before the first that is listed takes the first. RequestError for a version that is none.

    >>> memory_rule("vllm").default(80 * 2**30, 1), memory_rule("vllm", "0.19.1").default(80 * 2**30, 1)
    (0.92, 0.9)
    """
    rules = ENGINES.get(execution, (WHOLE,))
    if not version:
        return rules[-1]
    asked = _parts(version)
    return max((rule for rule in rules if _parts(rule.version) <= asked), default=rules[0], key=_order)


def _order(rule: MemoryRule) -> tuple[int, ...]:
    return _parts(rule.version)


def _parts(version: str) -> tuple[int, ...]:
    """ "0.24.0" and "0.6.6.post1" as numbers."""
    words = [word for word in version.split(".") if not word.startswith(("post", "dev", "rc"))]
    if not all(word.isascii() and word.isdigit() for word in words):
        if not version:
            return ()
        raise RequestError(f"version {version!r}: expected numbers with points between them, such as 0.24.0")
    return tuple(int(word) for word in words)


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
