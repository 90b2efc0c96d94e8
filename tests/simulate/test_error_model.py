"""How far a whole forecast may be off: parts of an error, by what is known of the request."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from predictor.errors import SpecError
from predictor.forecast.forecast import Forecast, forecast
from predictor.request.request import Request
from predictor.simulate import error_model as module
from predictor.simulate.error_model import (
    BOARD,
    DECODE,
    ENGINE,
    HOST,
    KERNELS,
    KINDS,
    LEAST,
    MODULES,
    PARTS,
    RELEASE,
    TRAIN,
    UNSEEN,
    WORDS,
    ErrorModel,
    Facts,
    error_model,
)
from predictor.simulate.interval import facts_of, interval_of, range_of

MODEL = ErrorModel(
    dict.fromkeys(PARTS, 0.0) | {KERNELS: 0.5, DECODE: 0.03},
    dict.fromkeys(KINDS, (-1.0, 0.5, 2.0)),
    {BOARD: 0.5, ENGINE: 0.5},
)


def asked(model: str = "llama-3.1-8b", gpu: str = "h100", **words: Any) -> Forecast:
    base: dict[str, Any] = {"mode": "decode", "batch": 8, "context_len": 1000, "execution": "vllm", "dtype": "bf16"}
    return forecast(Request(model, gpu, **(base | words)).run())


def known(found: Forecast) -> Facts:
    assert found.spread is not None
    return facts_of(found.spread, found.run)


def why(found: Forecast) -> str:
    (line,) = [note for note in found.prediction.notes if note.startswith("The interval is ") and "most of it" in note]
    return line


def test_parts_join_as_what_knows_nothing_of_each_other() -> None:
    facts = Facts(DECODE, {KERNELS: (0.08, 0.2), DECODE: (1.0, 1.0)})
    low, high = MODEL.ends(facts)
    assert low == pytest.approx(-math.sqrt(0.04**2 + 0.03**2 + LEAST**2))
    assert high == pytest.approx(2.0 * math.sqrt(0.1**2 + 0.03**2 + LEAST**2))
    assert MODEL.ends_and_median(facts) == (low, pytest.approx(high / 4.0), high)
    assert MODEL.largest(facts) == KERNELS
    assert MODEL.largest(facts.without(KERNELS)) == DECODE
    column = Facts(DECODE, {KERNELS: (np.array([0.08, 0.0]), np.array([0.2, 0.0])), DECODE: (1.0, 1.0)})
    assert MODEL.ends(column)[0] == pytest.approx([low, -math.hypot(0.03, LEAST)])


def test_the_interval_is_that_of_the_facts_and_holds_the_forecast() -> None:
    found = asked()
    assert found.spread is not None
    low, high = error_model().ends(known(found))
    assert found.prediction.interval_s == pytest.approx([found.latency_s * math.exp(end) for end in (low, high)])
    assert found.prediction.interval_s == interval_of(found.spread, found.run)
    assert found.prediction.median_s == range_of(found.spread, found.run)[1]
    median = math.log(found.prediction.median_s / found.latency_s)
    assert low < median < high and low < 0.0 < high
    assert f"(the median {math.expm1(median) * 100:+.0f} %)" in why(found)


def test_what_a_request_leaves_open_widens_it_and_the_answer_says_so() -> None:
    open_release, given = asked(), asked(software="vllm 0.24")
    assert RELEASE in known(open_release).sizes and RELEASE not in known(given).sizes
    (low, high), (least, most) = (error_model().ends(known(each)) for each in (open_release, given))
    assert low < least and high > most
    line = why(open_release)
    assert WORDS[error_model().largest(known(open_release))] in line and "--software" in line
    assert line.endswith(f"would make it {math.expm1(least) * 100:+.0f} % to {math.expm1(most) * 100:+.0f} %.")
    assert "--software" not in why(given)


def test_a_launch_overhead_that_was_given_is_no_part_of_it() -> None:
    assumed = asked("gpt2", mode="prefill", batch=1, context_len=None, seq_len=16, execution="eager")
    given = asked(
        "gpt2", mode="prefill", batch=1, context_len=None, seq_len=16, execution="eager", launch_overhead="6us"
    )
    assert known(assumed).sizes[HOST][1] > 0.1 > known(given).sizes[HOST][1]
    assert "--launch-overhead" in why(assumed) and "--launch-overhead" not in why(given)


def test_a_generation_that_nobody_measured_is_wider_and_named() -> None:
    measured, unseen = (asked(gpu=gpu, software="vllm 0.24") for gpu in ("h100", "rtx-a6000"))
    words = {"mode": "prefill", "context_len": None, "seq_len": 512, "execution": "eager", "launch_overhead": "6us"}
    strange = asked("gpt2", "rtx-2080-ti", dtype="fp16", **words)
    assert UNSEEN not in known(measured).sizes
    share = known(strange).sizes[UNSEEN][0]
    assert 0.0 < share <= 1.0
    assert error_model().ends(known(strange))[1] > error_model().ends(known(strange).without(UNSEEN))[1]
    assert error_model().ends(known(unseen))[1] > error_model().ends(known(measured))[1]
    assert "which nobody measured" in why(strange)
    assert "Rows of rtx-2080-ti" in why(strange)


def test_each_mode_has_a_kind_of_its_own() -> None:
    train = asked("gpt2", mode="train", batch=2, seq_len=64, context_len=None, execution="eager")
    assert (known(train).kind, known(asked()).kind) == (TRAIN, DECODE)


def test_the_model_that_ships_has_every_part_and_where_it_is_from() -> None:
    content = json.loads(module.FILE.read_text())
    assert set(content["scales"]) == set(PARTS) and set(content["factors"]) == set(KINDS)
    assert content["written_by"].startswith("benchmarks/accuracy_intervals.py") and len(content["rows"]["sha256"]) == 64
    assert content["apart"].keys() == {BOARD, ENGINE}
    modules, steps = (error_model().ends(Facts(kind, {kind: (1.0, 1.0)})) for kind in (MODULES, DECODE))
    assert modules[1] - modules[0] > steps[1] - steps[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": 9}, "schema_version is 9, expected 2"),
        ({"scales": {}}, "is incomplete: 'kernels'"),
        ({"scales": dict.fromkeys(PARTS, -1.0)}, "expected numbers of at least 0"),
        ({"factors": dict.fromkeys(KINDS, (0.5, 0.7, 1.0))}, "expected one below 0, one above"),
        ({"factors": dict.fromkeys(KINDS, (-0.5, 1.5, 1.0))}, "and the median's between them"),
        ({"apart": {BOARD: 0.0, ENGINE: 1.0}}, "expected parts of 1"),
    ],
)
def test_a_file_that_is_no_model_is_one_line(
    change: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "error_model.json"
    path.write_text(json.dumps(json.loads(module.FILE.read_text()) | change))
    monkeypatch.setattr(module, "FILE", path)
    with pytest.raises(SpecError, match=r"error_model\.json") as raised:
        error_model.__wrapped__()
    assert said in str(raised.value) and "\n" not in str(raised.value)
