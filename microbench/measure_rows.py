"""A case's operator as the cells of a row; no torch."""

from __future__ import annotations

import json
from typing import Any

from microbench.case import Case, op_cells
from microbench.own_ops import OWN


def shape_cells(case: Case) -> dict[str, Any]:
    """The operator's cells: columns of the schema, or the `shape` column for an operator of the harness alone."""
    cells = op_cells(case.op)
    if cells["op"] not in OWN:
        return cells
    name, dtype = cells.pop("op"), cells.pop("dtype")
    shared = {"phase": cells["phase"]} if "phase" in cells else {}
    return {"op": name, "dtype": dtype, "shape": json.dumps(cells, sort_keys=True), **shared}
