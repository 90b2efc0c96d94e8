"""`tilecast compare`: every pair has its row, in order, with its reason where it cannot run, and what it costs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

import predictor
from predictor.cli.main import main
from predictor.hardware.gpu import list_gpus, load_gpu
from predictor.report.compare import Entry, draw, print_comparison, ranked

ROOT = Path(__file__).resolve().parents[2]
LLAMA = ["compare", "--model", "llama-3.1-8b"]


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main([*words, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return found


def table(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(list(words)) == 0
    return capsys.readouterr().out.splitlines()


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_rows_are_the_forecasts_of_predict_and_the_fastest_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--mode", "decode", "--batch", "16", "--context-len", "700", "--execution", "vllm"]
    found = rows(capsys, *LLAMA, "--gpu", "l4,h200,a100", *words)
    assert [row["gpu"] for row in found] == ["h200-sxm", "a100-sxm-80gb", "l4"]
    for row in found:
        assert main(["predict", "--model", "llama-3.1-8b", "--gpu", row["gpu"], *words, "--json"]) == 0
        assert row["forecast"] == json.loads(capsys.readouterr().out)
        assert row["reason"] is None
    assert found[0]["p_first_faster"] is None
    assert 0.5 < found[1]["p_first_faster"] < found[2]["p_first_faster"] <= 1.0
    lines = table(capsys, *LLAMA, "--gpu", "l4,h200,a100", *words)
    (line,) = [line for line in lines if line.startswith("How likely h200-sxm is faster: than a100-sxm-80gb ")]
    assert ", l4 " in line and line.endswith(" %.")


def test_many_models_on_one_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "compare", "--model", "gpt2-xl,gpt2,gpt2-large", "--gpu", "v100", "--batch", "8")
    assert [row["model"] for row in found] == ["gpt2", "gpt2-large", "gpt2-xl"]
    lines = table(capsys, "compare", "--model", "gpt2-xl,gpt2", "--gpu", "v100")
    assert lines[0].startswith("2 models on v100-sxm-32gb: mode forward, batch 1")
    assert [line.split()[0] for line in lines[1:4]] == ["model", "gpt2", "gpt2-xl"]


def test_what_cannot_run_keeps_its_row_and_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*LLAMA, "--gpu", "v100,a10,p4,h100", "--dtype", "bf16", "--batch", "64", "--mode", "decode"]
    found = rows(capsys, *words)
    assert [row["gpu"] for row in found] == ["h100-sxm", "a10", "v100-sxm-32gb", "p4"]
    assert "does not fit" in found[1]["reason"]
    assert found[1]["forecast"]["fits"] is False
    for row in found[2:]:
        assert row["forecast"] is None
        assert "bf16" in row["reason"]
    lines = table(capsys, *words)
    assert sum("cannot run" in line for line in lines) == 2
    assert any(line.startswith("a10: does not fit, ") for line in lines)
    assert any(line.startswith("p4: dtype 'bf16'") for line in lines)


def test_nothing_to_show_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    line = fails(capsys, *LLAMA, "--gpu", "v100,t4,a100", "--dtype", "fp8")
    assert line.startswith("error: none of 3 can be forecast: v100-sxm-32gb: dtype 'fp8'")
    assert "t4: " in line
    assert fails(capsys, *LLAMA, "--gpu", "v100,t4", "--batch", "0").startswith("error: --batch 0")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", "h100,h10"], "nearest: h100"),
        (["--gpu", "h100,,a100"], "one comma"),
        (["--gpu", "h100,a100,h100"], "h100 is named twice"),
        (["--gpu", "h100", "--model", "gpt2,gpt33"], "gpt3"),
        (["--gpu", "h100,a100", "--model", "gpt2,gpt3"], "2 models on 2 GPUs"),
        (["--gpu", "h100", "--out", "picture.png"], "a file that ends in .svg"),
        (["--gpu", "h100", "--out", "/dev/null/a.svg"], "cannot be written"),
        (["--gpu", "h100", "--price", "h100"], "cannot read"),
        (["--gpu", "h100", "--price", "h100="], "'h100='"),
        (["--gpu", "h100", "--price", "h100=two"], "'two'"),
        (["--gpu", "h100", "--price", "h100=-1"], "'-1'"),
        (["--gpu", "h100", "--price", "h100=0"], "above 0"),
        (["--gpu", "h100", "--price", "h100=nan"], "'nan'"),
        (["--gpu", "h100", "--price", "h100=inf"], "'inf'"),
        (["--gpu", "h100", "--price", "h100=1e300"], "1e300"),
        (["--gpu", "h100", "--price", "h10=2"], "nearest: h100"),
        (["--gpu", "h100", "--price", "h100=2,h100-sxm=3"], "two prices"),
        (["--gpu", "h100", "--price", "a100=2"], "no price of a GPU that is compared"),
        (["--gpu", "h100", "--top", "3"], "--top"),
    ],
)
def test_wrong_requests_end_in_one_line(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    model = [] if "--model" in words else ["--model", "gpt2"]
    assert said in fails(capsys, "compare", *model, *words)


@pytest.mark.parametrize(
    ("text", "said"),
    [("h100: [1]", "'[1]'"), ("h100: true", "'True'"), ("- 1", "no prices"), ("", "no prices"), ("a: [", "broken")],
)
def test_a_bad_price_file_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    line = fails(capsys, "compare", "--model", "gpt2", "--gpu", "h100", "--price", str(path))
    assert said in line
    assert "prices.yaml" in line


def test_cost_by_hand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """3.6 dollars an hour are 0.1 cents a second: a million tokens cost 1000 dollars over the tokens a second."""
    (found,) = rows(capsys, "compare", "--model", "gpt2", "--gpu", "h100", "--price", "h100=3.6")
    assert found["cost_usd_per_million_tokens"] == pytest.approx(1e3 / found["forecast"]["tokens_per_s"])
    assert found["cost_usd_per_1000_steps"] is None
    prices = tmp_path / "prices.yaml"
    prices.write_text("h100: 3.6\nl4: 0.8\n", encoding="utf-8")
    words = ["--price", str(prices), "--mode", "train", "--dtype", "fp32", "--batch", "2"]
    first, second = rows(capsys, "compare", "--model", "gpt2", "--gpu", "h100,a100", *words)
    assert first["cost_usd_per_1000_steps"] == pytest.approx(first["forecast"]["latency_ms"] * 1e-3)
    assert (second["price_usd_per_gpu_hour"], second["cost_usd_per_1000_steps"]) == (None, None)


def test_cost_counts_every_gpu_of_a_run_and_none_that_it_does_not_fit_on() -> None:
    words: dict[str, Any] = {"mode": "decode", "batch": 8, "execution": "vllm"}
    one, two = (predictor.predict("llama-3.1-8b", "h100", tp=tp, **words) for tp in (1, 2))
    costs = [Entry("m", "g", answer, price=2.0).cost_per_million_tokens for answer in (one, two)]
    assert costs[0] is not None and costs[1] is not None
    assert costs[1] / costs[0] == pytest.approx(2.0 * two.latency_s / one.latency_s)
    too_small = predictor.predict("llama-3.1-70b", "h100", **words)
    assert not too_small.memory.fits
    assert Entry("m", "g", too_small, price=2.0).cost_per_million_tokens is None


def test_a_gpu_of_a_file_has_its_own_price(capsys: pytest.CaptureFixture[str]) -> None:
    mine = str(ROOT / "examples" / "hypothetical-gpu.yaml")
    name = load_gpu(mine).id
    found = rows(capsys, *LLAMA, "--gpu", f"{mine},h100", "--price", f"{name}=5,h100=2")
    assert {row["gpu"]: row["price_usd_per_gpu_hour"] for row in found} == {name: 5.0, "h100-sxm": 2.0}


def test_all_is_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "compare", "--model", "gpt2", "--gpu", "all")
    assert sorted(row["gpu"] for row in found) == sorted(list_gpus())
    times = [row["forecast"]["latency_ms"] for row in found if row["reason"] is None]
    assert times == sorted(times)


# ------------------------------------------------------------------------------------------------------- the picture


def entries() -> list[Entry]:
    """One with a wide interval, one without, one that does not fit, one without a forecast."""
    answer = predictor.predict("gpt2", "h100")
    wide = replace(answer, latency_s=0.1, interval_s=(0.05, 0.4))
    full = replace(answer, latency_s=0.01, interval_s=None, memory=replace(answer.memory, capacity=1.0))
    return ranked([
        Entry("gpt2", "none", None, "no such dtype"), Entry("gpt2", "full", full), Entry("gpt2", "wide", wide),
        Entry("gpt2", "plain", replace(answer, latency_s=0.08, interval_s=None)),
    ])  # fmt: skip


def test_the_order_is_fits_then_too_large_then_impossible() -> None:
    assert [entry.gpu for entry in entries()] == ["plain", "wide", "full", "none"]


def test_the_table_has_intervals() -> None:
    text = io.StringIO()
    print_comparison(entries(), Console(width=200, file=text))
    (line,) = [line for line in text.getvalue().splitlines() if line.startswith("wide")]
    assert "50.0 - 400 ms" in line


def drawn(rows: list[Entry], path: Path) -> ElementTree.Element:
    draw(rows, path)
    return ElementTree.parse(path).getroot()


def of_class(picture: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [each for each in picture.iter() if name in (each.get("class") or "").split()]


def test_the_picture_has_a_bar_for_each_forecast_and_whiskers_for_each_interval(tmp_path: Path) -> None:
    picture = drawn(entries(), tmp_path / "a.svg")
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    bars = of_class(picture, "bar")
    widths = [float(bar.get("width", "")) for bar in bars]
    assert widths[0] / widths[1] == pytest.approx(0.8, rel=1e-3) and widths[2] / widths[1] == pytest.approx(
        0.1, rel=0.01
    )
    assert widths[3] < 1.0, "what has no forecast has its place and no bar"
    assert [(bar.get("class") or "").split()[1] for bar in bars] == ["f0", "f0", "f5", "f5"]
    line, *ends = of_class(picture, "whisker")
    low, high = (float(line.get(end, "")) for end in ("x1", "x2"))
    left = float(bars[0].get("x", ""))
    assert (high - left) / (low - left) == pytest.approx(8.0, rel=1e-3) and len(ends) == 2
    assert high <= float(picture.get("viewBox", "").split()[2])
    labels = [mark.get("aria-label", "") for mark in of_class(picture, "mark")]
    assert [label.partition(":")[0] for label in labels] == ["plain", "wide", "full", "none"]
    assert "(50.0 - 400 ms)" in labels[1] and "does not fit" in labels[2] and "cannot run" in labels[3]


def test_the_picture_has_the_costs_where_there_are_prices(tmp_path: Path) -> None:
    priced = [replace(entry, price=3.6) for entry in entries()]
    labels = [mark.get("aria-label", "") for mark in of_class(drawn(priced, tmp_path / "a.svg"), "mark")]
    for entry, label in zip(priced, labels, strict=True):
        cost = entry.cost_per_million_tokens
        assert (cost is None) == ("$" not in label), label
        if cost is not None:
            assert float(label.rpartition("$")[2].removesuffix("/M tokens").replace(",", "")) == pytest.approx(
                cost, rel=0.01
            )


def test_a_picture_from_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "gpus.svg"
    words = ["compare", "--model", "gpt2", "--gpu", "h100,v100", "--out", str(out)]
    assert table(capsys, *words)[-1] == f"written: {out}"
    assert table(capsys, *words)[-1] == f"written: {out}", "a picture of Tilecast is replaced"
    assert b"gpt2 on each of 2 GPUs" in out.read_bytes()
    (tmp_path / "folder.svg").mkdir()
    assert "not a plain file" in fails(
        capsys, "compare", "--model", "gpt2", "--gpu", "h100", "--out", str(tmp_path / "folder.svg")
    )


def test_a_terminal_loads_nothing_that_draws() -> None:
    code = (
        "import sys; from predictor.cli.main import main;"
        " main(['predict', '--model', 'gpt2', '--gpu', 'h100']);"
        " main(['compare', '--model', 'gpt2', '--gpu', 'h100,v100']);"
        " sys.exit(bool({'jinja2', 'markupsafe', 'matplotlib'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
