"""`predict --explain`: the terms are those that the forecast is made of, to the last bit of rounding."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import predictor
from predictor.cli.main import main
from predictor.forecast.forecast import forecast
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import default_artifacts
from predictor.kernels.device import Device
from predictor.kernels.gemm.core import Constants, Shapes, Tiles, core_time, loops
from predictor.kernels.gemm.explain import chosen
from predictor.request.request import Request
from predictor.simulate.breakdown import explained, names_of

pytestmark = pytest.mark.skipif(
    not (default_artifacts() / "manifest.json").is_file(), reason="no shipped estimators in this checkout"
)
RUN = {"model": "llama-3.1-8b", "gpu": "h100", "mode": "prefill", "seq_len": 300, "execution": "vllm"}
KNOWN = Constants(0.8, 0.75, 2e10, 9e3, 10.0, 170.0, 0.13, 3e3, 1024.0, 3e3, 1e3, 1.0)


def values(of: Any) -> dict[tuple[str, str], Any]:
    return {(term.group, term.name): term.value for term in of.terms}


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_terms_make_the_forecast(dtype: str) -> None:
    answer = predictor.predict(**RUN, dtype=dtype, explain="mlp gate_up", top=20)  # type: ignore[arg-type]
    of = answer.explained
    assert of is not None
    node = next(node for node in answer.nodes if node.name == "mlp gate_up")
    assert of.latency_s * of.count == pytest.approx(node.latency_s, rel=1e-12)
    assert (of.shape, of.share) == (node.shape, pytest.approx(node.share, rel=1e-12))
    v = values(of)
    said = [term.name for term in of.terms if term.group == "constants"]
    quantizes = [name for name in Constants.names() if name.startswith("quantize")]
    assert said == [name for name in Constants.names() if dtype == "fp8" or name not in quantizes]
    assert v["tile grid", "waves"] == pytest.approx(v["tile grid", "blocks"] / 132)
    assert v["one tile", "tile latency"] == pytest.approx(
        v["one tile", "step"] * (v["one tile", "steps"] + v["one tile", "prologue"])
    )
    compute, memory = v["core", "compute"], v["core", "memory"]
    if v["tile grid", "splits of K"] == 1:
        assert compute == pytest.approx(v["tile grid", "waves that run"] * v["one tile", "tile latency"])
    assert v["core", "joined"] == pytest.approx((compute**3 + memory**3) ** (1 / 3))
    parts = v["core", "joined"] + v["core", "overhead"] + v.get(("core", "quantizing"), 0.0)
    assert v["core", "core"] == pytest.approx(parts)
    assert v["residual", "kernel"] == pytest.approx(v["core", "core"] * v["residual", "factor"])
    assert of.latency_s == pytest.approx(max(v["residual", "kernel"], v["roofline", "lower bound"]))
    assert 0.0 <= v["padding", "m"] < 1.0 and v["padding", "n"] == 0.0
    assert "rows of h100-sxm" in of.rests_on


def test_core_constants_and_rows_are_of_the_library_that_answers() -> None:
    """An engine that tunes its products takes the fastest of several libraries' kernels: another one's than its own."""
    run = {**RUN, "gpu": "b200", "mode": "decode", "batch": 8, "seq_len": 1024}

    def of(execution: str) -> Any:
        given = {**run, "execution": execution, "dtype": "nvfp4", "explain": "mlp down"}
        return predictor.predict(**given).explained  # type: ignore[arg-type]

    tuned = of("tensorrt_llm")
    v = values(tuned)
    assert v["residual", "library"] == "sglang"
    by_itself = of("sglang")
    assert [t for t in tuned.terms if t.group == "constants"] == [t for t in by_itself.terms if t.group == "constants"]
    assert v["core", "core"] == values(by_itself)["core", "core"]
    assert tuned.rests_on == by_itself.rests_on
    assert ("residual", "library") not in values(by_itself)


def test_the_tile_that_is_named_is_the_one_that_the_core_takes() -> None:
    rng, constants = np.random.default_rng(0), KNOWN
    for name in ("h100-sxm", "l4", "a100-sxm-80gb"):
        device = Device.of(load_gpu(name), "bf16")
        for m, n, k in np.exp2(rng.uniform(2, 14, (40, 3))).round():
            one = np.ones(1)
            shapes = Shapes(one, m * one, n * one, k * one, 2.0, 2.0)
            found = chosen(shapes, device, constants)
            assert found.compute_s == core_time(shapes, device, constants).compute[0]
            split_s = constants.split_cycles / device.clock_hz * np.log2(found.tiled.splits)
            assert found.compute_s == pytest.approx(found.tiled.whole_waves * found.tile_s + split_s, rel=1e-12)
            assert found.tiled.blocks == found.tiled.splits * np.ceil(m / found.tiled.tile_m) * np.ceil(
                n / found.tiled.tile_n
            )
            # the same product of a kernel that is known to have that tile, in turns as deep as the core's
            tile = Tiles(found.tiled.tile_m * one, found.tiled.tile_n * one, 64.0 * one)
            known = Shapes(one, m * one, n * one, k * one, 2.0, 2.0, tiles=tile)
            alone = loops(known, device, constants).times(known.k)[0, 0]
            assert alone >= found.compute_s * (1 - 1e-12) if found.tiled.splits == 1 else True
            if found.tiled.splits == 1 and found.tiled.tile_m * found.tiled.tile_n >= 2048:
                assert alone == pytest.approx(found.compute_s, rel=1e-12)


def test_what_the_trees_of_experts_and_attention_say() -> None:
    """A layer of experts keeps its curves; without its trees it has others."""
    found = forecast(Request("mixtral-8x7b", "h100", mode="prefill", seq_len=512, execution="vllm").run())
    for name, estimator in (("experts", "moe"), ("attention core", "attention")):
        of = explained(found.stages, name)
        assert of.estimator == estimator
        v = values(of)
        assert v["residual", "factor"] != 1.0
        assert v["residual", "core"] * v["residual", "factor"] == pytest.approx(v["residual", "kernel"])
        assert len([key for key in v if key[0] == "constants"]) > 3
        assert "h100-sxm" in of.rests_on


@pytest.mark.parametrize(
    "words",
    [
        {"model": "gpt2", "gpu": "v100", "dtype": "fp32", "mode": "train"},
        {"model": "mixtral-8x7b", "gpu": "h200", "mode": "decode", "batch": 8, "execution": "vllm", "tp": 2},
        {"model": "llama-3.1-8b", "gpu": "rtx-4090", "mode": "generate", "seq_len": 64, "output_len": 9},
        {"model": "gpt2", "gpu": "h100", "artifacts": "roofline"},
    ],
)
def test_every_operator_of_a_run_is_explained(words: dict[str, Any]) -> None:
    found = forecast(Request(**words).run())
    names = names_of(found.stages)
    assert len(names) > 5
    for name in names:
        of = explained(found.stages, name)
        assert of.latency_s > 0 and 0 < of.share <= 1 and of.bound
        assert {term.group for term in of.terms} >= {"roofline"}
        assert all(isinstance(term.value, str) or np.isfinite(term.value) for term in of.terms)
        assert bool(of.estimator) == (of.source == "estimator")


def test_text_json_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "--model", "gpt2", "--gpu", "h100", "--explain", "MLP up"]
    assert main(words) == 0
    text = capsys.readouterr().out
    for said in ("mlp up (linear, 1024 x 3072 x 768 bf16, forward)", "tile latency", "waves that run", "rests on"):
        assert said in text
    page = tmp_path / "page.html"
    assert main([*words, "--json", "--html", str(page)]) == 0
    answer = json.loads(capsys.readouterr().out)["explain"]
    assert answer["name"] == "mlp up"
    assert {term["group"] for term in answer["terms"]} >= {"tile grid", "one tile", "core", "residual", "constants"}
    html = page.read_text(encoding="utf-8")
    assert "Why mlp up takes that long" in html and html.count('href="#explain"') == 1
    assert main([*words[:-2], "--json"]) == 0
    assert "explain" not in json.loads(capsys.readouterr().out)


def test_the_example_of_the_page_has_the_terms_that_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures move with the estimators; the terms, their order and what they are made of stand as the code has them."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "explanation" / "tiles.md").read_text(encoding="utf-8")
    command, block = re.findall(r"^```(?:sh|text)\n(.*?)^```", page, re.M | re.S)[:2]
    monkeypatch.setenv("COLUMNS", "110")
    assert main(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    labels = [line[:28].rstrip() for line in block.splitlines()[1:-3] if line[:28].strip()]
    assert len(labels) > 40
    assert [line[:28].rstrip() for line in printed.splitlines() if line[:28].rstrip() in labels] == labels
    shown = {
        cells[0]: cells[1] for line in block.splitlines() if len(cells := re.split(r" {2,}", line[11:].strip())) > 1
    }
    step, steps, prologue, tile = (shown[name] for name in ("step", "steps", "prologue", "tile latency"))
    by_hand = float(step.split()[0]) * (float(steps) + float(prologue)) / 1e3  # ns -> us
    assert float(tile.split()[0]) == pytest.approx(by_hand, rel=0.01)


def test_an_unknown_operator_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--model", "gpt2", "--gpu", "h100", "--explain", "mlp upp"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "nearest: mlp up" in said
