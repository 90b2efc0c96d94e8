"""The command line as a person types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from predictor.cli.main import VERBS, build_parser, main

BASE = ["predict", "--model", "gpt2", "--gpu", "h100"]


def fails(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """Exit status 2 and one line on stderr; returns the line."""
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    return lines[0]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main([*words, "--json"]) == 0
    result: dict[str, object] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "--model", "gpt33", "--gpu", "h100"], "gpt3"),
        (["predict", "--model", "gpt2", "--gpu", "h10"], "h100"),
        ([*BASE, "--batch", "0"], "--batch 0"),
        ([*BASE, "--seq-len", "-5"], "-5"),
        ([*BASE, "--seq-len", "99999"], "1024"),
        ([*BASE, "--batch", "two"], "two"),
        ([*BASE, "--dtype", "fp7"], "fp7"),
        ([*BASE, "--dtype", "int4"], "int4_wo"),
        (["predict", "--model", "gpt2", "--gpu", "h100", "--dtype", "nvfp4"], "h100-sxm has no nvfp4 peak"),
        (["predict", "--model", "gpt2", "--gpu", "h100", "--dtype", "mxfp8"], "h100-sxm has no fp4 peak"),
        (["predict", "--model", "gpt2", "--gpu", "h100", "--dtype", "int8", "--mode", "train"], "for inference"),
        (["predict", "--model", "gpt2", "--gpu", "v100", "--dtype", "bf16"], "v100-sxm-32gb"),
        (["predict", "--model", "gpt2", "--gpu", "a100", "--dtype", "fp8"], "a100-sxm-80gb"),
        ([*BASE, "--tp", "5"], "12 heads"),
        ([*BASE, "--pp", "2"], "not built yet"),
        ([*BASE, "--num-gpus", "2"], "--tp 2"),
        ([*BASE, "--prompt-lens", "3,x"], "'x'"),
        ([*BASE, "--system", "dgx"], "dgx-h100"),
        ([*BASE, "--html", "/dev"], "plain file"),
        ([*BASE, "--mode", "trian"], "train"),
        ([*BASE, "--artifacts", "/dev/null/set"], "/dev/null/set"),
        ([*BASE, "--nonsense"], "--nonsense"),
        (["predict", "--gpu", "h100"], "--model"),
        (["gpus", "h10"], "h100"),
        ([*BASE, "--batch", "1" + "0" * 400], "--batch"),
        ([*BASE, "--mode", "generate", "--output-len", "1000000000000"], "--output-len"),
        ([*BASE, "--top", "-1"], "--top -1"),
        (["predict", "--model", "net.py:build", "--gpu", "h100"], "no file 'net.py'"),
        (["predict", "--model", str(Path(__file__).parent), "--gpu", "h100"], "config.json"),
        (["models", "gpt33"], "gpt3"),
        (["fly"], "fly"),
        ([], "VERB"),
        (["dataset", "import", "nosuch", ".", "--out", "x.parquet"], "neusight"),
        (["dataset", "describe", "nosuch.parquet"], "nosuch.parquet"),
        (["evaluate", "workloads", "nosuch.csv"], "nosuch.csv"),
        (["train", "--data", "nosuch.parquet", "--out", "/tmp/never"], "nosuch.parquet"),
    ],
)
def test_wrong_requests_end_in_one_line(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert said in fails(capsys, words)


def test_broken_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = tmp_path / "config.json"
    model.write_text('{"model_type": "gpt2",', encoding="utf-8")
    assert "line 1" in fails(capsys, ["predict", "--model", str(model), "--gpu", "h100"])
    model.write_text('{"model_type": "gpt2", "n_head": 4, "n_layer": 2, "vocab_size": 100}', encoding="utf-8")
    assert "n_embd" in fails(capsys, ["predict", "--model", str(model), "--gpu", "h100"])
    model.write_text('{"model_type": "gtp2"}', encoding="utf-8")
    assert "gpt2" in fails(capsys, ["predict", "--model", str(model), "--gpu", "h100"])
    gpu = tmp_path / "gpu.yaml"
    gpu.write_text("id: [", encoding="utf-8")
    assert "gpu.yaml" in fails(capsys, ["predict", "--model", "gpt2", "--gpu", str(gpu)])
    gpu.write_text("id: mine\nvendor: nvidia\n", encoding="utf-8")
    line = fails(capsys, ["predict", "--model", "gpt2", "--gpu", str(gpu)])
    assert "sm_count" in line
    assert "memory_bandwidth" in line
    suite = tmp_path / "suite.csv"
    suite.write_text("a,b\n1,2\n", encoding="utf-8")
    assert "measured_ms" in fails(capsys, ["evaluate", "workloads", str(suite)])
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n", encoding="utf-8")
    assert "other.csv" in fails(capsys, ["evaluate", "kernels", str(other)])


LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000,
    "max_position_embeddings": 512, "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_act": "silly"}, "silu"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"num_hidden_layers": 10**400}, "num_hidden_layers"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 11}}, "is not a known scheme"),
        ({"num_attention_heads": "four"}, "num_attention_heads"),
    ],
)
def test_a_config_that_makes_no_sense(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, change: dict[str, object], said: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    assert answer(capsys, "predict", "--model", str(path), "--gpu", "h100")["assumed"] is not None
    path.write_text(json.dumps(LLAMA | change), encoding="utf-8")
    assert said in fails(capsys, ["predict", "--model", str(path), "--gpu", "h100"])


def test_bad_cells_of_a_suite_become_notes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "m.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    head = "case,config,mode,gpu,dtype,seq_len,global_batch,measured_ms\n"
    rows = ["good,m,forward,h100-sxm,bf16,64,1,1.5", "text,m,forward,h100-sxm,bf16,abc,1,1.5",
            "endless,m,forward,h100-sxm,bf16,64,inf,1.5", "zero,m,forward,h100-sxm,bf16,64,1,0"]  # fmt: skip
    (tmp_path / "suite.csv").write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
    result = answer(capsys, "evaluate", "workloads", str(tmp_path / "suite.csv"))
    assert (result["n"], result["unpredicted"]) == (1, 3)
    assert len(result["notes"]) == 3  # type: ignore[arg-type]


def test_headline_model_decodes_and_generates_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "predict", "--model", "gpt3", "--gpu", "h100", "--mode", "decode")["context_len"] == 2047
    result = answer(capsys, "predict", "--model", "gpt3", "--gpu", "h100", "--mode", "generate", "--output-len", "128")
    assert result["seq_len"] == 2048 - 127


def test_an_unmeasured_gpu_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    known = answer(capsys, "predict", "--model", "gpt2", "--gpu", "h100")["notes"]
    assert not [note for note in known if "No measurements of" in note]  # type: ignore[attr-defined]
    notes = answer(capsys, "predict", "--model", "gpt2", "--gpu", "mi300x")["notes"]
    assert "No measurements of mi300x" in notes[0]  # type: ignore[index]


def test_json_has_the_documented_fields(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, *BASE)
    documented = (Path(__file__).parents[2] / "docs" / "reference" / "json-schema.md").read_text(encoding="utf-8")
    for name in result:
        assert f"`{name}`" in documented, name
    for name in (
        "latency_ms",
        "interval_ms",
        "memory_gib",
        "fits",
        "mfu",
        "breakdown",
        "gpu",
        "model",
        "schema_version",
    ):
        assert name in result
    rows = result["breakdown"]
    assert isinstance(rows, list)
    assert {"op", "count", "latency_ms", "share", "bound", "source"} <= set(rows[0])
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)


def test_defaults_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, *BASE)
    expected = {
        "mode": "forward",
        "batch": 1,
        "seq_len": 1024,
        "dtype": "bf16",
        "execution": "eager",
        "attention": "flash",
    }
    assert {key: result[key] for key in expected} == expected
    assert main(BASE) == 0
    first = capsys.readouterr().out.splitlines()[0]
    for word in ("forward", "batch 1", "seq-len 1024", "bf16", "eager", "flash", "1 GPU"):
        assert word in first
    assert answer(capsys, "predict", "--model", "gpt2", "--gpu", "v100")["dtype"] == "fp16"
    old = answer(capsys, "predict", "--model", "gpt2", "--gpu", "p4")
    assert (old["dtype"], old["attention"]) == ("fp32", "math")
    assert answer(capsys, "predict", "--model", "gpt3", "--gpu", "h100", "--mode", "train")["optimizer"] == "adam"


def test_a_model_that_does_not_fit_is_still_forecast(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, "predict", "--model", "gpt3", "--gpu", "h100")
    assert result["fits"] is False
    assert result["latency_ms"] > 0  # type: ignore[operator]
    assert main(["predict", "--model", "gpt3", "--gpu", "h100"]) == 0
    assert "does not fit, " in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["forward", "train", "prefill", "decode", "generate"])
@pytest.mark.parametrize("execution", ["eager", "compile", "cuda_graph"])
def test_every_mode_and_execution(capsys: pytest.CaptureFixture[str], mode: str, execution: str) -> None:
    extra = ["--output-len", "8"] if mode == "generate" else []
    result = answer(capsys, *BASE, "--seq-len", "128", "--mode", mode, "--execution", execution, *extra)
    assert result["latency_ms"] > 0  # type: ignore[operator]
    assert result["mode"] == mode


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser(verb).parse_args([verb, "--help"])
    assert caught.value.code == 0
    assert "example" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["", "--json"], ids=["plain", "json"])
def test_a_prediction_imports_nothing_heavy(form: str) -> None:
    code = (
        "import sys; from predictor.cli.main import main;"
        f"assert main('predict --model gpt3 --gpu h100 {form}'.split()) == 0;"
        "heavy = ('torch', 'pandas', 'sklearn', 'lightgbm', 'mlflow', 'scipy', 'pyarrow', 'rich', 'tempfile',"
        " 'zipfile', 'csv', 'statistics', 'difflib', 'shutil', 'threading',"
        " 'predictor.passes.autograd', 'predictor.passes.sequence_parallel', 'predictor.kernels.collective.core',"
        " 'predictor.kernels.gaussian', 'predictor.ops.sparse', 'predictor.ops.convolution',"
        " 'predictor.ops.linear_attention', 'predictor.models.built.linear_attention', 'predictor.models.built.latent',"
        " 'predictor.models.built.layer_rules', 'predictor.models.built.checkpoint', 'predictor.models.built.hub');"
        "print([m for m in heavy if m in sys.modules],"
        " file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_gpus_and_models_list_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus"]) == 0
    assert "h100-sxm" in capsys.readouterr().out
    assert main(["gpus", "h100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sources"]
    assert main(["models", "--json"]) == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} >= {"gpt3", "llama-3.1-8b"}
    assert main(["models"]) == 0
    assert "pipelines of several models: " in (shown := capsys.readouterr().out) and "flux.1-dev" in shown
    assert main(["models", "flux.1-dev", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sizes"]["batch"] == 1


def test_rows_that_are_not_there_leave_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    words = ["calibrate", "--gpu", "h100", "--data", "nofile", "--out", str(tmp_path / "o"), "--tracking-uri", store]
    assert main(words) == 2
    shown, said = capsys.readouterr()
    assert said == "error: --data nofile: no such file or folder; expected rows that were measured\n" and not shown
    assert not list(tmp_path.iterdir())
