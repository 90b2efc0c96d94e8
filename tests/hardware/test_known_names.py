"""Names of boards as drivers, engines, benchmarks and clouds write them: `predictor/hardware/known_names.csv`."""

from __future__ import annotations

import pytest

from predictor.errors import UnknownNameError
from predictor.hardware import known_names
from predictor.hardware.gpu import gpus_of, list_gpus, load_gpu
from predictor.hardware.known_names import ALIAS, COLUMNS, KNOWN_NAMES, TABLE

ROWS = tuple(KNOWN_NAMES.rows.values())


def test_the_table_is_plain() -> None:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    assert lines[0].split(",") == list(COLUMNS)
    assert all(line.count(",") == len(COLUMNS) - 1 and '"' not in line for line in lines)
    assert len(lines) - 1 == len(ROWS), "every name once"
    assert all(row.source and row.name == row.name.strip() for row in ROWS)
    assert sum(row.gpus >= 1 and row.source != ALIAS for row in ROWS) > 280


def test_every_name_of_whole_gpus_is_one_board() -> None:
    """Of a name with an alias's spelling ("A100") the alias decides."""
    for row in ROWS:
        if row.gpus >= 1:
            assert load_gpu(row.name).id == row.board, row.name
            assert gpus_of(row.name) == row.gpus, row.name
            assert load_gpu(row.name.upper().replace(" ", "_")).id == row.board


@pytest.mark.parametrize("row", [row for row in ROWS if row.gpus < 1], ids=lambda row: row.name)
def test_a_name_of_no_whole_gpu_says_what_it_is(row: known_names.KnownName) -> None:
    with pytest.raises(UnknownNameError, match="expected") as caught:
        load_gpu(row.name)
    assert row.name in str(caught.value) and "\n" not in str(caught.value)
    if row.gpus:
        assert row.board in str(caught.value)


def test_aliases_are_those_of_the_files() -> None:
    stated = {alias: name for name in list_gpus() for alias in load_gpu(name).aliases}
    assert dict(KNOWN_NAMES.aliases()) == stated, "known_names.csv has a row for each alias of a board's file"


@pytest.mark.parametrize(
    ("name", "board", "gpus"),
    [
        ("p5.48xlarge", "h100-sxm", 8), ("a2-megagpu-16g", "a100-sxm-40gb", 16), ("g6e.12xlarge", "l40s", 4),
        ("Standard_ND96isr_H200_v5", "h200-sxm", 8), ("NVIDIA GeForce RTX 3060", "rtx-3060-12gb", 1),
        ("AMD Instinct MI250X/MI250", "mi250", 1), ("PCI 1002:74a1", "mi300x", 1), ("Orin", "jetson-agx-orin-64gb", 1),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", "rtx-5090-laptop", 1), ("GH200", "gh200-96gb", 1),
        ("Intel(R)_Arc(TM)_Pro_B60_Graphics", "b60", 1), ("nvidia l4", "l4", 1), ("a100", "a100-sxm-80gb", 1),
    ],
)  # fmt: skip
def test_names_by_hand(name: str, board: str, gpus: int) -> None:
    assert (load_gpu(name).id, gpus_of(name)) == (board, gpus)


def test_a_slice_is_no_gpu() -> None:
    with pytest.raises(UnknownNameError, match=r"slice, 1 of 7 parts with 5 GB: expected a whole GPU, such as"):
        load_gpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb")


def test_an_id_opens_no_other_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start with a board's id reads that board alone; one with another name the table beside it."""
    opened: list[str] = []
    real = known_names.read_text

    def noting(path: object, *words: object) -> str:
        opened.append(str(path))
        return real(path, *words)  # type: ignore[arg-type]

    monkeypatch.setattr(known_names, "read_text", noting)
    monkeypatch.setattr("predictor.hardware.gpu.KNOWN_NAMES", known_names.KnownNames(TABLE))
    assert load_gpu("rtx-a5500").id == "rtx-a5500" and opened == []
    assert known_names.KnownNames(TABLE).board("p5.48xlarge") == "h100-sxm" and opened == [str(TABLE)]
