"""`tilecast calibrate` on made-up rows of a board that is slower than the shipped estimators say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from predictor.cli.main import main
from predictor.data import dataset
from predictor.fit.calibrate import MOST, drawn
from predictor.fit.evaluate import predict_rows
from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import default_artifacts, load_artifacts
from predictor.kernels.fitting.adapt import NOISE
from predictor.kernels.stored import read_weights

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from informative_rows import covariance, most_informative

GPU = "rtx-4090"
NEW = "l4"
SLOWER = 1.4

pytestmark = pytest.mark.skipif(
    not (default_artifacts() / "fp32-gemm" / "manifest.json").is_file(), reason="no shipped estimators in this checkout"
)


def shapes(count: int, seed: int, gpu: str = GPU) -> dataset.Frame:
    """Eager fp32 rows without a latency worth reading: linear layers, batched products, softmax and sums."""
    rng = np.random.default_rng(seed)
    head = {
        "source": "made-up", "source_file": "none", "gpu": gpu, "framework": "pytorch", "framework_version": "0",
        "kernel_source": "aten", "protocol": "eager_events", "cache_state": "warm", "dtype": "fp32", "quant": "",
        "flag": "", "latency_ms": 1.0,
    }  # fmt: skip
    m, n, k = (2 ** rng.integers(8, 13, count) for _ in range(3))
    linear = np.arange(count) % 2 == 0
    gemm = dataset.to_frame(
        head | {
            "source_row": np.arange(count), "op": "gemm", "m": m, "n": n, "k": k, "batch": np.where(linear, 1, 8),
            "kind": np.where(linear, "linear", "bmm"), "bias": False, "layout": np.where(linear, "tn", "nn"),
        },
        count,
    )  # fmt: skip
    rows = dataset.to_frame(
        head | {
            "source_row": np.arange(count), "op": "softmax", "rows": 2 ** rng.integers(10, 15, count),
            "cols": 2 ** rng.integers(8, 12, count),
        },
        count,
    )  # fmt: skip
    return dataset.concat([gemm, rows])


def measured(count: int, seed: int, gpu: str = GPU) -> dataset.Frame:
    """Rows whose latency is the shipped forecast times `SLOWER`, with 3 % noise."""
    frame = shapes(count, seed, gpu)
    forecast = predict_rows(frame, load_artifacts())["predicted_ms"].to_numpy(dtype=float)
    noise = np.random.default_rng(seed).normal(1.0, 0.03, len(frame))
    return frame.assign(latency_ms=forecast * SLOWER * noise)


def error(frame: dataset.Frame, artifacts: Path | None) -> float:
    return float(predict_rows(frame, load_artifacts(artifacts))["ape_pct"].mean())


def write(frame: dataset.Frame, path: Path) -> Path:
    dataset.write(frame, path)
    return path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A data file of 40 rows and the set that they calibrate."""
    folder = tmp_path_factory.mktemp("calibrate")
    file, out = write(measured(20, 0), folder / "rows.parquet"), folder / "set"
    assert main(["calibrate", "--gpu", GPU, "--data", str(file), "--out", str(out)]) == 0
    return file, out


def test_other_rows_of_the_gpu_are_forecast_better(done: tuple[Path, Path]) -> None:
    test = measured(100, 1)
    before, after = error(test, None), error(test, done[1])
    assert before > 20
    assert after < before / 2


def test_five_rows_help(tmp_path: Path) -> None:
    frame = measured(20, 0).iloc[[0, 1, 2, 3, 4]].reset_index(drop=True)
    file, out = write(frame, tmp_path / "rows.csv"), tmp_path / "set"
    assert main(["calibrate", "--gpu", GPU, "--data", str(file), "--out", str(out)]) == 0
    test = measured(100, 1).iloc[:100].reset_index(drop=True)  # the GEMMs
    assert error(test, out) < 0.8 * error(test, None)


def test_other_gpus_and_estimators_stay_as_they_were(done: tuple[Path, Path]) -> None:
    for gpu in ("rtx-5090", "v100-pcie-32gb"):
        rows = shapes(20, 3, gpu)
        old = predict_rows(rows, load_artifacts())["predicted_ms"]
        new = predict_rows(rows, load_artifacts(done[1]))["predicted_ms"]
        np.testing.assert_array_equal(old, new)
    for folder in ("gemm", "attention", "moe"):
        for name in ("manifest.json", "weights.npz"):
            old_file = default_artifacts() / folder / name
            assert not old_file.is_file() or old_file.read_bytes() == (done[1] / folder / name).read_bytes()


