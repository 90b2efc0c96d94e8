"""Quantization schemes: bytes and peaks by hand, what a dtype means for a GPU, and who answers for a scheme."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from predictor.engines import EAGER, Engine
from predictor.engines.pytorch.engine import COMPILE
from predictor.errors import UnknownNameError, UnsupportedError
from predictor.forecast.forecast import forecast
from predictor.formats.dtypes import bytes_of
from predictor.formats.parts import HIGH_PARTS, Format, Formats
from predictor.formats.quantization import SCHEMES, activation_bytes, integer_word, stand_ins, variant, weight_bytes
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import make_batch, predict_kernels
from predictor.models.built import config_from_dict, load_config
from predictor.models.built.load import CONFIGS
from predictor.models.step import Step
from predictor.ops import Gemm, MoE, Op
from predictor.ops.attention import Attention
from predictor.ops.quantize import Quantize
from predictor.ops.roofline import peak_for, roofline
from predictor.request.precision import SUPPORTED, precision
from predictor.request.request import Request
from predictor.simulate.lower import Lowering, lower

M, N, K = 16, 512, 1024


@pytest.mark.parametrize(
    ("dtype", "quant", "weights", "activations"),
    [
        ("bf16", "", N * K * 2, M * K * 2),
        ("fp8", "", N * K, M * K),
        ("fp8", "fp8_block", N * K + 4 * (N // 128) * (K // 128), M * K + 4 * M * (K // 128)),
        ("int8", "sq", N * K, M * K),
        ("bf16", "int8_wo", N * K, M * K * 2),
        ("bf16", "int4_wo", N * K / 2 + 2 * N * (K // 128), M * K * 2),
        ("fp16", "w4a16_mxfp4", N * K / 2 + N * (K // 32), M * K * 2),
        ("mxfp8", "w4a8_mxfp4_mxfp8", N * K / 2 + N * (K // 32), M * K + M * (K // 32)),
        ("mxfp8", "", N * K + N * (K // 32), M * K + M * (K // 32)),
        ("nvfp4", "", N * K / 2 + N * (K // 16), M * K / 2 + M * (K // 16)),
    ],
)
def test_bytes_of_a_product_by_hand(dtype: str, quant: str, weights: float, activations: float) -> None:
    op = Gemm(dtype, M, N, K, quant=quant)
    assert op.bytes_read() == weights + activations
    assert op.bytes_written() == M * N * 2  # results are 16 bit
    assert op.flops() == 2 * M * N * K
    assert weight_bytes(dtype, quant) * N * K == weights
    layer = MoE(dtype, 64, K, N, 8, 2, quant=quant)  # 128 rows reach all 8 experts of 3 matrices
    assert layer.bytes_read() == 8 * 3 * weights + 64 * K * 2


def test_peak_is_that_of_the_unit_that_computes() -> None:
    board = load_gpu("rtx-pro-6000-server")
    peaks = {q: peak_for(Gemm("bf16", 1, 1, 1, quant=q), board) for q in ("", "int8_wo", "int4_wo", "w4a16_mxfp4")}
    assert set(peaks.values()) == {board.peak_flops("bf16")}  # weight-only: unpacked to 16 bit
    assert peak_for(Gemm("nvfp4", 1, 1, 1), board) == board.peak_flops("fp4")
    assert peak_for(Gemm("mxfp8", 1, 1, 1, quant="w4a8_mxfp4_mxfp8"), board) == board.peak_flops("fp8")
    assert peak_for(Gemm("int8", 1, 1, 1, quant="sq"), load_gpu("a100")) == load_gpu("a100").peak_flops("int8")
    # Decode of one token is bound by the weights' bytes: 16 bit over 4 bit with their scales.
    few = roofline([Gemm("bf16", 1, 16384, 16384), Gemm("bf16", 1, 16384, 16384, quant="int4_wo")], board).cold_s
    assert few[0] / few[1] == pytest.approx(2 / 0.515625, rel=1e-3)


def test_unknown_scheme_is_one_line() -> None:
    with pytest.raises(UnknownNameError, match="w4a16_mxfp4"):
        Gemm("bf16", 1, 2, 3, quant="w4a16_mxfp").bytes_read()


def test_every_scheme_ends_at_16_bit() -> None:
    for name in (*SCHEMES, "fp8", "mxfp8", "nvfp4", "int8"):
        assert stand_ins(name)[0] == name and stand_ins(name)[-1] == "bf16"
    assert stand_ins("bf16") == ("bf16",)
    assert (variant("fp16"), variant("bf16", "int4_wo"), variant("nvfp4")) == ("bf16", "int4_wo", "nvfp4")
    assert activation_bytes("fp8") == bytes_of("fp8")


@pytest.mark.parametrize(
    ("gpu", "dtype", "gemm", "activation", "quant", "experts"),
    [
        ("h100", "fp8", "fp8", "bf16", "", "fp8_block"),
        ("h100", "fp8_static", "fp8", "bf16", "fp8_static", "fp8_block"),
        ("h100", "fp8_block", "fp8", "bf16", "fp8_block", "fp8_block"),
        ("h100", "int4_wo", "bf16", "bf16", "int4_wo", "int4_wo"),
        ("t4", "int4_wo", "fp16", "fp16", "int4_wo", "int4_wo"),  # Turing has no bf16
        ("a100", "int8", "int8", "bf16", "sq", "sq"),
        ("b200", "nvfp4", "nvfp4", "bf16", "", ""),
        ("b200", "mxfp8", "mxfp8", "bf16", "", ""),
    ],
)
def test_what_a_dtype_means(gpu: str, dtype: str, gemm: str, activation: str, quant: str, experts: str) -> None:
    p = precision(dtype, load_gpu(gpu))
    assert (p.gemm, p.activation, p.kv) == (gemm, activation, activation)
    assert (p.formats.of("mlp.up"), p.formats.of("experts")) == ((gemm, quant), (gemm, experts))
    assert p.formats.of("attention.out").weight_bytes == weight_bytes(gemm, quant)
    assert [p.formats.of(part) for part in HIGH_PARTS] == [(activation, "")] * len(HIGH_PARTS)


@pytest.mark.parametrize(
    ("gpu", "dtype"), [("a100", "fp8"), ("h100", "nvfp4"), ("h100", "mxfp8"), ("a100", "fp8_block")]
)
def test_a_gpu_without_the_units_names_what_it_has(gpu: str, dtype: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        precision(dtype, load_gpu(gpu))
    line = str(caught.value)
    assert "\n" not in line and load_gpu(gpu).id in line
    offered = line.split("it has ")[1].split(", ")
    assert dtype not in offered and "int4_wo" in offered
    for name in offered:
        precision(name, load_gpu(gpu))


def test_graph_quantizes_linear_layers_and_experts_and_nothing_else() -> None:
    config = load_config("qwen3-30b-a3b")
    formats = Formats(Format("bf16"), Format("bf16", "int4_wo"), (("experts", Format("bf16", "sq")),))
    step = Step("decode", 4, 1, 100, "bf16", "", "flash", "last")
    graph = lower(Lowering(config, step, formats=formats, engine=COMPILE))
    ops = {node.name: node.op for block in graph.blocks for node in block.nodes}
    assert getattr(ops["attention qkv"], "quant") == "int4_wo"  # noqa: B009
    assert getattr(ops["experts"], "quant") == "sq"  # noqa: B009
    assert getattr(ops["router"], "quant") == ""  # noqa: B009
    assert [op for name, op in ops.items() if "head" in name and getattr(op, "quant", "")] == []


def test_eager_fp8_reads_and_writes_the_activations_once_more() -> None:
    config = load_config("llama-3.1-8b")

    def quantize(engine: Engine, gemm: str, quant: str = "") -> list[Op]:
        formats = Formats(Format("bf16"), Format(gemm, quant))
        step = Step("prefill", 1, 128, 0, "bf16", "", "flash", "last")
        graph = lower(Lowering(config, step, formats=formats, engine=engine))
        nodes = [node for block in graph.blocks for node in block.nodes]
        return [node.op for node in nodes if node.name.endswith("quantize")]

    eager = quantize(EAGER, "fp8")
    assert len(eager) >= 7  # q, k, v, out, gate, up, down
    assert eager[0].bytes_moved() == 128 * 4096 * (2 + 1)
    assert quantize(COMPILE, "fp8") == [] and quantize(EAGER, "bf16", "int4_wo") == []


def test_known_scales_need_no_kernel_that_finds_them() -> None:
    """Of a static checkpoint TensorRT-LLM casts before every product; vLLM after attention alone, elsewhere the kernel
    before does it; a library that nobody read looks for scales all the same. Tables hold the kernels that do both."""

    sizes = json.loads((CONFIGS / "llama-3.1-8b.json").read_text(encoding="utf-8"))
    scaled = {"fp8": "dynamic", "fp8_static": "static"}

    def layer(execution: str, dtype: str) -> tuple[list[str], dict[str, float]]:
        said = {"quant_method": "fp8", "activation_scheme": scaled[dtype]}
        words = {"mode": "decode", "batch": 16, "context_len": 1024, "dtype": "checkpoint", "execution": execution}
        run = Request(config_from_dict({**sizes, "quantization_config": said}, "llama"), "h100", **words).run()  # type: ignore[arg-type]
        done = forecast(run)
        (block,) = [at.block for at in done.stages[0].blocks if at.block.repeat > 1]
        cast = [node.name for node in block.nodes if isinstance(node.op, Quantize)]
        assert all(node.op.kind == "cast" for node in block.nodes if isinstance(node.op, Quantize))
        assert not any("not measured" in note for note in done.prediction.notes)
        return cast, {row.op: row.latency_s for row in done.prediction.breakdown} | {"all": done.latency_s}

    casts, static = layer("tensorrt_llm", "fp8_static")
    none, dynamic = layer("tensorrt_llm", "fp8")
    assert len(casts) == 4 and none == []  # qkv are one product
    assert static["linear"] < dynamic["linear"] and static["quantize"] > 0.0 and static["all"] < dynamic["all"]
    casts, static = layer("vllm", "fp8_static")
    assert casts == ["attention out quantize"] and static["all"] < layer("vllm", "fp8")[1]["all"]
    assert layer("sglang", "fp8_static") == layer("sglang", "fp8")


def test_what_is_taken_off_is_what_the_tables_say() -> None:
    """4,096 rows of 4,096 on H100: TensorRT-LLM's two kernels of 27 and 18 us, as its table of `quantize` has them."""
    artifacts, gpu = load_artifacts(), load_gpu("h100")
    products = [Gemm("fp8", 4096, 4096, 4096, quantized=known) for known in (False, True)]
    kernels = [Quantize("fp8", 4096, 4096, kind) for kind in ("scale", "cast")]
    found = predict_kernels([*products, *kernels], gpu, artifacts, "trtllm").latency_s
    assert found[0] - found[1] == pytest.approx(found[2] + found[3])
    assert found[2:] == pytest.approx([27.0e-6, 17.7e-6], rel=0.05)


