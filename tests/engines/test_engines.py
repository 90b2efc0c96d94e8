"""Engines: one file each, found by being there; one from outside the package is as good."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import predictor
from predictor import engines
from predictor.data.schema import PROTOCOLS
from predictor.engines import CALLS, CAPTURED, HOSTS, LAUNCHES, Engine, registry
from predictor.engines.library import (
    CUTLASS,
    FASTEST,
    MARLIN,
    TRITON,
    TWO_TILES,
    AllReduce,
    AttentionCalls,
    Sharing,
    TritonExperts,
    packed_groups,
)
from predictor.errors import RequestError
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.hardware.system import load_system
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.ops import Attention, Gemm, MoE, Norm, Op
from predictor.ops.collective import over

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that captures its prompts, too, and costs what vLLM's kernels cost."""
    monkeypatch.setattr(registry, "_registered", {})
    made = Engine("toy", "vllm", host=CAPTURED, decode_host=CAPTURED, serves=True, samples=True)
    engines.register(made)
    return made


def test_an_engine_from_outside_runs_a_model(toy: Engine) -> None:
    asked = {"mode": "prefill", "batch": 1, "seq_len": 64}
    ours = predictor.predict("llama-3.1-8b", "h100", execution="toy", **asked)
    theirs = predictor.predict("llama-3.1-8b", "h100", execution="vllm", **asked)
    assert ours.workload.engine is toy
    assert ours.gpu_busy_s == theirs.gpu_busy_s
    assert ours.cpu_busy_s == 0.0 < theirs.cpu_busy_s
    assert ours.latency_s < theirs.latency_s
    with pytest.raises(ValueError, match="'toy' exists"):
        engines.register(toy)


def test_an_unknown_engine_is_one_line_with_the_nearest() -> None:
    with pytest.raises(RequestError, match=r"^--execution 'vlm': expected one of eager, compile, .*; nearest: vllm$"):
        predictor.predict("gpt2", "h100", execution="vlm")


def test_what_engines_say_of_themselves_is_known() -> None:
    for name in engines.names():
        one = engines.engine(name)
        assert one.name == name
        assert {one.host, one.decode_host} <= set(HOSTS)
        assert one.serves or one.kernels == "pytorch"
        assert one.fuses or one.host == CALLS
        assert one.serves or not one.samples
        assert one.launch_overhead_s is None or 0 < one.launch_overhead_s < 1e-4


#: Files with a protocol of measurements that has an engine's name: a kernel replayed in a graph, run by any engine.
PROTOCOLS_OF = "predictor/data/schema.py"


