"""Launchers of serving libraries, end to end on the simulated board, against libraries strict about their arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import simulated_cuda  # noqa: E402
from simulated_cuda import Board  # noqa: E402
from simulated_cuda import libraries as fakes  # noqa: E402

from microbench import libraries, sweep  # noqa: E402
from microbench.capability import Target, cpu_target, gpu_target, held_bytes  # noqa: E402
from microbench.case import Case, op_cells  # noqa: E402
from microbench.launchers.base import IllegalCase  # noqa: E402
from microbench.launchers.serving import smaller  # noqa: E402
from microbench.measure import Measurer, WrongResult  # noqa: E402
from microbench.store import Store  # noqa: E402
from microbench.timing import Settings  # noqa: E402
from microbench.validate import row_problems  # noqa: E402
from predictor.data.dataset import ops_of  # noqa: E402
from predictor.data.importers import microbench as importer  # noqa: E402
from predictor.formats.quantization import SCHEMES  # noqa: E402
from predictor.hardware.gpu import load_gpu  # noqa: E402
from predictor.ops import OPERATORS, Attention, Gemm, Norm  # noqa: E402

EVERY = [f"{library.name}.{name}" for library in libraries.libraries().values() for name in library.kernels]
QUICK = Settings(case_s=0.0, min_samples=1, warm_up_s=0.0)


def target(gpu: str = "h100", there: tuple[str, ...] = tuple(libraries.libraries())) -> Target:
    return replace(gpu_target(load_gpu(gpu)), libraries=frozenset(there))


def cases(gpu: str) -> list[Case]:
    """The smallest case of every kernel and form that a board runs."""
    found: dict[tuple[Any, ...], Case] = {}
    for case in sweep.build(target(gpu), ("serving",)).cases:
        op = case.op
        form = (getattr(op, "q_len", 0) == 1, getattr(op, "q_len", 0) == getattr(op, "kv_len", 0),
                bool(getattr(op, "window", 0)), getattr(op, "residual", ""), getattr(op, "latent", ""))  # fmt: skip
        key = (case.option("kernel"), form)
        if key not in found or sweep._footprint(op) < sweep._footprint(found[key].op):
            found[key] = case
    return list(found.values())


@pytest.fixture
def installed() -> Iterator[simulated_cuda.Installed]:
    done = simulated_cuda.install(Board(l2_bytes=2**20))
    yield done
    done.remove()


def opened() -> Measurer:
    from microbench.devices import open_device

    return Measurer(open_device("cuda", 0), QUICK)


def test_every_kernel_runs_end_to_end_and_is_held_against_torch(
    installed: simulated_cuda.Installed, tmp_path: Path
) -> None:
    done: dict[str, dict[str, Any]] = {}
    measured: list[tuple[Case, dict[str, Any]]] = []
    with fakes.present(installed):
        measurer = opened()
        for gpu in ("h100", "b200"):
            for case in cases(gpu):
                if gpu == "b200" and str(case.option("kernel")) in done:
                    continue
                small = replace(case, op=smaller(case.op), protocol="eager_events", cache="warm")
                row = measurer.measure(small)
                assert row["checked"] in ("yes", "kernel") and not row_problems(row), (case, row)
                done[str(case.option("kernel"))] = row
                measured.append((small, row))
    assert set(done) == set(EVERY)
    for name, row in done.items():
        assert row["framework"] in ("vllm", "sglang") and row["library"].startswith(name.partition(".")[0])
        assert row["quant"] in ("", *SCHEMES) and row["framework_version"]
    assert done["flash_attn.fa3"]["kernel_source"] == "vllm_flash_attn_fa3"
    assert done["deep_gemm.fp8_block"]["quant"] == "fp8_block" and done["marlin.int4"]["quant"] == "int4_wo"
    imports(measured, tmp_path)


def imports(measured: list[tuple[Case, dict[str, Any]]], folder: Path) -> None:
    """What was measured becomes rows of the schema with their operators, kernels and libraries; what no operator says
    is counted and left out."""
    store = Store(folder, "h100-sxm", "simulated", {"run": "1"})
    store.open(1.0)
    for case, row in measured:
        store.add_row(case, row)
    store.finish({})
    store.close()
    result = importer.run(folder)
    known = [(case, row) for case, row in measured if row["op"] in OPERATORS]
    assert len(result.frame) == len(known) and len(known) > 20
    assert {op.family for op in ops_of(result.frame)} >= {"gemm", "attention", "norm", "moe", "quantize"}
    assert set(result.frame["framework"].astype(str)) == {"vllm", "sglang"}
    assert set(result.frame["quant"].astype(str)) >= {"fp8_block", "int4_wo"}


@pytest.mark.parametrize("name", EVERY)
def test_weights_and_caches_of_a_kernel_take_turns(installed: simulated_cuda.Installed, name: str) -> None:
    """Every kernel that a sweep rotates gives the same result with copies of what it holds."""
    planned = next((c for gpu in ("h100", "b200") for c in cases(gpu) if c.option("kernel") == name
                    and held_bytes(c.op)), None)  # fmt: skip
    if planned is None:
        return
    _, kernel = libraries.find(name)
    with fakes.present(installed):
        call = kernel.make(smaller(planned.op), opened().device)
        first = call.launch()
        assert call.held and all(isinstance(x, torch.Tensor) for x in call.held)
        second = call.launch(*(x.clone() for x in call.held))
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second)


@pytest.mark.parametrize("without", [(), ("vllm",)])
def test_scales_are_whole_powers_of_two_where_the_board_cuts_them(without: tuple[str, ...]) -> None:
    """From compute capability 10.0 on DeepGEMM holds the exponent of a scale alone."""
    for capability in ((9, 0), (10, 0)):
        done = simulated_cuda.install(Board(l2_bytes=2**20, capability=capability))
        try:
            with fakes.present(done, *without):
                for kernel, kind in (("fp8_block", "linear"), ("grouped_fp8_block", "grouped")):
                    op = Gemm("fp8", 128, 256, 512, batch=1 if kind == "linear" else 2, kind=kind, quant="fp8_block")
                    row = opened().measure(Case("serving", op, (("kernel", f"deep_gemm.{kernel}"),)))
                    assert row["checked"] == "yes", capability
        finally:
            done.remove()


def test_a_kernel_is_captured_and_replayed(installed: simulated_cuda.Installed) -> None:
    op = Attention("bf16", 2, 8, 2, 1, 100, 64)
    with fakes.present(installed) as called:
        row = opened().measure(Case("serving", op, (("kernel", "flashinfer.paged"),), "warm", "cuda_graph"))
    assert row["protocol"] == "cuda_graph" and row["checked"] == "yes"
    assert called.count("flashinfer.BatchDecodeWithPagedKVCacheWrapper") == 1  # planned once, and checked as it is


@pytest.mark.parametrize(
    ("kernel", "op", "call"),
    [
        ("vllm.fp8", Gemm("fp8", 16, 128, 128), "cutlass_scaled_mm"),
        ("sgl_kernel.norm", Norm("bf16", 4, 256, "rms"), "rmsnorm"),
        ("flash_mla.decode", Attention("bf16", 1, 16, 1, 1, 70, 576, 512, shared_kv=True), "flash_mla_with_kvcache"),
    ],
)
def test_a_wrong_result_is_never_timed(
    installed: simulated_cuda.Installed, monkeypatch: pytest.MonkeyPatch, kernel: str, op: Any, call: str
) -> None:
    right = fakes.CALLS[call]

    def wrong(given: Any) -> Any:
        out = right(given)
        tensor = out[0] if isinstance(out, tuple) else out
        tensor.view(-1)[: tensor.numel() // 2].mul_(1.5)  # a scale of half of it
        return out

    monkeypatch.setitem(fakes.CALLS, call, wrong)
    with fakes.present(installed), pytest.raises(WrongResult, match="off by"):
        opened().measure(Case("serving", op, (("kernel", kernel),)))


def test_a_release_that_takes_other_arguments_is_one_line(
    installed: simulated_cuda.Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = dict(fakes.SIGNATURES["vllm._custom_ops"], rms_norm="out, input, weight")
    monkeypatch.setitem(fakes.SIGNATURES, "vllm._custom_ops", told)
    case = Case("serving", Norm("bf16", 4, 256, "rms"), (("kernel", "vllm.norm"),))
    with fakes.present(installed), pytest.raises(IllegalCase, match=r"vllm unknown \(written for 0.33.0\): TypeError"):
        opened().measure(case)


def test_what_is_not_installed_is_left_out_with_one_reason() -> None:
    plan = sweep.build(target(there=("flashinfer",)), ("serving",))
    assert {str(case.option("kernel")).partition(".")[0] for case in plan.cases} == {"flashinfer"}
    reasons = [why for why in plan.left_out if "not installed" in why]
    assert len(reasons) == len(libraries.FILES) - 1 and "vllm is not installed: pip install vllm" in reasons
    assert not sweep.build(target(there=()), ("serving",)).cases
    assert not sweep.build(cpu_target(2, 2**34), ("serving",)).cases
    assert libraries.installed() == {} or "vllm" not in libraries.installed()


def test_boards_have_the_kernels_of_their_generation() -> None:
    names = {gpu: {str(case.option("kernel")) for case in cases(gpu)} for gpu in ("a100", "h100", "b200")}
    assert "vllm.fa2" in names["a100"] and not {"vllm.fa3", "vllm.fp8", "vllm.nvfp4"} & names["a100"]
    assert {"vllm.fa3", "flash_attn.fa3", "flash_mla.decode", "deep_gemm.fp8_block"} <= names["h100"]
    assert {"vllm.nvfp4", "flashinfer.nvfp4", "vllm.fa4"} <= names["b200"] - names["h100"]


def test_a_small_shape_is_of_the_same_form() -> None:
    decode = smaller(Attention("bf16", 64, 64, 8, 1, 30000, 128, window=1024))
    assert decode == Attention("bf16", 2, 64, 8, 1, 160, 128, window=8)
    prefill = smaller(Attention("bf16", 4, 8, 8, 4096, 4096, 128))
    assert prefill.q_len == prefill.kv_len == 160
    assert smaller(Gemm("fp8", 4096, 8192, 8192, quant="fp8_block")).k % 128 == 0
    assert op_cells(smaller(Norm("bf16", 1, 64, "rms"))) == op_cells(Norm("bf16", 1, 64, "rms"))