def test_latent_decode_reads_one_vector_a_token() -> None:
    op = Attention("bf16", 2, 16, 1, 1, 100, 576, 512, True, 0, "bf16", "forward", True)
    assert op.bytes_read() == (2 * 16 * 576 + 2 * 100 * 576) * 2
    assert op.flops() == 2 * 2 * 16 * 100 * (576 + 512)


# ------------------------------------------------------------------------------------------------- with a fit


@pytest.fixture(scope="module")
def fitted() -> Any:
    """GEMMs on two boards: all in bf16, and with 4-bit weights on the A100, twice as far from their roofline."""
    pd = pytest.importorskip("pandas")
    pytest.importorskip("lightgbm")
    from predictor.kernels.fitting import serving as fit_serving
    from predictor.kernels.gemm.estimator import TensorCoreGemm

    rows = []
    for name, quant in (("a100-sxm-80gb", ""), ("a100-sxm-80gb", "int4_wo"), ("h100-sxm", "")):
        gpu = load_gpu(name)
        ops: list[Op] = [
            Gemm("bf16", m, n, k, quant=quant)
            for m, n, k in product((1, 16, 64, 512, 2048), (512, 1024, 4096, 8192), (512, 1024, 4096, 8192))
        ]
        for op, bound in zip(ops, roofline(ops, gpu).cold_s.tolist(), strict=True):
            latency = (bound / (0.35 if quant else 0.7) + 4e-6) * 1e3
            fields = {f: getattr(op, f) for f in ("m", "n", "k", "batch", "quant", "dtype")}
            rows.append({"gpu": name, "framework": "vllm", "op": "gemm", "latency_ms": latency} | fields)
    frame = pd.DataFrame(rows)
    return frame, TensorCoreGemm.from_artifact(
        *fit_serving.fit_gemm(frame, {n: load_gpu(n) for n in set(frame["gpu"])}, 0)
    )