def test_the_manifest_says_what_was_used(done: tuple[Path, Path]) -> None:
    (entry,) = json.loads((done[1] / "manifest.json").read_text(encoding="utf-8"))["calibrated"]
    assert (entry["gpu"], entry["rows"]) == (GPU, 40)
    assert entry["sha256"] == dataset.digest(dataset.read(done[0]))
    for folder in ("fp32-gemm", "memory-bound"):
        manifest = json.loads((done[1] / folder / "manifest.json").read_text(encoding="utf-8"))
        assert manifest["calibration"] == entry
        assert GPU in manifest["calibrated"]


def test_the_board_counts_as_measured_and_its_rows_as_known(
    done: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = done
    words = ["predict", "--model", "gpt2", "--gpu", GPU, "--dtype", "fp32", "--json"]
    for artifacts, unseen in (([], True), (["--artifacts", str(out)], False)):
        assert main([*words, *artifacts]) == 0
        answer = json.loads(capsys.readouterr().out)
        said = " ".join(note for note in answer["notes"] if "No measurements of" in note)
        for name in ("fp32-gemm", "memory-bound"):  # what else the pass uses was not calibrated, and still says so
            assert (name in said) == unseen, name
        assert main(["evaluate", "kernels", str(file), *artifacts, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["fitted_rows"] == (0 if unseen else 40)


def serving(count: int, seed: int, gpu: str = NEW) -> dataset.Frame:
    """bf16 rows of vLLM without a latency worth reading: GEMM, prefill and MoE, ``count`` each."""
    rng = np.random.default_rng(seed)
    head = {
        "source": "made-up", "source_file": "none", "gpu": gpu, "framework": "vllm", "framework_version": "0",
        "kernel_source": "vllm", "protocol": "cuda_graph", "cache_state": "rotating", "dtype": "bf16", "quant": "",
        "flag": "", "latency_ms": 1.0, "source_row": np.arange(count),
    }  # fmt: skip

    def size(low: int, high: int) -> npt.NDArray[np.int64]:
        return np.asarray(2 ** rng.integers(low, high, count))

    length, heads = size(6, 13), size(3, 6)
    tables: list[dict[str, Any]] = [
        {
            "op": "gemm", "m": size(0, 14), "n": size(7, 14), "k": size(7, 14), "batch": 1, "kind": "linear",
            "bias": False, "layout": "tn",
        },
        {
            "op": "attention", "batch": size(0, 5), "heads": heads, "kv_heads": heads, "q_len": length,
            "kv_len": length, "head_dim": 128, "causal": True, "phase": "forward",
        },
        {
            "op": "moe", "tokens": size(2, 13), "hidden": size(10, 13), "intermediate": size(9, 12), "experts": 32,
            "top_k": 4, "gated": True, "tp": 1, "ep": 1, "distribution": "uniform",
        },
    ]  # fmt: skip
    return dataset.concat([dataset.to_frame(head | table, count) for table in tables])


def served(count: int, seed: int, gpu: str = NEW) -> dataset.Frame:
    """Such rows whose latency is the shipped forecast times `SLOWER`, with 3 % noise."""
    frame = serving(count, seed, gpu)
    forecast = predict_rows(frame, load_artifacts())["predicted_ms"].to_numpy(dtype=float)
    return frame.assign(latency_ms=forecast * SLOWER * np.random.default_rng(seed).normal(1.0, 0.03, len(frame)))


@pytest.mark.parametrize("gpu", [NEW, "h100-sxm"])
def test_serving_kernels_are_adapted_from_16_rows(gpu: str, tmp_path: Path) -> None:
    out = tmp_path / "set"
    file = write(served(16, 0, gpu), tmp_path / "rows.parquet")
    assert main(["calibrate", "--gpu", gpu, "--data", str(file), "--out", str(out)]) == 0
    test = served(60, 1, gpu)
    for op in ("gemm", "attention", "moe"):
        rows = test[(test["op"].astype(str) == op).to_numpy()].reset_index(drop=True)
        assert error(rows, out) < 0.6 * error(rows, None), op
    for other in ("a100-sxm-80gb", "rtx-4090"):
        rows = serving(20, 2, other)
        old, new = (predict_rows(rows, load_artifacts(a))["predicted_ms"] for a in (None, out))
        np.testing.assert_array_equal(old, new)
    contents = {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    for source in ([], ["--artifacts", str(out)]):  # again, and once more from what was calibrated
        assert main(["calibrate", "--gpu", gpu, "--data", str(file), "--out", str(tmp_path / "b"), *source]) == 0
        for folder in ("gemm", "attention", "moe"):
            assert contents[Path(folder, "weights.npz")] == (tmp_path / "b" / folder / "weights.npz").read_bytes()


def test_estimators_with_too_few_serving_rows_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = served(16, 0)
    keep = (frame["op"].astype(str) == "gemm").to_numpy() | (frame.index.to_numpy() % 16 < 9)
    file = write(frame[keep].reset_index(drop=True), tmp_path / "rows.parquet")
    assert main(["calibrate", "--gpu", NEW, "--data", str(file), "--out", str(tmp_path / "set"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["scalars"]) == {"gemm"}
    assert report["unchanged"]["moe"] == "9 serving MoE rows: expected 16 or more"
    assert report["unused_rows"] == 18


def test_same_rows_give_the_same_bytes_and_a_set_can_be_calibrated_again(done: tuple[Path, Path]) -> None:
    file, out = done
    contents = {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert main(["calibrate", "--gpu", GPU, "--data", str(file), "--out", str(out)]) == 0
    assert contents == {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()}


def test_json(done: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gemm = dataset.read(done[0]).iloc[:20].reset_index(drop=True)
    words = ["--data", str(write(gemm, tmp_path / "rows.parquet")), "--out", str(tmp_path / "set"), "--json"]
    assert main(["calibrate", "--gpu", GPU, *words]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["rows"]["fp32-gemm"] == 20
    assert report["after_mean_ape_pct"]["fp32-gemm"] < report["before_mean_ape_pct"]["fp32-gemm"]
    assert "no fp32" in report["unchanged"]["memory-bound"]


def test_one_row_beside_others_changes_no_estimator(
    done: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trace of other work has a single product in fp32: its error widened every interval of fp32."""
    rows = dataset.read(done[0])
    is_gemm = (rows["op"].astype(str) == "gemm").to_numpy()
    some = rows[~is_gemm | (is_gemm.cumsum() == 1)].reset_index(drop=True)
    words = ["--data", str(write(some, tmp_path / "rows.parquet")), "--out", str(tmp_path / "set"), "--json"]
    assert main(["calibrate", "--gpu", GPU, *words]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["unchanged"]["fp32-gemm"] == "1 fp32 GEMM rows: expected 5 or more"
    assert "fp32-gemm" not in report["scalars"]


def test_named_kernels_say_which_tile_runs(tmp_path: Path) -> None:
    frame = measured(20, 0).iloc[:20].reset_index(drop=True)
    names = ["ampere_sgemm_128x64_tn" if kind == "linear" else "ampere_sgemm_64x64_nn" for kind in frame["kind"]]
    file = write(frame.assign(kernel_name=names), tmp_path / "rows.parquet")
    assert main(["calibrate", "--gpu", GPU, "--data", str(file), "--out", str(tmp_path / "set")]) == 0
    manifest = json.loads((tmp_path / "set" / "fp32-gemm" / "manifest.json").read_text(encoding="utf-8"))
    before, after = (manifest["cores"][key]["penalty"] for key in ("*|ampere|fp32", f"{GPU}|pytorch|fp32"))
    for layout, tile in (("tn", "128x64"), ("nn", "64x64")):
        # against each other tile, the one that ran has become likelier
        ratio = {name: after[layout][name] / before[layout][name] for name in after[layout]}
        assert ratio.pop(tile) <= min(ratio.values()) + 1e-9


def test_most_informative_rows_read_no_latency_and_follow_the_seed() -> None:
    frame = measured(60, 5).iloc[:60].reset_index(drop=True)
    base = load_artifacts()
    manifest = base.member_manifest("fp32-gemm")  # type: ignore[union-attr]
    weights = read_weights(default_artifacts() / "fp32-gemm", manifest)
    groups = np.array_split(np.arange(60), 6)
    chosen = most_informative(frame, groups, load_gpu(GPU), manifest, weights, 0)
    assert [int(np.isin(chosen, group).sum()) for group in groups] == [1] * 6
    other = most_informative(frame.assign(latency_ms=7.0), groups, load_gpu(GPU), manifest, weights, 0)
    np.testing.assert_array_equal(chosen, other)
    index = np.r_[chosen, 0:60]
    total = covariance(frame.iloc[index].reset_index(drop=True), load_gpu(GPU), manifest, weights)

    def left(rows: npt.NDArray[np.int64]) -> float:
        """Mean variance of the 60 once ``rows`` of them were measured."""
        at = 6 + rows
        known = total[np.ix_(at, at)] + NOISE**2 * np.eye(len(at))
        return float(np.diag(total - total[:, at] @ np.linalg.solve(known, total[at]))[6:].mean())

    random = [np.array([np.random.default_rng(s).choice(g) for g in groups]) for s in range(20)]
    assert left(chosen) < np.mean([left(r) for r in random])


def test_rows_of_noise_alone_leave_their_estimator_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = measured(20, 0)
    noisy = (frame["op"].astype(str) == "softmax").to_numpy()
    latency = frame["latency_ms"].to_numpy(dtype=float).copy()
    noise = np.random.default_rng(0).normal(0.0, 2.0, int(noisy.sum()))
    latency[noisy] *= np.exp(noise) / SLOWER  # no law but the set's
    frame = frame.assign(latency_ms=latency)
    out = tmp_path / "set"
    words = ["calibrate", "--gpu", GPU, "--out", str(out), "--data"]
    assert main([*words, str(write(frame, tmp_path / "rows.parquet")), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["scalars"]) == {"fp32-gemm"}
    assert report["held_out_mean_ape_pct"]["fp32-gemm"] < 0.6 * report["before_mean_ape_pct"]["fp32-gemm"]
    assert "rows, which do not surely help: error of rows kept aside" in report["unchanged"]["memory-bound"]
    (entry,) = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["calibrated"]
    assert entry["rows"] == 20
    for name in ("manifest.json", "weights.npz"):
        file = default_artifacts() / "memory-bound" / name
        assert not file.is_file() or file.read_bytes() == (out / "memory-bound" / name).read_bytes()
    alone = frame[noisy].reset_index(drop=True)
    assert main([*words, str(write(alone, tmp_path / "alone.parquet"))]) == 0
    assert "the rows do not surely improve any estimator: the set stays as it was" in capsys.readouterr().out
    assert json.loads((out / "manifest.json").read_text(encoding="utf-8"))["calibrated"] == []


def test_one_layout_alone_calibrates(tmp_path: Path) -> None:
    frame = measured(20, 0).iloc[0:20:2].reset_index(drop=True)
    file = write(frame, tmp_path / "rows.parquet")
    assert main(["calibrate", "--gpu", GPU, "--data", str(file), "--out", str(tmp_path / "set")]) == 0
    test = measured(100, 1).iloc[:100:2].reset_index(drop=True)
    assert error(test, tmp_path / "set") < error(test, None) / 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", "rtx-409"], "rtx-4090"),
        (["--gpu", "rtx-5090"], "has no row of rtx-5090"),
        (["--gpu", GPU, "--out", "/dev/null/set"], "/dev/null/set"),
        (["--gpu", GPU, "--artifacts", "/nowhere"], "/nowhere"),
        (["--gpu", GPU, "--artifacts", "roofline"], "roofline"),
    ],
)
def test_wrong_requests(
    done: tuple[Path, Path], tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [] if "--out" in words else ["--out", str(tmp_path / "set")]
    assert main(["calibrate", "--data", str(done[0]), *out, *words]) == 2
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1
    assert not (tmp_path / "set").exists()


def test_too_few_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(shapes(300, 0).iloc[:4].reset_index(drop=True), tmp_path / "4.parquet")
    assert main(["calibrate", "--gpu", GPU, "--data", str(file), "--out", str(tmp_path / "set")]) == 2
    assert "measure a few more" in capsys.readouterr().err


def test_of_very_many_rows_some_are_drawn_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = measured(300, 0).iloc[:300].reset_index(drop=True)
    file, out = write(frame, tmp_path / "rows.parquet"), tmp_path / "set"
    assert main(["calibrate", "--gpu", GPU, "--data", str(file), "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rows"]["fp32-gemm"] == MOST and report["drawn_from"] == {"fp32-gemm": 300}
    assert report["unused_rows"] == 0
    some = drawn(frame, 100)
    assert len(some) == 100 and (some["layout"].astype(str) == "tn").sum() == 50
    assert some.equals(drawn(frame, 100))
    flops = np.log(some["m"].astype(float) * some["n"].astype(float) * some["k"].astype(float))
    assert np.ptp(flops) > 0.9 * np.ptp(np.log(frame["m"].astype(float) * frame["n"] * frame["k"]))
