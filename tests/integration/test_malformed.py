"""Malformed words and files to every verb: one line on stderr that names the value and what was expected, exit status
2 (1 where the work failed), nothing on stdout, nothing written, no traceback. Each test loops over a table and names
every case that fails; `test_nonsense` has the cases that were there first."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
import yaml

import predictor
from microbench.cli import main as microbench
from predictor.cli.main import main
from tests.integration import malformed_cases as cases
from tests.integration import malformed_files as files_of
from tests.integration import malformed_harness as harness_of

PACKAGE = Path(predictor.__file__).parent
GPU = (PACKAGE / "hardware" / "gpus" / "h100-sxm.yaml").read_text(encoding="utf-8")
SYSTEM = (PACKAGE / "hardware" / "systems" / "dgx-h100.yaml").read_text(encoding="utf-8")
LLAMA = (PACKAGE / "models" / "built" / "configs" / "llama-3.1-8b.json").read_text(encoding="utf-8")
GPT2 = (PACKAGE / "models" / "built" / "configs" / "gpt2.json").read_text(encoding="utf-8")
NAMED_GPT2 = '{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}'
OWN_GPU, OWN_MODEL = "predict --model gpt2 --gpu g.yaml", "predict --model m.json --gpu h100"
Files = Mapping[str, str | bytes]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILECAST_STATE", str(tmp_path / "state"))
    return tmp_path


def put(files: Files) -> None:
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())


def run(words: str | Sequence[str], files: Files, harness: bool = False) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of the command line, in this process."""
    put(files)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = (microbench if harness else main)(words.split(" ") if isinstance(words, str) else list(words))
    return status, out.getvalue(), err.getvalue()


def wrong_with(words: str | Sequence[str], said: str, files: Files, harness: bool = False) -> list[str]:
    """What a refusal lacks; empty for a good one."""
    put(files)
    before = sorted(map(str, Path().rglob("*")))
    try:
        status, out, err = run(words, files, harness)
    except Exception as error:
        return [f"traceback: {error!r}"]
    found = [f"status {status}"] if status != 2 else []
    found += [f"stdout: {out[:80]}"] if out else []
    found += [f"said {err[:200]!r}, not {said!r}"] if said not in err or not err.startswith("error: ") else []
    found += ["more than a line"] if len(err.splitlines()) != 1 or not err.rstrip("\n").isprintable() else []
    return found + (["something was written"] if sorted(map(str, Path().rglob("*"))) != before else [])


def all_refused(table: Iterable[tuple[str | Sequence[str], str, Files]], harness: bool = False) -> None:
    failed = {f"{words} {[*files.values()]}"[:200]: found for words, said, files in table
              if (found := wrong_with(words, said, files, harness))}  # fmt: skip
    assert not failed


def with_line(text: str, line: str) -> str:
    """A good YAML file with one line, of which it loses the field, at its end."""
    field = line.split(":")[0]
    kept = {name: value for name, value in yaml.safe_load(text).items() if name != field}
    return f"{yaml.safe_dump(kept)}{line}\n"


def test_words(world: Path) -> None:
    pytest.importorskip("pandas", reason="extra 'train'")
    all_refused((words, said, {}) for words, said in cases.WORDS)


def test_control_characters_are_escaped(world: Path) -> None:
    all_refused((words, said, {}) for words, said in cases.CONTROL)


def test_gpu_and_system_files(world: Path) -> None:
    all_refused(("gpus g.yaml", said, {"g.yaml": with_line(GPU, line)}) for line, said in files_of.GPU_LINES)
    all_refused(("gpus g.yaml", said, {"g.yaml": text}) for text, said in files_of.GPU_TEXTS)
    words = "predict --model llama-3.1-8b --gpu h100 --tp 2 --system s.yaml"
    all_refused((words, said, {"s.yaml": with_line(SYSTEM, line)}) for line, said in files_of.SYSTEM_LINES)


