"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = [
    "predictor",
    "predictor.simulate.breakdown",
    "predictor.api",
    "predictor.errors",
    "predictor.hardware.gpu",
    "predictor.hardware.what_if",
    "predictor.report.wording",
    "predictor.ops.roofline",
    "predictor.ops.tiling",
    "predictor.files.units",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0, f"{name} has no example"
    assert result.failed == 0
