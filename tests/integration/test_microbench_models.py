"""`microbench workload` on tiny models, and the writer under SIGKILL."""

from __future__ import annotations

import csv
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from microbench_runs import ROOT, environment, microbench

from microbench.writer import read_rows

SUITES = ROOT / "microbench" / "to_measure"
TINY = {
    "gpt2-small": {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 128, "n_positions": 64},
    "llama-1b": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 128,
    },
    "bert-base": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 128,
        "max_position_embeddings": 64,
    },
    "mixtral-small": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 128,
    },
    "resnet-50": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
}  # fmt: skip
CELLS = """case,config,mode,dtype,seq_len,context_len,global_batch,optimizer,execution,attention
,gpt2-small,forward,fp32,32,,2,,eager,math
,gpt2-small,train,fp32,32,,2,adam,eager,math
,llama-1b,prefill,bf16,32,,2,,eager,flash
,llama-1b,decode,fp32,,32,2,,eager,flash
,llama-1b,decode,fp32,,32,2,,cuda_graph,flash
,bert-base,forward,fp32,32,,2,,eager,flash
,mixtral-small,decode,fp32,,16,2,,eager,math
tiny-img32,resnet-50,train,fp32,,,2,sgd,eager,math
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The suite's architectures made tiny."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "configs").mkdir()
    for name, smaller in TINY.items():
        config = json.loads((SUITES / "configs" / f"{name}.json").read_text()) | smaller
        (folder / "configs" / f"{name}.json").write_text(json.dumps(config))
    (folder / "tiny.csv").write_text(CELLS)
    return folder


def test_a_suite_is_measured_and_resumes(suite: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    out = tmp_path / "truth.csv"
    words = ("workload", suite / "tiny.csv", "--device", "cpu", "--threads", 1, "--case-seconds", "0.01s", "--out", out)
    first = json.loads(microbench(*words, "--json").stdout)
    assert first["measured"] == 7 and first["known"] == 0
    (failure,) = first["failures"]
    assert failure["kind"] == "illegal" and "on a GPU" in failure["reason"]
    rows = list(csv.DictReader(out.open()))
    assert {row["mode"] for row in rows} == {"forward", "train", "prefill", "decode"}
    for row in rows:
        assert float(row["measured_ms"]) > 0 and row["suite"] == "tiny" and row["gpu"].startswith("cpu-")
        assert row["num_gpus"] == row["tp"] == "1" and int(row["parameters"]) > 1000
        assert bool(row["measured_forward_ms"]) == (row["mode"] == "train")
    again = json.loads(microbench(*words, "--json").stdout)
    assert again["measured"] == 0 and again["known"] == 7
    assert list(csv.DictReader(out.open())) == rows


@pytest.fixture
def device() -> Iterator[Any]:
    """This processor, in this process, which is left as it was."""
    torch = pytest.importorskip("torch")
    from microbench.devices.cpu import CpuDevice

    threads = torch.get_num_threads()
    yield CpuDevice(1)
    torch.set_num_threads(threads)
    torch.backends.cuda.enable_math_sdp(True)


def test_a_static_and_a_growing_cache_decode_the_same(suite: Path, device: Any) -> None:
    """What a graph would capture on a GPU, run without one: the same logits, step after step."""
    pytest.importorskip("transformers")
    import torch

    from microbench import models

    config = json.loads((suite / "configs" / "llama-1b.json").read_text(encoding="utf-8"))
    cell = {"dtype": "fp32", "attention": "flash", "mode": "decode", "global_batch": "2", "context_len": "16"}
    model = models.build(device, cell | {"case": "", "seq_len": ""}, config)
    context = device.randint(0, 128, (2, 16))
    logits = []
    for static in (False, True):
        device._generator.manual_seed(1)
        with torch.no_grad():
            step = models._decode(device, model, context, static)
        logits += [step().logits, step().logits]
    assert all(torch.allclose(logits[0], other, atol=1e-5) for other in logits[1:])


WRITER = """
import itertools, sys
from pathlib import Path
from microbench.writer import OpFolder
folder = OpFolder(Path(sys.argv[1]), "gpu/softmax/stack")
print("ready", flush=True)
from microbench.case import Case
from predictor.ops import Softmax
for number in itertools.count(1):
    case = Case("softmax", Softmax("fp32", number, 8))
    if case.id in folder.done:
        continue
    folder.append({"case_id": case.id, "launcher": "softmax", "latency_ms": 1.0, "rows": number})
    print(number, flush=True)
    if number % 7 == 0:
        folder.compact()
"""


def test_a_writer_killed_anywhere_keeps_what_it_said_was_written(tmp_path: Path) -> None:
    draw, said = random.Random(11), 0
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        lines = [process.stdout.readline() for _ in range(draw.randint(1, 9))]
        time.sleep(draw.uniform(0.0, 0.02))
        process.send_signal(signal.SIGKILL)
        lines += [line for line in process.communicate()[0].splitlines(keepends=True) if line.endswith("\n")]
        said = max([said, *(int(line) for line in lines)])
        numbers = sorted(row["rows"] for row in read_rows(tmp_path / "gpu" / "softmax" / "stack"))
        assert numbers == list(range(1, len(numbers) + 1))  # none lost, none doubled
        assert said <= len(numbers) <= said + 1  # one row may be durable and not yet said
    assert said > 50