def test_yaml_that_is_nested_or_endless(world: Path) -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    deep = "nested more than 50 deep"
    texts = [
        ("- " * 20_000 + "x", deep), ("[" * 20_000, deep), ("{a: " * 200_000, deep),
        ("a: [" + "1," * 200_000 + "]", "100,000 values"),
        (bomb, "100,000 values"), (GPU + "notes: &n [*n]\n", "'n' holds itself"),
        (GPU.encode("utf-16"), "UTF-16"), (GPU.encode() + b"\x00", "broken YAML"),
        (b"#" * (17 * 2**20), "at most 16,777,216 are read"),
    ]  # fmt: skip
    all_refused((OWN_GPU, said, {"g.yaml": text}) for text, said in texts)
    all_refused([("compare --model gpt2 --gpu h100 --price p.yaml", deep, {"p.yaml": "[" * 20_000})])
    all_refused([("plan --sweeps sw", deep, {"sw/gemm.yaml": "[" * 20_000})], harness=True)


def test_model_configs(world: Path) -> None:
    all_refused(("models m.json", said, {"m.json": text}) for text, said in files_of.CONFIG_TEXTS)
    good = json.loads(LLAMA)
    changed = [
        ({"hidden_size": 10**400}, "expected at most"), ({"hidden_size": [4096]}, "[4096]"),
        ({"vocab_size": -1}, "'vocab_size' is -1"), ({"num_attention_heads": 7}, "not a multiple of 7 heads"),
        ({"intermediate_size": "x"}, "'intermediate_size' is 'x'"), ({"max_position_embeddings": 0}, "is 0"),
        ({"max_position_embeddings": None}, "is None"), ({"attention_bias": 1}, "true or false"),
        ({"hidden_act": "swigloo"}, "nearest: sigmoid"), ({"attention_dropout": 2}, "expected 0 to 1"),
        ({"head_dim": 0}, "'head_dim' is 0"), ({"head_dim": 1e9}, "heads of 1000000000, expected at most 65536"),
        ({"num_key_value_heads": 64}, "not a multiple of 64 KV heads"), ({"architectures": 5}, "unknown architecture"),
        ({"head_dim": 1}, "expected an even width, got 1"), ({"head_dim": 97}, "expected an even width, got 97"),
        ({"architectures": ["\x1b[31mForCausalLM"]}, r"\x1b[31mForCausalLM"),
    ]  # fmt: skip
    texts: list[tuple[str | bytes, str]] = [(json.dumps(good | change), said) for change, said in changed]
    texts += [
        (LLAMA.rstrip().removesuffix("}") + ', "hidden_size": 64}', "key 'hidden_size' appears twice"),
        ("[" * 100_000, "nested too deep"), (LLAMA.encode("utf-16"), "UTF-16"), (b" " * (17 * 2**20), "at most"),
    ]  # fmt: skip
    all_refused((OWN_MODEL, said, {"m.json": text}) for text, said in texts)


def test_microbench(world: Path) -> None:
    all_refused(((words, said, {}) for words, said in harness_of.MICROBENCH), harness=True)
    all_refused((("plan --sweeps sw", said, {"sw/gemm.yaml": t}) for t, said in harness_of.SWEEPS), harness=True)
    plan = "collect --device cpu --out new --cases c.json"
    all_refused(((plan, said, {"c.json": text}) for text, said in harness_of.CASE_FILES), harness=True)
    configs = {"configs/gpt2.json": NAMED_GPT2, "configs/two.json": '{"a":1,"a":2}'}
    words = "workload s.csv --device cpu --out x.csv"
    all_refused(((words, said, {"s.csv": text, **configs}) for text, said in harness_of.WORKLOADS), harness=True)


def test_measurements(world: Path) -> None:
    pytest.importorskip("pandas", reason="extra 'train'")
    from tests.integration import malformed_data as made

    all_refused((made.TRAIN, said, made.data(made.rows(cells))) for cells, said in made.CELLS)
    for files, words, said in made.DATA:
        all_refused([(words, said, files)])
        for name in files:
            Path(name).unlink()
    all_refused(("evaluate workloads s.csv", said, {"s.csv": text}) for text, said in made.SUITES)


