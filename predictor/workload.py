"""What is asked: one model, one GPU, one way of running it. Validated once, with an error that names the value."""

from __future__ import annotations

from dataclasses import dataclass, field

from predictor.errors import RequestError, UnsupportedError, nearest

MODES = ("forward", "train", "prefill", "decode", "generate")
EXECUTIONS = ("eager", "compile", "cuda_graph")
#: Executions of the ground-truth suites that name a framework; their host side and kernels are not built yet.
LATER_EXECUTIONS = ("vllm", "sglang", "tensorrt_llm", "megatron", "fastertransformer")
ATTENTIONS = ("math", "flash")
OPTIMIZERS = ("adam", "adam_fused", "sgd", "none")
RECOMPUTES = ("none", "selective", "full")
SHARDS = ("none", "zero1", "zero2", "zero3", "hsdp")

#: Sizes beyond which a request is a slip of the keyboard: no GPU holds them, and sums of them leave exact integers.
LARGEST = {
    "batch": 10**7, "micro_batch": 10**7, "seq_len": 10**8, "context_len": 10**8, "output_len": 10**6,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Degrees of each parallelism; all of them 1 (or "none") until the parallelism is built."""

    num_gpus: int = 1
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    shard: str = "none"

    def __post_init__(self) -> None:
        for name in ("num_gpus", "tp", "pp", "dp", "cp", "ep"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise RequestError(f"{flag(name)} {value}: expected a whole number, at least 1")
            if value > 1:
                raise UnsupportedError(f"{flag(name)} {value}: parallelism is not built yet; expected 1")
        if self.shard not in SHARDS:
            raise RequestError(choice("shard", self.shard, SHARDS))
        if self.shard != "none":
            raise UnsupportedError(f"--shard {self.shard}: sharding is not built yet; expected none")


@dataclass(frozen=True, slots=True)
class Workload:
    """One run: mode, sizes, dtype and execution.

    ``seq_len`` is the prompt or training length in tokens, ``context_len`` the tokens already in the KV cache of a
    decode step, ``output_len`` the tokens that generate makes a sequence, ``micro_batch`` the sequences of one forward
    and backward pass in training (0 = the batch). ``kernels`` is derived from the execution.
    """

    mode: str
    batch: int
    seq_len: int
    dtype: str
    execution: str
    attention: str
    output_len: int = 0
    context_len: int = 0
    micro_batch: int = 0
    optimizer: str = "adam"
    recompute: str = "none"
    parallelism: Parallelism = field(default_factory=Parallelism)

    def __post_init__(self) -> None:
        for name, most in LARGEST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise RequestError(f"{flag(name)} {value!r}: expected a whole number")
            if value > most:
                shown = value if value < 10**18 else f"of {len(str(value))} digits"
                raise RequestError(f"{flag(name)} {shown}: expected at most {most:,}")
        _one_of("mode", self.mode, MODES)
        if self.execution in LATER_EXECUTIONS:
            raise UnsupportedError(
                f"--execution {self.execution}: not built yet; expected one of {', '.join(EXECUTIONS)}"
            )
        _one_of("execution", self.execution, EXECUTIONS)
        _one_of("attention", self.attention, ATTENTIONS)
        _one_of("optimizer", self.optimizer, OPTIMIZERS)
        _one_of("recompute", self.recompute, RECOMPUTES)
        if self.recompute != "none":
            raise UnsupportedError(f"--recompute {self.recompute}: not built yet; expected none")
        for name in ("batch", "seq_len"):
            if getattr(self, name) < 1:
                raise RequestError(f"{flag(name)} {getattr(self, name)}: expected at least 1")
        for name in ("context_len", "output_len", "micro_batch"):
            if getattr(self, name) < 0:
                raise RequestError(f"{flag(name)} {getattr(self, name)}: expected 0 or more")
        if self.mode == "generate" and self.output_len < 1:
            raise RequestError(f"--output-len {self.output_len}: generate needs at least 1 token")
        if self.mode != "generate" and self.output_len:
            raise RequestError(f"--output-len {self.output_len}: only --mode generate takes it")
        if self.mode != "decode" and self.context_len:
            raise RequestError(f"--context-len {self.context_len}: only --mode decode takes it")
        if self.micro_batch and self.mode != "train":
            raise RequestError(f"--micro-batch {self.micro_batch}: only --mode train takes it")
        if self.micro_batch and self.batch % self.micro_batch:
            raise RequestError(f"--micro-batch {self.micro_batch}: does not divide --batch {self.batch}")

    @property
    def fused(self) -> bool:
        """Element-wise chains run as one kernel, as torch.compile and serving engines make them."""
        return self.execution != "eager"

    @property
    def kernels(self) -> str:
        """Framework whose kernels run: PyTorch's own in eager and compile, vLLM's in a captured serving graph."""
        return "vllm" if self.execution == "cuda_graph" else "pytorch"


def flag(name: str) -> str:
    """The command-line spelling of a field."""
    return "--" + name.replace("_", "-")


def choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """The one line for a value that is not among the choices."""
    close = nearest(value, choices)
    return f"{flag(name)} {value!r}: expected one of {', '.join(choices)}" + (f"; nearest: {close[0]}" if close else "")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str):
        raise RequestError(f"{flag(name)} {value!r}: expected one of {', '.join(choices)}")
    if value not in choices:
        raise RequestError(choice(name, value, choices))
