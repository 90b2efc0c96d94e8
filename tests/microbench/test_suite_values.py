"""What a table of measurements may say: files of its folder alone, and times that can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from microbench.workload import read_config
from predictor.cli.main import main
from predictor.errors import RequestError
from predictor.fit.served_rows import read_cases
from predictor.fit.suite import predict_case
from predictor.models.built.load import CONFIGS

#: A row of a suite that has a forecast.
ROW = {"case": "a", "config": "gpt2", "mode": "forward", "gpu": "h100", "dtype": "bf16", "seq_len": 128,
       "global_batch": 1, "measured_ms": 3.0}  # fmt: skip


def test_a_row_reads_no_config_outside_its_folder(tmp_path: Path) -> None:
    """Workloads, services and the harness: a table from elsewhere names files of its folder, by whatever path."""
    pytest.importorskip("pandas", reason="the extra train is not installed")
    configs = tmp_path / "suite" / "configs"
    (configs / "org").mkdir(parents=True)
    whole = (CONFIGS / "gpt2.json").read_text(encoding="utf-8")
    for place in (configs / "mine.json", configs / "org" / "mine.json", tmp_path / "secret.json"):
        place.write_text(whole)
    for name in ("mine", "org/mine", "./org/../mine", "traced:mine"):
        assert "leads out" not in str(predict_case({**ROW, "config": name}, configs, "roofline")["note"]), name
        assert read_config(configs, name.removeprefix("traced:"))["model_type"] == "gpt2"
    outside = ("../../secret", str(tmp_path / "secret"), "org/../../../secret", "traced:../../secret")
    for name in outside:
        found = predict_case({**ROW, "config": name}, configs, "roofline")
        assert found["predicted_ms"] is None and "leads out of" in found["note"], name
        with pytest.raises(RequestError, match="leads out of"):
            read_config(configs, name.removeprefix("traced:"))
    served = tmp_path / "suite" / "served.csv"
    lines = [f"{name},vllm,h100,8,128,128,5,10" for name in ("mine.json", *outside[:3])]
    served.write_text("config,execution,gpu,concurrency,isl,osl,tpot_ms,ttft_ms\n" + "\n".join(lines) + "\n")
    inside, *left = (case.note for case in read_cases(served, configs))
    assert inside == "" and all("leads out of" in note for note in left), left
    assert json.loads((tmp_path / "secret.json").read_text())["model_type"] == "gpt2"


def test_a_suite_in_another_unit_is_said_and_a_row_twice_counts_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pd = pytest.importorskip("pandas", reason="the extra train is not installed")
    suite = tmp_path / "suite.csv"
    words = ["evaluate", "workloads", str(suite), "--configs", str(CONFIGS), "--artifacts", "roofline", "--json"]
    frame = pd.DataFrame([{**ROW, "case": f"c{n}", "global_batch": n, "measured_ms": 3.0} for n in range(1, 7)])
    for scale, unit in ((1e-3, "seconds"), (1e3, "microseconds")):
        frame.assign(measured_ms=frame["measured_ms"] * scale).to_csv(suite, index=False)
        capsys.readouterr()
        assert main([*words, "--tracking-uri", "off"]) == 2
        assert f"expected milliseconds, these look like {unit}" in capsys.readouterr().err
    long = frame.assign(global_batch=64, seq_len=[1000 + n for n in range(6)])
    for mfu, status in ((0.5, 0), (3.0, 2)):  # no unit's factor
        flops = 2 * 124e6 * 64 * 1000 / 989e12  # of GPT-2's weights, over an H100's peak in bf16
        long.assign(measured_ms=flops / mfu * 1e3).to_csv(suite, index=False)
        capsys.readouterr()
        assert main([*words, "--tracking-uri", "off"]) == status
        said = capsys.readouterr().err
        assert ("times the FLOP/s of their GPU's peak" in said) == (status == 2), said
    steps = [
        {**ROW, "case": f"d{n}", "config": "llama-3.1-8b", "mode": "decode", "seq_len": "", "context_len": 64 + n}
        for n in range(6)
    ]
    weights_s = 2 * (8.03e9 - 0.525e9) / 3.35e12  # but for the embedding, by an H100's bandwidth
    for share, status in ((0.7, 0), (1.6, 2)):  # of the bandwidth: no unit's factor, and little of the FLOP/s
        pd.DataFrame(steps).assign(measured_ms=weights_s / share * 1e3).to_csv(suite, index=False)
        assert main([*words, "--tracking-uri", "off"]) == status
        said = capsys.readouterr().err
        assert ("need 1.6 times the bytes/s of their GPU's peak" in said) == (status == 2), said
    for cell in ("\u0663", "1_0"):  # numbers to Python, none to pandas
        pd.DataFrame([{**ROW, "measured_ms": cell}]).to_csv(suite, index=False)
        assert main([*words, "--tracking-uri", "off"]) == 1
        assert f"measured_ms {cell!r}: expected a number" in capsys.readouterr().err  # and no row has a forecast
    pd.concat([frame, *([frame.iloc[:1]] * 49)]).to_csv(suite, index=False)
    assert main([*words, "--tracking-uri", "off"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n"], found["unpredicted"]) == (6, 49)
    assert found["notes"] == {"the same as row 1, which counts once": 49}
