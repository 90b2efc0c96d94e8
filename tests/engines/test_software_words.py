"""What a person is told of `--software`, of a host that holds the GPU up, and of sources that disagree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import predictor
from predictor import engines
from predictor.cli.main import main
from predictor.engines.software import remark
from predictor.errors import RequestError
from predictor.report.compare import bound_by
from predictor.report.terminal import first_line
from predictor.report.wording import execution_words, overhead


def step(**words: Any) -> predictor.Prediction:
    asked = {"mode": "decode", "context_len": 1000, "artifacts": "roofline"} | words
    return predictor.predict("gpt2-large", "h100", **asked)


@pytest.mark.parametrize(
    ("execution", "software", "said"),
    [
        ("vllm", "", ""), ("vllm", "vllm", ""), ("vllm", "0.24.3", ""), ("vllm", "vllm 0.6.1", ""),
        ("vllm", "2023", ""),
        ("vllm", "vllm 0.30", "modelled as 0.24, the newest release of vllm that Tilecast knows"),
        ("vllm", "1.0", "modelled as 0.24, the newest release of vllm that Tilecast knows"),
        ("vllm", "vllm 2099", "modelled as 0.24, the newest release of vllm that Tilecast knows"),
        ("vllm", "vllm 0.1", "modelled as 0.2, the oldest release of vllm that Tilecast knows"),
        ("vllm", "2020", "modelled as 0.2, the oldest release of vllm that Tilecast knows"),
        ("eager", "0.24", "modelled as 1.13, the oldest release of eager that Tilecast knows"),
        ("cuda_graph", "2023", "Tilecast models one release of"),
        ("eager", "sglang 2020", "the oldest release of sglang"),
    ],
)  # fmt: skip
def test_a_release_that_nobody_listed_is_said(execution: str, software: str, said: str) -> None:
    found = remark(execution, software)
    assert (said in found and software in found) if said else not found
    notes = step(execution=execution, software=software).notes
    assert (found in notes) if found else not any("--software" in note for note in notes)


#: What tools and tags of containers call releases -> the version that it stands for. All were refused until 2026-11.
SPELLED = {
    "vllm v0.15.1": "0.15.1", "v0.15.1": "0.15.1", "V0.15.1": "0.15.1", "vllm 0.11.0.dev17+g1a2b3c": "0.11",
    "sglang 0.5.8.post1": "0.5.8", "sglang v0.5.9-cu130": "0.5.9", "sglang v0.5.5.post3-rocm700-mi30x": "0.5.5",
    "tensorrt_llm 1.2.0rc6.post2": "1.2", "tensorrt_llm 1.2.0rc6": "1.2", "tensorrt_llm 1.1.0rc2.post2": "1.1",
    "pytorch 2.8.0a0+34c6371d24.nv25.08": "2.8", "pytorch 2.7.1+cu128": "2.7.1",
}  # fmt: skip


def test_releases_as_tools_spell_them() -> None:
    for software, version in SPELLED.items():
        name = software.split()[0] if " " in software else "vllm"
        plain = engines.running("eager", f"{name} {version}")
        assert engines.running("eager" if " " in software else "vllm", software) is plain, software


def test_a_nightly_build_is_the_newest_release_of_its_date() -> None:
    """Without a date, or with one behind the newest that is listed, it is that one, and the answer says so."""
    newest = "modelled as 0.24, the newest release of vllm that Tilecast knows"
    for software in ("nightly", "vllm nightly", "vllm latest", "vllm nightly-20991231", "vllm nightly-1a2b3c4d"):
        assert engines.running("vllm", software) is engines.engine("vllm"), software
        assert newest in remark("vllm", software), software
    for software in ("vllm nightly-20241120", "vllm nightly_main_20241120", "vllm nightly-2024-11-20", "vllm 2024-11"):
        running = engines.running("vllm", software)
        assert running is not engines.engine("vllm") and not remark("vllm", software), software
        vintage = running.vintage()
        assert vintage is not None and vintage.since <= "2024-11", software
    assert "as of nightly (release 0.24)" in execution_words(step(execution="vllm", software="nightly").workload)


@pytest.mark.parametrize("software", ["vllm 0.2x", "vllm v", "vllm 1..2", "vllm nightlyish", "vllm 9" + "9" * 5000])
def test_what_is_no_release_is_refused_in_one_line(software: str) -> None:
    with pytest.raises(RequestError, match="expected") as caught:
        engines.running("vllm", software)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("software", ["vllm 99", "99.1", "vllm 1999"])
def test_a_version_that_cannot_be_is_refused(software: str) -> None:
    with pytest.raises(RequestError, match=r"expected a release of vllm such as 0\.24, .* or a year") as caught:
        engines.running("vllm", software)
    assert software in str(caught.value)


def test_a_slip_names_the_nearest_engine() -> None:
    with pytest.raises(RequestError, match="nearest: sglang"):
        engines.running("vllm", "sglng 0.4")


def test_the_first_line_says_which_release_answers() -> None:
    assert "execution vllm as of 2023 (release 0.2)" in first_line(step(execution="vllm", software="vllm 2023"))
    words = [
        execution_words(step(execution="vllm", software=said).workload) for said in ("", "vLLM", "vllm 0.6", "0.6.4")
    ]
    assert words == ["vllm", "vllm", "vllm as of 0.6", "vllm as of 0.6.4 (release 0.6)"]


def test_an_assumed_overhead_has_three_digits_and_a_given_one_its_own() -> None:
    early = {"execution": "vllm", "software": "2023"}
    assert overhead(step(**early).workload) == "11.4 us"
    assert overhead(step(**early, launch_overhead="6.12345us").workload) == "6.12345 us"


def test_what_holds_the_gpu_up() -> None:
    """Launches, steps of an engine's host, or nothing: a gap between kernels is no host's."""
    launched, waiting = step(execution="eager"), step(execution="vllm", software="0.6")
    assert (bound_by(launched), bound_by(waiting)) == ("CPU launches", "CPU steps")
    assert waiting.host_s == pytest.approx(4e-3, rel=1e-3)
    gaps = step(execution="cuda_graph", kernel_gap="500us")
    assert gaps.between_kernels_s > gaps.gpu_busy_s and not gaps.launch_bound and gaps.host_s == 0.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"execution": "eager"}, "only engines that sample tokens take it, .* expected --execution .*vllm"),
        ({"execution": "cuda_graph"}, "only engines that sample tokens take it, .* expected --execution .*vllm"),
        ({"mode": "forward"}, "only --mode prefill, decode and generate take it"),
    ],
)
def test_tokens_are_chosen_by_engines_alone(words: dict[str, str], said: str) -> None:
    asked = {"execution": "vllm", "context_len": None} | words
    with pytest.raises(RequestError, match=f"--sampling top-p: {said}"):
        step(sampling="top-p", **asked)
    step(sampling="greedy", **asked)


def test_sources_that_disagree_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "h20"]) == 0
    shown = capsys.readouterr().out
    assert "Other sources say:" in shown and "power_limit" in shown.split("Other sources say:")[1]
    assert main(["gpus", "h20", "--json"]) == 0
    others = json.loads(capsys.readouterr().out)["others"]
    assert others["power_limit"][0]["value"] == "400 W" and "peak_flops.vector.fp32" in others


def test_a_gap_that_was_given_is_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", "--model", "gpt2", "--gpu", "h100", "--json", "--artifacts", "roofline", "--execution", "vllm"]
    found = []
    for more in ([], ["--kernel-gap", "2us"]):
        assert main([*asked, *more]) == 0
        found.append(json.loads(capsys.readouterr().out)["kernel_gap_us"])
    assert found == [None, pytest.approx(2.0)]


@pytest.mark.parametrize("execution", ["vllm", "sglang", "tensorrt_llm", "fastertransformer"])
def test_engines_that_serve_do_not_train(execution: str) -> None:
    with pytest.raises(RequestError, match=f"{execution}: does not train; expected one of eager, compile"):
        step(mode="train", context_len=None, execution=execution)


def test_the_page_says_which_release_answers(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["predict", "--model", "gpt2", "--gpu", "h100", "--mode", "decode", "--artifacts", "roofline"]
    assert main([*words, "--execution", "vllm", "--software", "vllm 2023", "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "software vllm 2023 (release 0.2)" in text and "launch-overhead 11.4 us (assumed)" in text
    assert '>--software</span> <span class="word">&#39;vllm 2023&#39;<' in text, "as it is typed"