def _seconds(estimator: Any, op: Op, gpu: str) -> float:
    spec = load_gpu(gpu)
    return max(float(roofline([op], spec).lower_bound_s[0]), *estimator.seconds(make_batch("gemm", [op], "vllm"), spec))


def test_a_scheme_has_constants_of_its_own(fitted: Any) -> None:
    frame, estimator = fitted
    for quant in ("", "int4_wo"):
        row = frame[(frame["gpu"] == "a100-sxm-80gb") & (frame["quant"] == quant) & (frame["m"] == 2048)].iloc[-1]
        op = Gemm("bf16", 2048, int(row["n"]), int(row["k"]), quant=quant)
        assert _seconds(estimator, op, "a100") * 1e3 == pytest.approx(row["latency_ms"], rel=0.1)


def test_every_scheme_is_answered_on_every_gpu_and_never_beats_its_roofline(fitted: Any) -> None:
    _, estimator = fitted
    for gpu, (dtype, quant) in product(
        ("a100", "h100", "b200", "rtx-pro-6000-server", "mi300x"),
        (
            ("bf16", "int8_wo"),
            ("bf16", "w4a16_mxfp4"),
            ("int8", "sq"),
            ("fp8", "fp8_block"),
            ("nvfp4", ""),
            ("mxfp8", ""),
        ),
    ):
        if load_gpu(gpu).supports(dtype):
            op = Gemm(dtype, 64, 4096, 4096, quant=quant)
            assert _seconds(estimator, op, gpu) > 1.01 * roofline([op], load_gpu(gpu)).lower_bound_s[0]  # not clipped


