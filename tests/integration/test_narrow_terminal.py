"""Every command on terminals of many widths: each number of the wide answer is there whole, or its column is not."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from microbench.case import Case
from microbench.cli import main as microbench
from microbench.store import Store
from predictor.cli.main import main
from predictor.data import dataset
from predictor.ops import Softmax

WIDTHS = (40, 60, 80, 100, 120)
RUNS = {
    "generate": "predict --model llama-3.1-8b --gpu h200 --mode generate --execution cuda_graph --top 9",
    "train, too large": "predict --model gpt2-large --gpu v100 --mode train --batch 4 --top 3",
    "decode, two GPUs": "predict --model llama-3.1-70b --gpu h100 --tp 2 --mode decode --batch 8 --execution vllm",
    "ragged": "predict --model llama-3.1-8b --gpu h100 --mode prefill --prompt-lens 12,3000,7 --execution vllm",
    "priced": "compare --model llama-3.1-8b --gpu l4,a100,h100,p4 --mode decode --batch 32 --price l4=0.8,h100=2.99",
    "trained": "compare --model gpt2-large --gpu v100,a100,l4 --mode train --batch 4 --price v100=0.35,a100=1.29",
    "models of one GPU": "compare --model llama-3.1-8b,qwen3-8b,gemma-3-12b --gpu h100 --tp 2 --execution vllm",
    "GPUs": "gpus",
    "one GPU": "gpus h100",
    "models": "models",
    "one model": "models gemma-2-2b",
    "runs": "runs",
}
_NUMBER = re.compile(r"(?<![\w.,])<?\d+(?:,\d{3})*(?:\.\d+)?(?![\w])")


def numbers(text: str) -> Counter[str]:
    return Counter(_NUMBER.findall(text))


def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, width: int | None) -> str:
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    harness = words.startswith("microbench ")
    assert (microbench if harness else main)(words.removeprefix("microbench ").split()) == 0
    return capsys.readouterr().out


def check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, words: str) -> None:
    """Every number of the wide answer is in the narrow one, and no other; a column of one value counts once."""
    wide = shown(capsys, monkeypatch, words, None)
    assert max(map(len, wide.splitlines())) < 400, name
    for width in WIDTHS:
        narrow = shown(capsys, monkeypatch, words, width)
        assert set(numbers(narrow)) == set(numbers(wide)), (name, width, numbers(wide) - numbers(narrow))
        assert "\N{HORIZONTAL ELLIPSIS}" not in narrow and "..." not in narrow.replace(",...", ""), (name, width)
        long = [line for line in narrow.splitlines() if len(line) > width and " " in line.strip()]
        assert not long, (name, width, long[:1])
        merged = Counter(dict.fromkeys(numbers(wide), 1)) if "every row: " in narrow else numbers(wide)
        lost = merged - numbers(narrow)
        assert not lost, (name, width, lost)


def test_no_number_is_cut_at_any_width(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, words in RUNS.items():
        check(capsys, monkeypatch, name, words)


def test_tables_of_data_sets_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    n = np.arange(18)
    cells = {
        "source": "test", "source_file": "f", "source_row": n, "gpu": np.repeat(["h100-sxm", "a100-sxm-80gb", "l4"], 6),
        "framework": "vllm", "framework_version": "0", "kernel_source": "linear", "protocol": "cuda_graph",
        "cache_state": "unknown", "op": "gemm", "dtype": "bf16", "quant": "", "flag": "", "m": 128 * 3 ** (n % 6),
        "n": 4096, "k": 1234, "batch": 1, "kind": "linear", "bias": False, "layout": "tn",
        "latency_ms": 0.2 * 3.0 ** (n % 6),
    }  # fmt: skip
    path = tmp_path / "rows.csv"
    dataset.write(dataset.to_frame(cells, 18), path)
    check(capsys, monkeypatch, "describe", f"dataset describe {path}")
    check(capsys, monkeypatch, "evaluate", f"evaluate kernels {path} --baselines --tracking-uri off")


def test_the_harness_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`plan` fits 80 columns; `status`, whose folders have long names, any: a line a folder or a few."""
    plan = shown(capsys, monkeypatch, "microbench plan --device cpu --threads 2 --budget 60s", None)
    assert max(map(len, plan.splitlines())) <= 80
    case = Case("softmax", Softmax("fp32", 8, 8))
    store = Store(tmp_path, "cpu-some-vendors-processor-of-64-cores-64t", "torch-2.13.0_cpu", {"run": "r"})
    store.open(0.0)
    store.add_failure(case, {"kind": "error", "reason": "none"}, "2026-01-01T00:00:00+00:00")
    store.finish({"stopped_by": "done"})
    store.close()
    assert max(map(len, shown(capsys, monkeypatch, f"microbench status {tmp_path}", None).splitlines())) > 120
    for width in (60, 80, 100):
        text = shown(capsys, monkeypatch, f"microbench status {tmp_path}", width)
        assert max(len(line) for line in text.splitlines() if " " in line.strip()) <= width
        assert "rows 0, in journal 0, failed 1," in text and "last run done" in text