def test_rows_that_no_kernel_can_have_taken_are_kept_apart_and_named(world: Path) -> None:
    pytest.importorskip("pandas", reason="extra 'train'")
    from tests.integration import malformed_data as made

    for latency, flag, said in (("0.0003", "beats_roofline", "below"), ("700", "far_above_roofline", "far above")):
        files = made.data(made.rows({"latency_ms": latency}))
        status, out, err = run(f"{made.TRAIN} --no-intervals --json", files)
        answer = json.loads(out)
        assert (status, answer["rows"], answer["fitted"]["gemm"], answer["kept_apart"]) == (0, 8, 7, {flag: 1})
        assert f"rows.csv: 1 rows kept apart, each {said} its roofline: row 3 (gemm on h100-sxm: {latency} ms" in err
    # A call that waits for its host takes a thousand times its roofline, and is a good row all the same.
    small = {"m": "64", "k": "64", "n": "64", "latency_ms": "0.03", "protocol": "eager_events"}
    status, out, _ = run(f"{made.TRAIN} --no-intervals --json", made.data(made.rows(small)))
    assert (status, json.loads(out)["kept_apart"]) == (0, {})


def test_evaluate_says_an_empty_cell_as_null(world: Path) -> None:
    """NaN is no JSON."""
    pytest.importorskip("pandas", reason="extra 'train'")
    header = "case,config,mode,dtype,global_batch,seq_len,gpu,measured_ms"
    suite = f"{header}\n,gpt2,forward,fp32,1,64,v100,9\n7,gpt2,forward,fp32,2,64,v100,9\n"
    words = "evaluate workloads s.csv --artifacts roofline --json"
    status, out, _ = run(words, {"s.csv": suite, "configs/gpt2.json": GPT2})
    assert status == 0 and "NaN" not in out
    assert '"case": null' in out and '"case": 7' in out


def test_evaluate_without_a_forecast_shows_its_notes_and_fails(world: Path) -> None:
    pytest.importorskip("pandas", reason="extra 'train'")
    from tests.integration import malformed_data as made

    for text, note in made.NOTES:
        status, out, err = run("evaluate workloads s.csv", {"s.csv": text, "configs/gpt2.json": GPT2})
        assert status == 1, text
        assert "not predicted: 1 x " in out and note in out.replace("\n", " "), text
        (line,) = err.splitlines()
        assert "none of 1 rows could be predicted" in line and note in line, text


def test_a_byte_order_mark_is_dropped(world: Path) -> None:
    mark = b"\xef\xbb\xbf"
    files = {"m.json": mark + LLAMA.encode(), "g.yaml": mark + GPU.encode()}
    plain = {"m.json": LLAMA, "g.yaml": GPU}
    words = "predict --model m.json --gpu g.yaml --json"
    assert run(words, files)[1] == run(words, plain)[1]


def test_names_are_shown_as_text(world: Path) -> None:
    for name in ("\x1b[31mred", "[bold]b", "[/b", ":smile:"):
        escaped = name.replace("\x1b", r"\x1b")
        files: Files = {f"{name}.json": LLAMA}
        for words in (["predict", "--model", f"./{name}.json", "--gpu", "h100"], ["models", f"./{name}.json"]):
            status, out, _ = run(words, files)
            assert status == 0 and "\x1b" not in out and escaped.split("/")[-1] in out, (name, words)
        status, out, _ = run(["predict", "--model", f"./{name}.json", "--gpu", "h100", "--json"], files)
        assert "\x1b" not in json.loads(out)["model"]


def test_a_new_generation_says_so(world: Path) -> None:
    text = GPU.replace("architecture: hopper", "architecture: feynman\nnew_generation: true")
    status, out, _ = run("gpus g.yaml --json", {"g.yaml": text})
    assert (status, json.loads(out)["architecture"]) == (0, "feynman")


def test_a_pipe_does_not_hang_and_a_process_says_one_line(world: Path) -> None:
    os.mkfifo("pipe.yaml")
    os.mkfifo("pipe.csv")
    for words in ("predict --model gpt2 --gpu pipe.yaml", "predict --model gpt2 --gpu /dev/zero", "gpus \x1b[31m"):
        command = [sys.executable, "-m", "predictor", *words.split()]
        done = subprocess.run(command, text=True, check=False, capture_output=True, timeout=60)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), words
        assert "\x1b" not in done.stderr
    all_refused([("evaluate workloads pipe.csv", "is a pipe, not a plain file", {})])
