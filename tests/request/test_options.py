"""The table of words: what a person meets of a word, anywhere, is derived from its row."""

from __future__ import annotations

import argparse
from dataclasses import field, fields, make_dataclass
from inspect import signature
from pathlib import Path

import pytest

import predictor
from predictor.cli import completion
from predictor.cli.arguments import option_of
from predictor.cli.main import build_parser, main
from predictor.cli.serve_plan import _CHOSEN
from predictor.errors import RequestError, SpecError
from predictor.files.arguments import Parser
from predictor.models.base import CACHED
from predictor.request import options
from predictor.request.options import (
    OPTIONS,
    OUTPUTS,
    PLAN,
    SERVE,
    WORKLOAD,
    Option,
    Words,
    options_of,
    row,
    words_of,
    words_of_modes,
)
from predictor.request.parallelism import Parallelism
from predictor.request.request import Request, of_words
from predictor.request.serving import Serving
from predictor.request.training import Training
from predictor.request.workload import Workload
from predictor.ui.fields import fields_of

#: A class of words with one more, as a new row makes it.
TOY = make_dataclass(
    "Toy",
    [("toy", "str", field(default="plain", metadata=row(
        WORKLOAD, "what is a toy: {choices}", choices=("plain", "fancy"), modes=("train",), unit="KIND",
        verbs=(SERVE, PLAN), common=True)))],
    bases=(Request,), kw_only=True,
)  # fmt: skip


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Option:
    """The toy's option, in the table."""
    found = options_of(TOY)["toy"]
    monkeypatch.setitem(OPTIONS, "toy", found)
    return found


