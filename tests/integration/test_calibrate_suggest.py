"""`tilecast calibrate --suggest`: the cases to measure next, from what a set's intervals leave open."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas", reason='pandas is not installed: pip install "tilecast[train]"')
pytest.importorskip("scipy", reason='SciPy is not installed: pip install "tilecast[train]"')

sys.path.insert(0, str(Path(__file__).parent))
from microbench_runs import microbench, with_ceilings

from microbench import calibration
from microbench.capability import gpu_target, refusal
from microbench.case import Case
from predictor.cli.main import main
from predictor.errors import RequestError
from predictor.fit.suggest import POOL, Candidate, choose, pool
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import ArtifactSet, default_artifacts, load_artifacts
from predictor.ops import Attention, Gemm

shipped = pytest.mark.skipif(
    not (default_artifacts() / "fp32-gemm" / "intervals.json").is_file(),
    reason="no shipped estimators in this checkout",
)


def of_class(name: str, width: float, count: int = 40, estimator: str = "one") -> list[Candidate]:
    """Linear layers of growing sizes whose intervals are all as wide."""
    kind = (estimator, name, "fp32")
    ops = [Gemm("fp32", 2 ** (4 + i % 9), 2 ** (5 + i // 9), 64 + i) for i in range(count)]
    return [Candidate(op, "eager_events", kind, width) for op in ops]


def kinds(candidates: list[Candidate], count: int, **fewest: int) -> Counter[str]:
    return Counter(one.case.kind[1] for one in choose(candidates, count, {"one": 1, **fewest}).cases)


def test_a_class_with_a_narrow_interval_gets_fewer_cases() -> None:
    found = kinds(of_class("wide", 0.6) + of_class("narrow", 0.15), 24)
    assert found.total() == 24 and found["wide"] > 1.5 * found["narrow"] > 0
    equal = kinds(of_class("wide", 0.3) + of_class("narrow", 0.3), 24)
    assert equal["wide"] == equal["narrow"] == 12
    assert kinds(of_class("wide", 0.6) + of_class("known", 1e-9), 24)["known"] == 0


def test_every_case_narrows_its_class_and_the_first_are_worth_most() -> None:
    candidates = of_class("a", 0.5) + of_class("b", 0.3)
    found = choose(candidates, 30, {"one": 1}).cases
    last: dict[str, float] = {"a": 0.5, "b": 0.3}
    for one in found:
        assert one.before == pytest.approx(last[one.case.kind[1]]) and 0.0 < one.after < one.before
        last[one.case.kind[1]] = one.after
    assert found[0].before - found[0].after > 3.0 * (found[-1].before - found[-1].after)
    assert len({one.case for one in found}) == 30
    assert choose(candidates, 12, {"one": 1}).cases == found[:12]


def test_an_estimator_that_would_learn_nothing_gets_none() -> None:
    candidates = of_class("a", 0.5) + of_class("b", 0.2, estimator="two")
    many = Counter(one.case.kind[0] for one in choose(candidates, 20, {"one": 1, "two": 1}).cases)
    assert 0 < many["two"] < 16
    design = choose(candidates, 20, {"one": 1, "two": 16})
    assert {one.case.kind[0] for one in design.cases} == {"one"} and len(design.cases) == 20
    assert design.left_out == {"two": many["two"]}
    with pytest.raises(RequestError, match="at most 40"):
        choose(of_class("a", 0.5), 41, {"one": 1})


@shipped
@pytest.mark.parametrize("gpu", ["p4", "t4", "a100", "l40s", "h100", "b200"])
def test_the_pool_is_what_the_harness_runs_on_that_gpu(gpu: str) -> None:
    source = load_artifacts(None)
    assert isinstance(source, ArtifactSet)
    spec = load_gpu(gpu)
    found = pool(spec, source)
    target = gpu_target(spec)
    assert max(Counter(one.kind for one in found).values()) <= POOL
    for one in found:
        case = Case.from_json(one.to_json())
        assert case.op == one.op and not refusal(case, target)
        if isinstance(case.op, Attention):
            assert case.option("impl") == ("cudnn" if gpu in ("h100", "b200") else "flash")
    dtypes = {one.op.dtype for one in found}
    assert dtypes == {"p4": {"fp32"}, "t4": {"fp32"}, "a100": {"fp32", "bf16"}}.get(gpu, {"fp32", "bf16", "fp8"})


@shipped
def test_the_file_is_read_by_the_harness_and_is_the_same_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["calibrate", "--gpu", "t4", "--suggest", "24", "--out"]
    assert main([*words, str(tmp_path / "a.json")]) == 0
    text = capsys.readouterr().out
    assert main([*words, str(tmp_path / "b.json"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    cases = calibration.read(tmp_path / "a.json")
    assert len(cases) == 24 == len(document["cases"]) == text.count(" becomes ")
    assert calibration.runnable(cases, gpu_target(load_gpu("t4"))) == cases
    for entry in document["cases"]:
        assert entry["class_after_pct"] < entry["class_before_pct"]
    assert [Case.from_json(entry["case"]) for entry in document["cases"]] == cases


@shipped
def test_suggested_cases_are_collected(tmp_path: Path) -> None:
    """On this processor, those that are small enough for it."""
    file = tmp_path / "cases.json"
    assert main(["calibrate", "--gpu", "t4", "--suggest", "40", "--out", str(file)]) == 0
    document = json.loads(file.read_text())
    small = [one for one in document["cases"] if Case.from_json(one).op.bytes_moved() < 2e6]
    by_launcher = {one["launcher"]: one for one in small}
    assert {"gemm", "elementwise"} <= set(by_launcher)
    file.write_text(json.dumps({**document, "cases": list(by_launcher.values())}))
    microbench("collect", "--device", "cpu", "--threads", 1, "--cases", file, "--case-seconds", "0.002s",
               "--tracking-uri", "off", "--out", with_ceilings(tmp_path / "out"))  # fmt: skip
    found = json.loads(microbench("status", tmp_path / "out", "--json").stdout)
    assert found["failures"] == 0 and found["rows"] > len(by_launcher)  # the ceilings are rows, too


@shipped
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--suggest", "4"], "expected 5 to 256"),
        (["--suggest", "257"], "expected 5 to 256"),
        ([], "--data FILE"),
        (["--suggest", "8", "--data", "rows.parquet"], "one of them"),
        (["--suggest", "8", "--artifacts", "roofline"], "no estimators"),
        (["--suggest", "8", "--gpu", "h10"], "nearest: h100"),
        (["--suggest", "8", "--out", "/dev/null/x.json"], "/dev/null"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = {"--gpu": "l4", "--out": str(tmp_path / "c.json")}
    rest = [text for flag, value in usual.items() if flag not in words for text in (flag, value)]
    assert main(["calibrate", *rest, *words]) == 2
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1 and not list(tmp_path.iterdir())


def test_options_are_part_of_a_case() -> None:
    case: dict[str, Any] = replace(of_class("a", 0.1, 1)[0], options=(("impl", "cudnn"),)).to_json()
    assert Case.from_json(case).option("impl") == "cudnn"