def _texts(path: Path) -> set[str]:
    """The strings of a file that are no docstrings, f-strings' parts among them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef)
    first = [node.body[0] for node in ast.walk(tree) if isinstance(node, owners) and node.body]
    docstrings = {id(node.value) for node in first if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    }


def test_no_engine_is_named_outside_its_file() -> None:
    """A string that is an engine's or a library's name, or an identifier with a library's in it ("launch_cycles_vllm"),
    is its file's affair (importers aside, which read what others named). Sentences for a reader may hold one."""
    products = {*engines.libraries(), *(n for n in engines.names() if engines.engine(n).serves)} - {"cuda_graph"}
    words = {*engines.names(), *engines.libraries()}
    inside = re.compile(rf"(?:[a-z0-9_]*_)?(?:{'|'.join(sorted(products))})(?:_[a-z0-9_]*)?")
    config = {"gelu_pytorch_tanh"}  # an activation's name in Hugging Face configs
    allowed = {
        ("predictor/request/options.py", "cuda_graph"),  # a suite's column: whether a step was captured
        ("predictor/fit/suite.py", "cuda_graph"),
        ("predictor/cli/plan.py", "megatron"),  # what a plan runs with where nobody says
    }
    found = set()
    for path in sorted((ROOT / "predictor").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if not {"engines", "importers"} & set(path.parts):
            named = {text for text in _texts(path) if text in words or inside.fullmatch(text)} - config
            found |= {(name, text) for text in named - (set(PROTOCOLS) if name == PROTOCOLS_OF else set())}
    assert found <= allowed


def test_libraries_have_numbers_of_their_own() -> None:
    """What stands in trained sets: the number in the features, the order in which they answer."""
    measured = engines.measured()
    assert [(one.name, one.code) for one in measured] == [("vllm", 2), ("trtllm", 0), ("sglang", 1), ("aiter", 3)]
    assert {engines.engine(name).kernels for name in engines.names()} <= set(engines.libraries())
    for name in engines.libraries():
        one = engines.library(name)
        assert one.name == name
        assert engines.answering(name).code >= 0
        versions = [[int(n) for n in release.version.split(".") if n] for release in one.experts]
        assert versions == sorted(versions)
        assert all(release.source for release in one.experts) or len(one.experts) == 1
    reducing = {one.name: one.all_reduce() for one in measured}
    two_and_eight = np.array([2.0, 8.0])
    limits = {name: (own.limit(two_and_eight) / 2**20).round(3).tolist() for name, own in reducing.items() if own}
    assert limits == {"vllm": [8.0, 8.0], "sglang": [16.0, 16.0], "trtllm": [4.0, 1.0]}
    assert engines.answering("pytorch") is engines.answering("nobody's") is engines.library("vllm")


# ------------------------------------------------------------------------------------ a library from outside


@pytest.fixture
def toy_kernels(monkeypatch: pytest.MonkeyPatch) -> engines.Library:
    """Experts in two tiles where vLLM's take the fastest, a cache that no decode kernel splits, an all_reduce for any
    buffer; nobody measured it."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_libraries", {})

    def whole(calls: AttentionCalls, gpu: GPUSpec) -> Sharing:
        return replace(packed_groups(calls, gpu), whole=np.ones(calls.group.size))

    made = engines.Library(
        "toy kernels", norms=("rms", "layer"), all_reduces=(AllReduce(2**40),), share_attention=whole,
        experts=(TritonExperts("1", ("bf16",)), TritonExperts("2.1", ("bf16", "fp8"))),
    )  # fmt: skip
    engines.register(made)
    engines.register(Engine("toy", made.name, host=LAUNCHES, decode_host=CAPTURED, serves=True))
    return made


def seconds(kernels: str, *ops: Op, gpu: str = "h100") -> np.ndarray:
    return predict_kernels(ops, load_gpu(gpu), load_artifacts(), kernels).latency_s


def test_a_library_from_outside_shares_out_its_work_its_own_way(toy_kernels: engines.Library) -> None:
    """Its constants are those of vLLM, which answers first; what it says of itself changes its times, nothing else."""
    name = toy_kernels.name
    assert engines.answering(name) is engines.library("vllm")
    gemm = Gemm("bf16", 1, 64, 4096, 4096)
    assert seconds(name, gemm) == seconds("vllm", gemm)
    for keys, least in ((256, 1.0), (1024, 1.5), (65536, 8.0)):  # H20, which nobody measured: 78 SMs
        decode = Attention("bf16", 1, 8, 8, 1, keys, 128)
        assert seconds(name, decode, gpu="h20") >= least * seconds("vllm", decode, gpu="h20"), keys
    norm = Norm("bf16", 8192, 4096, "layer")
    assert seconds(name, norm) < seconds("vllm", norm) == seconds("pytorch", norm)
    layer = MoE("bf16", 4096, 2048, 1024, 64, 4)  # both in Triton's kernels
    assert seconds(name, layer) > 1.1 * seconds("vllm", layer)
    h100 = load_gpu("h100")
    assert [toy_kernels.moe_kernel(v, h100) for v in ("bf16", "fp8", "nvfp4", "int4_wo")] == [
        TRITON, TRITON, CUTLASS, MARLIN,
    ]  # fmt: skip
    tilings = [toy_kernels.moe_tiling(TRITON, "fp8", version) for version in ("", "2.1", "2.1.0", "2.0.9", "0.5rc1")]
    assert tilings == [TWO_TILES, TWO_TILES, TWO_TILES, FASTEST, FASTEST]


def test_a_librarys_own_all_reduce_takes_what_kernels_of_its_kind_take(toy_kernels: engines.Library) -> None:
    system = load_system("dgx-h100")
    small, large = (over(system, "all_reduce", "bf16", size, 8) for size in (2**12, 2**30))
    assert seconds(toy_kernels.name, small) == seconds("vllm", small) < seconds("pytorch", small)
    assert seconds("vllm", large) == seconds("pytorch", large) >= seconds(toy_kernels.name, large)


def test_an_engine_with_a_library_from_outside_runs_models(toy_kernels: engines.Library) -> None:
    for model in ("llama-3.1-8b", "mixtral-8x7b"):
        asked = {"mode": "decode", "batch": 1, "context_len": 32768 - 1}
        ours, theirs = (predictor.predict(model, "h20", execution=name, **asked) for name in ("toy", "vllm"))
        mine, other = ({row.op: row.latency_s for row in answer.breakdown} for answer in (ours, theirs))
        assert mine["linear"] == other["linear"]
        assert mine["attention decode"] > 5 * other["attention decode"]


def test_what_cannot_be_registered_says_why(toy_kernels: engines.Library) -> None:
    with pytest.raises(ValueError, match=r"^a library called 'toy kernels' exists$"):
        engines.register(toy_kernels)
    with pytest.raises(ValueError, match=r"^'other' runs kernels of 'vlm': expected one of pytorch, .*toy kernels$"):
        engines.register(Engine("other", "vlm"))
    with pytest.raises(ValueError, match=r"^'other' runs kernels of 'vlm': expected"):
        engines.register(engines.Library("other", runs="vlm"))
