"""How rows of a suite were measured: what the tool of their origin asks for, and how it starts an engine.

A row has its traffic and its degrees. What its authors' tool chose beside them is read in the package of that tool, of
the time of the row's engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from types import MappingProxyType

from predictor.engines.base import GREEDY, RANDOM
from predictor.engines.library import runs_generated
from predictor.engines.vintage import CHECKPOINT, Vintage
from predictor.files.records import dataclass
from predictor.hardware.gpu import GPUSpec

#: How a checkpoint's generation_config.json has its tokens chosen, where that is not at random by the temperature
#: alone. Source: the model card of Qwen3-32B (temperature 0.6, top-p 0.95, top-k 20; recalled, unverified here).
CHOSEN = {"Qwen/Qwen3-32B": "top-k+top-p"}


def in_every_step(model: str, gpu: GPUSpec, clients: int) -> int:
    """An engine's default."""
    return 1


def _inferencemax_receives(model: str, gpu: GPUSpec, clients: int) -> int:
    """--scheduler-recv-interval of InferenceX@843c6254, dsr1_*_b200.sh (30 from 16 clients on, 10 below) and
    qwen3.5_*.sh (30 above 4): its recipes for compute capability 10 alone have it."""
    if not runs_generated(gpu):
        return 1
    if "deepseek-r1" in model.lower():
        return 30 if clients >= 16 else 10
    if "qwen3.5" in model.lower():
        return 30 if clients > 4 else 10
    return 1


@dataclass(frozen=True, slots=True)
class Launcher:
    """How a tool starts an engine: a step has ``room`` tokens beyond a prompt and a token of each client (None: the
    engine's default); ``captures``: every batch up to the clients has a graph of its own; ``fraction`` of memory;
    ``runs_as``: words of `predictor.request.precision` for the same weights with narrower activations, on GPUs that
    multiply both; ``caches``: the KV cache's dtype by that of the weights, where it asks for one; ``receives``: decode
    steps after which the scheduler looks for requests, of (model, GPU, clients)."""

    room: int | None = None
    captures: bool = False
    fraction: float | None = None
    runs_as: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    caches: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    receives: Callable[[str, GPUSpec, int], int] = in_every_step


@dataclass(frozen=True, slots=True)
class Tool:
    """What sends the requests: ``rounds`` of all clients are measured; lengths are drawn from ``least`` of them on;
    ``greedy``: requests ask for it, else they say nothing and the engine's default holds."""

    source: str
    rounds: int
    least: float = 1.0
    greedy: bool = True
    launchers: Mapping[str, Launcher] = field(default_factory=lambda: MappingProxyType({}))


#: Rows of this origin were measured by AIConfigurator's authors, by the tool that they publish, it is taken.
_AICONFIGURATOR = Tool(
    "aiconfigurator (PyPI) eval/benchmarks/genai_perf_runner.py, the same from 0.2.0 to 0.6.0: 10 rounds after 2 that "
    "warm up, no temperature; 0.12.0 asks for 20. TensorRT-LLM 1.0.0rc3: cli/backends/trtllm.py and "
    "cli/templates/trtllm/dynamo/extra_engine_args.1.0.0rc3.yaml.j2 of 0.2.0, where dense_default.yaml and "
    "moe_default.yaml have kvcache_quant_mode fp8. vLLM: generator/rule_plugin/vllm.rule of "
    "0.6.0. SGLang: no rules before 0.5.0, so the engine's defaults",
    rounds=10, greedy=False,
    launchers={
        "tensorrt_llm": Launcher(room=1500, captures=True, fraction=0.8, caches={"fp8": "fp8"}),
        "vllm": Launcher(room=1500),
    },
)  # fmt: skip
_INFERENCEMAX = Tool(
    "InferenceMAX's recipes: `vllm bench serve` with 10 rounds, temperature 0 (recalled; docs/how-to/serving.md shows "
    "that the rows have 10 rounds); lengths from 80 % on: README.md of the data's ground_truth", rounds=10,
    least=0.8,
    # VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1: InferenceX@843c6254 deprecated/gptoss_fp4_b200.sh
    launchers={
        "vllm": Launcher(runs_as={"mxfp4": "mxfp4_mxfp8"}),
        "sglang": Launcher(receives=_inferencemax_receives),
    },
)  # fmt: skip
_UNKNOWN = Tool("nobody says: as InferenceMAX's, with lengths as they are named", rounds=10)
_TOOLS = {"aiconfigurator": _AICONFIGURATOR, "inferencemax_dump": _INFERENCEMAX, "inferencex": _INFERENCEMAX}


def tool_of(origin: str) -> Tool:
    """The tool by which rows of an origin were measured."""
    return _TOOLS.get(origin, _UNKNOWN)


def sampling_of(tool: Tool, model: str, release: Vintage | None) -> str:
    """How the tokens of a row are chosen."""
    if tool.greedy or release is None:
        return GREEDY
    return CHOSEN.get(model, RANDOM) if release.unasked == CHECKPOINT else release.unasked