def test_every_word_is_accepted_somewhere() -> None:
    board = load_gpu("b200")
    assert {precision(name, board).name for name in SUPPORTED} == set(SUPPORTED)


@pytest.mark.parametrize("gpu", ["a100", "h100", "l4"])
def test_experts_in_eight_bits_are_between_one_and_two_times_those_in_four(gpu: str) -> None:
    """The same kernel (Marlin) and arithmetic, twice the bytes. No table has such experts; of A100's products the same
    ratio is 1.24 to 1.41 (medians) up to 32 rows, 0.95 to 0.97 from 512 on. Hopper's came out at 0.69: Marlin's
    constants on another kernel's core, at wgmma's rate."""
    estimator, board = load_artifacts().select("moe", "bf16"), load_gpu(gpu)
    assert estimator is not None
    for kernels, (hidden, width, experts, top_k) in product(
        ("vllm", "sglang"), ((4096, 14336, 8, 2), (7168, 2048, 256, 8))
    ):
        seconds = {}
        for quant in ("int4_wo", "int8_wo"):
            layers: list[Op] = [
                MoE("bf16", tokens, hidden, width, experts, top_k, quant=quant) for tokens in (1, 16, 256, 16384)
            ]
            seconds[quant] = estimator.seconds(make_batch("moe", layers, kernels), board)
        ratio = (seconds["int8_wo"] / seconds["int4_wo"]).tolist()
        assert all(0.95 <= one <= 2.1 for one in ratio), (kernels, ratio)
        assert ratio[1] > 1.3 and ratio[3] < 1.1, (kernels, ratio)


def test_constants_of_experts_are_of_the_kernel_that_runs() -> None:
    """SGLang's int4 experts are generated kernels on B200, its int8 ones Marlin's, which vLLM's rows of int4 tell."""
    estimator, board = load_artifacts().select("moe", "bf16"), load_gpu("b200")
    assert estimator is not None
    layers: list[Op] = [MoE("bf16", 16384, 4096, 14336, 8, 2, quant="int8_wo")]
    vllm, sglang = (float(estimator.seconds(make_batch("moe", layers, name), board)[0]) for name in ("vllm", "sglang"))
    assert sglang == pytest.approx(vllm, rel=0.05)


@pytest.mark.parametrize(
    ("bits", "group", "zero", "word", "each"),
    [
        (4, 128, False, "int4_wo", 4 + 16 / 128), (4, 0, False, "int4_wo_row", 4.0), (8, 0, False, "int8_wo", 8.0),
        (4, 32, True, "int4_wo_g32_zp", 4 + 20 / 32), (3, 128, False, "int3_wo", 3.125),
        (2, 64, True, "int2_wo_g64_zp", 2 + 18 / 64),
        (8, 128, False, "int8_wo_g128", 8.125),
    ],
)  # fmt: skip
def test_bits_of_integer_weights_by_hand(bits: int, group: int, zero: bool, word: str, each: float) -> None:
    assert integer_word(bits, group, zero) == word
    assert weight_bytes("bf16", word) * 8 == each
    assert activation_bytes("bf16", word) == 2.0 and stand_ins(word)[0] == word and len(stand_ins(word)) >= 3