def parser_of(*verb: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = build_parser(verb[0])
    for word in verb:
        parser = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices[word]
    return parser


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_every_option_of_predict_comes_from_the_table() -> None:
    beside = {"help", "version", "help_all", "force"}
    actions = {action.dest: action for action in parser_of("predict")._actions if action.dest not in beside}
    assert list(actions) == [*OPTIONS, *OUTPUTS]
    for name, action in actions.items():
        option = (OPTIONS | OUTPUTS)[name]
        assert action.option_strings == [option.flag], name
        assert (action.default, action.required) == (option.default, option.required), name
        assert action.help == option.text.replace("%", "%%"), name


def test_a_request_has_no_word_of_its_own() -> None:
    assert [one.name for one in fields(Request)] == [one.name for one in fields(Words)] == list(OPTIONS)
    assert list(signature(predictor.predict).parameters) == list(OPTIONS)


@pytest.mark.parametrize("verb", [("predict",), ("compare",), ("plan",), ("serve", "plan"), ("serve", "simulate")])
def test_a_new_row_is_an_option_of_every_verb_that_takes_it(
    toy: Option, verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    action = next(action for action in parser_of(*verb)._actions if action.dest == "toy")
    assert (action.option_strings, action.default, action.metavar) == (["--toy"], "plain", "KIND")
    modes = "" if verb[0] in ("plan", "serve") else "train; "
    assert f"what is a toy: plain, fancy ({modes}default plain)" in printed(capsys, *verb, "--help")


def test_a_new_row_is_a_field_of_the_page(toy: Option) -> None:
    found = next(one for one in fields_of(OPTIONS.values()) if one.name == "toy")
    assert (found.help, found.default, found.choices) == (toy.text, "plain", ("plain", "fancy"))
    assert found.modes == ("train",) and found.common
    with pytest.raises(RequestError, match=r"--toy 'fanci': expected one of plain, fancy; nearest: fancy"):
        found.read("fanci")


def test_a_new_row_is_a_word_of_a_search_on_the_page(toy: Option) -> None:
    from predictor.cli.ui import searches

    for kind in searches():
        found = next(one for one in kind.fields if one.name == f"{kind.name}.toy")
        assert (found.default, found.choices) == ("plain", ("plain", "fancy"))


def test_a_new_row_is_completed(toy: Option) -> None:
    shtab = pytest.importorskip("shtab", reason="extra 'completion'")
    assert shtab
    script = completion.script(parser_of("predict"), "predict", "bash")
    assert " --toy " in script and "__toy_choices=(plain fancy)" in script


def test_a_new_row_is_a_word_of_python() -> None:
    @of_words(TOY)
    def answer(asked: Request) -> str:
        return str(asked.toy)  # type: ignore[attr-defined]

    assert signature(answer).parameters["toy"].default == "plain"
    assert answer("gpt2", "h100", toy="fancy") == "fancy"  # type: ignore[call-arg]


def test_a_new_row_is_a_key_of_a_sweep(toy: Option, tmp_path: Path) -> None:
    from predictor.sweep.spec import read_spec

    file = tmp_path / "sweep.yaml"
    file.write_text("model: gpt2\ngpu: h100\ntoy: [plain, fancy]\n", encoding="utf-8")
    assert [point["toy"] for point in read_spec(file).points] == ["plain", "fancy"]
    file.write_text("model: gpt2\ngpu: h100\ntoi: plain\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"unknown word 'toi'.*nearest: toy"):
        read_spec(file)


def test_a_new_row_is_a_column_of_a_suite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cell of a word's column is read by its row: text, whole number, number; empty is the default."""
    from predictor.fit import suite

    asked: list[dict[str, object]] = []
    monkeypatch.setattr(suite, "Request", lambda **words: (asked.append(words), Request("gpt2", "h100", seq_len=64))[1])
    monkeypatch.setitem(OPTIONS, "toy", options_of(TOY)["toy"].with_row(column="toy_kind"))
    row = {"config": "gpt2", "gpu": "h100", "mode": "forward", "tp": "2", "memory_fraction": "0.5", "dtype": "fp16"}
    for cell, expected in (("fancy", "fancy"), ("", "plain")):
        suite.case_forecast(row | {"toy_kind": cell}, tmp_path, "roofline")
        words = asked.pop()
        assert words["toy"] == expected
        assert (words["tp"], words["pp"], words["batch"]) == (2, 1, None)
        assert (words["memory_fraction"], words["dtype"], words["kv_dtype"]) == (0.5, "fp16", None)


def test_columns_of_suites_and_words_of_plans_are_those_of_the_table() -> None:
    from predictor.fit.suite import COLUMNS
    from predictor.search.training.space import WORDS, ParallelPlan, read_only

    assert {option.row.column for option in OPTIONS.values()} - {""} < set(COLUMNS)
    assert len(set(COLUMNS)) == len(COLUMNS)
    assert {one.name for one in fields(ParallelPlan)} - {"stage_layers"} == set(WORDS) < set(OPTIONS)
    held = read_only(["tp=2,4", "sp=true", "shard=zero1,zero3", "recompute=full:1-of-2"])
    assert held == {"tp": (2, 4), "sp": (True,), "shard": ("zero1", "zero3"), "recompute": ("full:1-of-2",)}
    with pytest.raises(RequestError, match=r"--schedule '1f2b': expected one of .*; nearest: 1f1b"):
        read_only(["schedule=1f2b"])


#: Words of training that other modes refuse -> a value that is not the default.
TRAINING = {"optimizer": "sgd", "micro_batch": 2, "recompute": "full", "offload_layers": 1, "lora": 8,
            "lora_targets": "all", "mean_len": 16, "masked_tokens": 4, "capacity_factor": 1.5,
            "cuda_graphs": "layer"}  # fmt: skip


@pytest.mark.parametrize("name", TRAINING)
def test_a_word_of_training_is_refused_elsewhere(name: str) -> None:
    """A word that a mode does not take is an error; `--optimizer sgd` changed nothing, without a word."""
    of_training = {each.name for each in fields(Training)} - {"micro_batch_assumed"}
    of_degrees = {each.name for each in fields(Parallelism)}
    assert of_training == set(words_of_modes(options.TRAIN)) - of_degrees == set(TRAINING)
    with pytest.raises(RequestError, match=f"{OPTIONS[name].flag} .*: only --mode train takes it"):
        predictor.predict("gpt2", "h100", seq_len=64, **{name: TRAINING[name]})


def test_the_words_of_serving_are_those_that_modes_with_a_cache_take() -> None:
    """Which record a word goes into follows from the modes of its row."""
    of_serving = {each.name.removesuffix("_s") for each in fields(Serving)} - {"mode", "kv_dtype_source"}
    assert of_serving == set(words_of_modes(CACHED))


#: What objects of a class need beside the word that is looked at.
NEEDS: dict[type[object], dict[str, object]] = {
    Workload: {"batch": 1, "seq_len": 8, "dtype": "bf16", "execution": "eager", "attention": "math"},
    Serving: {"mode": "decode", "kv_dtype": "bf16"},
}
#: Words that a release, a checkpoint, an alias or a file says more of than their row.
READ_ELSEWHERE = {"execution", "dtype", "kv_dtype", "system", "mode"}
CHECKED = [
    pytest.param(kind, option, id=f"{kind.__name__}-{option.name}")
    for kind in (Workload, Training, Serving, Parallelism)
    for option in OPTIONS.values()
    if option.name in {each.name for each in fields(kind)} - READ_ELSEWHERE
    and (option.kind in ("whole", "switch") or option.choices)
]


@pytest.mark.parametrize(("kind", "option"), CHECKED)
def test_a_value_that_its_row_does_not_allow_is_refused(kind: type[object], option: Option) -> None:
    """Each class repeated ranges and choices in lines of its own; --offload-layers and --mean-len had no end."""
    words = NEEDS.get(kind, {})
    wrong: list[object] = []
    if option.kind == "whole":
        assert option.row.least is not None and option.row.most is not None
        wrong = [option.row.least - 1, option.row.most + 1, "x", True, 1.5]
    elif option.kind == "switch":
        wrong = [1, "yes"]
    elif option.choices:
        wrong = ["of no list", 3]
    for value in wrong:
        with pytest.raises(RequestError, match=f"^{option.flag} .*: expected"):
            kind(**{**words, option.name: value})


def test_help_explains_ten_options_and_names_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    common = {name for name, option in OPTIONS.items() if option.row.common}
    assert len(common) == 10
    short, whole = printed(capsys, "predict", "--help"), printed(capsys, "predict", "--help-all")
    for name, option in (OPTIONS | OUTPUTS).items():
        text = "".join(option.text.split())  # lines break at hyphens, too
        assert option.flag in short and text in whole.replace(" ", ""), name
        assert (text in short.replace(" ", "")) == (name in common), name
    for group in options.GROUPS[:-1]:
        assert f" {group}: " in short
    assert all(f" {group}: " in whole for group in options.GROUPS)
    assert "more options, which --help-all explains" in short and "examples: predict" in short


#: Verb -> the rows that it has beside a model, a GPU and words of a run.
VERBS = {
    ("plan",): (words_of(PLAN), options.PLANS),
    ("serve", "simulate"): (words_of(SERVE), options.TRAFFIC | options.GOALS | options.SIMULATIONS),
    ("serve", "plan"): (tuple(set(words_of(SERVE)) - set(_CHOSEN)), options.GOALS | options.SERVE_PLANS),
}


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_option_of_a_verb_comes_from_the_table(verb: tuple[str, ...]) -> None:
    words, rows = VERBS[verb]
    assert set(words) < set(OPTIONS)
    parser = parser_of(*verb)
    assert isinstance(parser, Parser)
    beside = {"help", "version", "force"}
    actions = {action.dest: action for action in parser._actions if action.dest not in beside}
    assert set(actions) == {"model", "gpu", *words, *rows}
    for name, option in rows.items():
        assert actions[name].option_strings == [option.flag] and actions[name].default == option.default, name
        assert actions[name].required == option.required, name
        assert option.row.writes is not None or option_of(actions[name]) is not None, name
        assert (verb == ("plan",) and name == "only") or actions[name].help == option.text.replace("%", "%%"), name


BOUNDED = [
    (" ".join(verb), option) for verb, (_, rows) in VERBS.items() for option in rows.values()
    if (option.row.least, option.row.most, option.row.above) != (None, None, None)
]  # fmt: skip


@pytest.mark.parametrize(("verb", "option"), BOUNDED, ids=[f"{verb} {option.name}" for verb, option in BOUNDED])
def test_a_number_of_a_verb_stays_within_its_row(verb: str, option: Option) -> None:
    row = option.row
    wrong: list[object] = [True, "4"]
    wrong += [] if row.least is None else [row.least - 1]
    wrong += [] if row.most is None else [row.most + 1]
    wrong += [] if row.above is None else [row.above, row.above - 1.0]
    wrong += [float("nan"), float("inf")] if option.kind == "real" else [1.5]
    for value in wrong:
        with pytest.raises(RequestError, match=f"^{option.flag} .*: expected"):
            option.check(value)
    for value in (row.least, row.most, None if row.above is None else row.above + 0.5):
        if value is not None:
            option.check(value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan --num-gpus 8 --global-batch 8 --objective money", "--objective 'money': expected one of time, cost"),
        ("plan --num-gpus 8 --global-batch 8 --emit slurm", "--emit 'slurm': expected one of megatron, torchtitan"),
        ("plan --num-gpus 8 --global-batch 8 --top 0", "--top 0: expected at least 1"),
        ("serve simulate --rate 0 --isl 9 --osl 9", "--rate 0: expected a number above 0 and at most 1,000,000"),
        ("serve simulate --rate 4 --isl 9 --osl 9 --range 1.5", "--range 1.5: expected a number above 0 and at most 1"),
        ("serve simulate --trace x.csv --seed -1", "--seed -1: expected 0 or more"),
        ("serve simulate --rate 4 --isl 9 --osl 9 --arrivals x", "--arrivals 'x': expected one of poisson, gamma"),
        ("serve plan --num-gpus 8 --isl 9 --osl 9 --disaggregated x", "--disaggregated 'x': expected one of also"),
        ("serve plan --num-gpus 8 --isl 9 --osl 9 --rate -1", "--rate -1: expected a number at least 0"),
        ("serve plan --num-gpus 8 --isl 9 --osl 9 --top 1001", "--top 1001: expected at most 1,000"),
    ],
)
def test_what_a_verbs_row_does_not_allow_is_one_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "--model", "gpt2", "--gpu", "h100"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {said}") and error.count("\n") == 1, error
