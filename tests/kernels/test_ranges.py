"""Numbers of a set outside of what physics allows are one line, whichever they are."""

from __future__ import annotations

import copy
import importlib
import json
import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.errors import SpecError
from predictor.fit.publish import write_estimator
from predictor.forecast.forecast import Forecast
from predictor.hardware.gpu import load_gpu
from predictor.kernels import ranges
from predictor.kernels.artifact import KINDS, default_artifacts
from predictor.kernels.base import Batch, predict_kernels
from predictor.kernels.collective.core import Own
from predictor.kernels.device import Device
from predictor.kernels.gemm_fp32.core import BoardConstants
from predictor.kernels.interval import FILE
from predictor.kernels.named import Named
from predictor.kernels.stored import MANIFEST
from predictor.ops.gemm import Gemm

#: Keys of manifests whose numbers no forecast reckons with.
SAID = {"schema_version", "rows", "fitted_rows", "core_rows", "probes", "shapes_covered", "files"}
#: What no number of a set may be.
WRONG = (math.nan, math.inf, -math.inf, 1e20, -1e20, 10**400, "0.5", None, True)


def numbers(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where numbers stand in a tree."""
    inside = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inside:
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield (*at, key)
        else:
            yield from numbers(value, (*at, key))


def shipped() -> dict[str, tuple[dict[str, Any], ranges.Rules]]:
    """The texts of the shipped set, each with its rules."""
    home = default_artifacts()
    files = dict.fromkeys(sorted(home.glob(f"*/{MANIFEST}")), ranges.MANIFEST)
    files |= dict.fromkeys(sorted(home.glob(f"*/{FILE}")), ranges.INTERVALS)
    return {str(path.relative_to(home)): (json.loads(path.read_text()), rules) for path, rules in files.items()}


FILES = shipped()
PLACES = [(name, at) for name, (content, _) in FILES.items() for at in numbers(content) if at[0] not in SAID]


def test_the_shipped_set_is_within_its_ranges() -> None:
    for name, (content, rules) in FILES.items():
        ranges.check(name, content, rules)
    assert len(PLACES) > 5000
    for wrong in ([1.0, math.nan, 2.0], [math.nan], [1.0, 10**400], [[1.0, 0.0]], [1.0, "2"], {"a": [None]}):
        with pytest.raises(SpecError, match="expected a number from 1 to 1e"):
            ranges.check(MANIFEST, {"grids": wrong}, ranges.MANIFEST)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PLACES), st.sampled_from(WRONG))
def test_no_number_of_a_set_may_be_anything(place: tuple[str, tuple[Any, ...]], wrong: Any) -> None:
    name, at = place
    content, rules = FILES[name]
    top = copy.deepcopy({at[0]: content[at[0]]})
    holder: Any = top
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = wrong
    with pytest.raises(SpecError) as caught:
        ranges.check(name, top, rules)
    said = str(caught.value)
    assert said.startswith(f"{name}: {', '.join(map(str, at))} is ") and "expected a number from" in said, said
    assert "\n" not in said and len(said) < 400


def forms() -> set[type[Named]]:
    """Every form of constants that an artifact holds."""
    classes: set[type[Named]] = {Own, BoardConstants}
    for name in KINDS.values():
        module = importlib.import_module(name.partition(":")[0])
        kind = getattr(module, name.partition(":")[2])
        classes |= set(getattr(kind, "forms", ()) or filter(None, [getattr(module, "Constants", None)]))
    return classes


@pytest.mark.parametrize("form", sorted(forms(), key=lambda form: form.__module__ + form.__name__))
def test_every_constant_has_a_range(form: type[Named]) -> None:
    tables = (ranges.CORES, ranges.MANIFEST["constants"], ranges.MANIFEST["systems"], ranges.BOARD)
    assert any(set(form.names()) <= set(table) for table in tables), form.names()


def test_every_scalar_of_a_board_has_a_range() -> None:
    assert {field.name for field in fields(Device)} == set(ranges.DEVICE)


def test_arrays_are_within_their_ranges() -> None:
    good = {
        "boards": np.array([[0.8, 0.0]]), "b0_thresholds": np.array([1e-5, math.inf, -3.0]), "a_at": np.ones((2, 3)),
        "a_weights": np.ones(2), "b0_nodes": np.zeros(3, dtype=np.uint16),
    }  # fmt: skip
    for name, array in good.items():
        ranges.check_array("weights.npz", name, array)
    for name, wrong in (
        ("boards", 1.0), ("b0_thresholds", 1e-5), ("other", [math.nan]),
        ("boards", [[0.0, 0.5]]), ("boards", [[0.8, -1.0]]), ("boards", [[0.8, math.nan]]),
        ("b0_thresholds", [math.inf, 1.0]), ("b0_thresholds", [-1.0, 1.0]), ("b0_thresholds", [1e-5, math.nan]),
        ("a_at", [[math.inf]]), ("a_weights", [1e300]), ("constants", [[1.0, 2.0]]), ("constants", [[0.0, 0.0]]),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=rf"^weights.npz: array '{name}'"):
            ranges.check_array("weights.npz", name, np.array(wrong))


def test_what_cannot_be_read_is_not_written(tmp_path: Path) -> None:
    manifest, _ = FILES["collective/" + MANIFEST]
    wrong = {**manifest, "host_s": {"*": -1.0}}
    with pytest.raises(SpecError, match=r"host_s, \* is -1.0; expected a number from 0 to 1"):
        write_estimator(tmp_path, wrong, {})
    assert not list(tmp_path.iterdir())
    write_estimator(tmp_path, manifest, {})


class Odd:
    """An estimator whose constants are each right, and together make no time."""

    name = "odd"

    def __init__(self, factor: float) -> None:
        self.factor = np.array([factor])

    def select(self, family: str, dtype: str) -> Odd:
        return self

    def seconds(self, batch: Batch, gpu: Any) -> Any:
        return np.exp(self.factor) * np.ones(len(batch.ops))


@pytest.mark.parametrize("factor", [math.nan, math.inf, 1e6])
def test_no_time_that_is_no_number_leaves(factor: float) -> None:
    op = Gemm(m=8, n=8, k=8, dtype="fp32")
    with pytest.raises(SpecError, match="estimator 'odd' gives no time of gemm: "):
        predict_kernels([op], load_gpu("t4"), Odd(factor))  # type: ignore[arg-type]
    assert predict_kernels([op], load_gpu("t4"), Odd(-20.0)).latency_s[0] > 0.0  # type: ignore[arg-type]


def test_a_forecast_that_is_no_number_is_no_answer() -> None:
    run = SimpleNamespace(config=SimpleNamespace(name="gpt2"), gpu=SimpleNamespace(id="t4"))
    plan, stages = SimpleNamespace(parallel=None), (SimpleNamespace(total_s=math.nan),)
    with pytest.raises(SpecError, match="the forecast of gpt2 on t4 is nan s; expected a number"):
        Forecast(run, plan, stages)  # type: ignore[arg-type]
