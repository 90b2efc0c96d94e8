"""benchmarks/compare_tables.py: lines of pages of tables, matched by their words and judged by their means."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "compare_tables.py"
HEAD = "| operator | gpu | n | mean | median |\n| --- | --- | --: | --: | --: |\n"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_tables", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(*rows: str, title: str = "Shapes held out (a command)") -> str:
    return f"# Tables\n\n## {title}\n\nWords.\n\n{HEAD}" + "".join(f"| {row} |\n" for row in rows)


def test_lines_are_matched_by_their_words_and_worse_ones_are_listed_worst_first(script: ModuleType) -> None:
    before = page("gemm | a | 10 | 3.00 % | 1 %", "gemm | b | 10 | 5.00 % | 1 %", "moe | a | 10 | 4.00 % | 1 %")
    after = page(
        "moe | a | 12 | 4.50 % | 1 %", "gemm | a | 10 | 3.50 % | 1 %", "gemm | b | 10 | 4.00 % | 9 %",
        "new | a | 1 | 99 % | 1 %",
    )  # fmt: skip
    table, *worse = script.compared(before, after)[2:]
    assert table == "| Shapes held out | 3, 4 | 3 | 4.00 % | 4.00 % | 1 | 1 | 1 | 0 |"
    listed = [line for line in worse if line.startswith("| ") and "before" not in line and "---" not in line]
    assert listed == ["| gemm / a | 10 | 3.00 % | 3.50 % | +0.50 |", "| moe / a | 10, 12 | 4.00 % | 4.50 % | +0.50 |"]


def test_a_move_within_the_limit_is_none_and_a_line_that_comes_twice_is_matched_in_turn(script: ModuleType) -> None:
    twice = page("gemm | a | 10 | 3.00 % | 1 %") + "\n" + HEAD + "| gemm | a | 10 | 9.00 % | 1 % |\n"
    moved = twice.replace("3.00 %", "3.19 %").replace("9.00 %", "8.00 %")
    assert script.compared(twice, moved)[2] == "| Shapes held out | 2, 2 | 2 | 6.00 % | 5.59 % | 0 | 1 | 0 | 0 |"


def test_medians_of_collectives_are_lines(script: ModuleType) -> None:
    text = "## Collectives (a command)\n\n```text\nA100 left out: headline 5.1 % (10 rows)\n"
    text += "    below 1 MiB: all 14.1 (mean 17.6, signed -11.9, n 412); NCCL 15.6 (n 304)\n```\n"
    ((_, lines),) = script.sections(text)
    assert [(line.words[1:], line.rows, line.error) for line in lines] == [
        (("A100", "headline"), "10", 5.1), (("A100", "below 1 MiB"), "412", 14.1),
    ]  # fmt: skip