def test_every_block_is_a_table_of_the_same_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 columns the list of GPUs is several tables under the same names, each column whole in one of them."""
    wide = shown(capsys, monkeypatch, "gpus", None).splitlines()
    blocks = shown(capsys, monkeypatch, "gpus", 80).rstrip("\n").split("\n\n")
    names = [line.split()[0] for line in wide]
    assert len(blocks) > 1
    for block in blocks:
        assert [line.split()[0] for line in block.splitlines()] == names
    assert [head for block in blocks for head in block.splitlines()[0].split()[1:]] == wide[0].split()[1:]
    h100 = [line for block in blocks for line in block.splitlines() if line.startswith("h100-sxm")]
    assert len(h100) == len(blocks) and sum("989 TFLOP/s" in line for line in h100) == 1


def test_decode_says_what_its_rate_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from predictor import predict

    words = "predict --model llama-3.1-70b --gpu h100 --tp 2 --mode decode --batch 8 --execution vllm"
    text = shown(capsys, monkeypatch, words, None)
    line = next(line for line in text.splitlines() if line.startswith("  throughput"))
    answer = predict("llama-3.1-70b", "h100", tp=2, mode="decode", batch=8, execution="vllm")
    total = 8 / answer.latency_s
    assert f"{total:.0f} tokens/s made in total, {total / 2:.0f} tokens/s a GPU, {total / 8:.1f} steps/s" in line
    assert "sequences/s" not in line
    table = shown(capsys, monkeypatch, "compare --model llama-3.1-70b --gpu h100,h200 --tp 2 --mode decode --batch 8 "
                  "--execution vllm", None)  # fmt: skip
    row = next(line for line in table.splitlines() if line.startswith("h100-sxm"))
    assert "tokens/s a GPU" in table and {f"{total:.0f}", f"{total / 2:.0f}"} <= set(row.split())


def test_generate_alone_makes_128_tokens(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And fewer where learned positions end, whatever length is asked for beside it."""
    for words, seq_len, output_len in (
        ("--model llama-3.1-8b", 2048, 128),
        ("--model gpt2", 897, 128),
        ("--model gpt2 --seq-len 1000", 1000, 25),
        ("--model gpt2 --seq-len 1024", 1024, 1),
        ("--model gpt2 --output-len 7", 1018, 7),
        ("--model gpt2 --prompt-lens 1020,4 --execution vllm", 1020, 5),
    ):
        line = shown(capsys, monkeypatch, f"predict {words} --gpu h100 --mode generate", None).splitlines()[0]
        assert f"output-len {output_len}," in line, words
        assert f"seq-len {seq_len}," in line or "prompt-lens" in line, words


def test_an_import_of_no_rows_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A file of the layout, of which nothing can be taken: one line, status 1, and no file."""
    table = tmp_path / "src" / "dataset" / "test" / "elem.csv"
    table.parent.mkdir(parents=True)
    table.write_text("OPName,Latency,Device,Torch Version,CUDA Version,Kernel Name,B,H\nadd,1.0,NVIDIA_X,2,12,k,4,4\n")
    out = tmp_path / "rows.csv"
    status = main(["dataset", "import", "neusight", str(tmp_path / "src"), "--out", str(out)])
    said = capsys.readouterr()
    assert status == 1 and not out.exists() and said.out == ""
    assert said.err.count("\n") == 1 and str(tmp_path / "src") in said.err and "dataset/test/<op>.csv" in said.err
