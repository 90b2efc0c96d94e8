"""Measured rows in the dataset's schema, CSV or parquet, with their sidecar: cells and columns changed, or damaged."""

from __future__ import annotations

import csv
import io
import json

from hypothesis import strategies as st

from tests.fuzzing.case import Case, seed
from tests.fuzzing.changes import ODD, changed_tree, damaged_bytes, damaged_text
from tests.fuzzing.kinds.traces import _changed_rows
from tests.fuzzing.targets import ask_words

NEEDS = ("pandas", "pyarrow")
WORDS = ("evaluate kernels {0} --artifacts roofline --json", "dataset describe {0} --json")


def _parquet(content: bytes) -> bytes:
    """The same rows as parquet, every cell a text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(csv.reader(io.StringIO(content.decode("utf-8"))))
    width = len(rows[0])
    columns = list(zip(*[(row + [""] * width)[:width] for row in rows[1:]], strict=True)) or [()] * width
    out = io.BytesIO()
    pq.write_table(pa.table([pa.array(column, pa.string()) for column in columns], names=rows[0]), out)
    return out.getvalue()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    text = seed("rows.csv").decode("utf-8")
    content = draw(damaged_text(text)) if not draw(st.integers(0, 2)) else _changed_rows(draw, "rows.csv", text)
    name = "rows.csv"
    if not draw(st.integers(0, 3)):
        try:
            content, name = _parquet(content), "rows.parquet"
        except (UnicodeDecodeError, IndexError, ValueError, csv.Error):
            name = "rows.parquet"  # not to be packed: bytes of another kind under its name
        if not draw(st.integers(0, 3)):
            content = draw(damaged_bytes(content))
    sidecar = b'{"schema_version": 1}'
    if not draw(st.integers(0, 5)):
        sidecar = json.dumps(draw(changed_tree({"schema_version": 1, "devices": {"x": "id: y"}}, values=ODD))).encode()
    files = {name: content, f"{name}.meta.json": sidecar}
    return Case("rows", files, draw(st.sampled_from(WORDS)).format(name).split())


ask = ask_words
