"""SimuMax' measured efficiencies (MooreThreads/SimuMax, Apache-2.0): training's products and attention on A100 PCIe.

Layout configs/system/a100_pcie.json; an efficiency is a share of 312 TFLOP/s, by the shape in its key. The time is
FLOPs / (share x peak). Products come in three layouts: TN forward, NN of the input's gradient, NT of the weight's,
which adds to an fp32 gradient ("accumulates": C is read and written in fp32, which no operator of ours says).

Attention's efficiencies pass 1, so that causal products are counted in full: 2 s^2 (key width + value width) FLOPs a
head. Backward does not say how it counts, 2.5 times forward gives 1.9 to 3.3 times its time: flagged "flops_unknown".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from predictor.data.importers.base import Collector, ImportResult, collect, find, flag_below_bound
from predictor.errors import SpecError
from predictor.files.extras import require
from predictor.files.read import keyed, read_json

EXPECTED = "configs/system/a100_pcie.json"

#: File -> catalogue id. Source: its mem_gbs of 80 and pcie network.
GPUS = {"a100_pcie": "a100-pcie-80gb"}
_TABLES = ("matmul", "group_matmul", "sdp_fwd", "sdp_bwd")
#: Backward over forward FLOPs of attention where nothing is said: five products for two (arXiv:2307.08691, section 3).
_BACKWARD = 2.5
_STAGES = {"fwd": "tn", "bwd_grad_act": "nn", "bwd_grad_w": "nt"}


def run(root: Path) -> ImportResult:
    """Imports every system's measured efficiencies below `root`. Raises SpecError where there is none."""
    files = [path for path in find(root, ("**/configs/system/*.json",)) if path.stem in GPUS]
    result = collect("simumax", root, files, EXPECTED, _import_file).result()
    flag_below_bound(result.frame)
    return result


def _import_file(into: Collector, path: Path) -> None:
    try:
        tables = read_json(path)["accelerator"]["op"]
        rows = [row for name in _TABLES for row in _rows(path, name, tables[name])]
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path} cannot be read as a system of SimuMax: {error!r}") from None
    names = sorted({name for row in rows for name in row})
    cells = require("pandas").DataFrame({name: [row.get(name) for row in rows] for name in names})
    about = {"framework": "pytorch", "protocol": "unknown", "cache_state": "unknown", "dtype": "bf16"}
    into.add(path, cells, {"gpu": GPUS[path.stem], **about, **cells})


def _rows(path: Path, name: str, table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for key, share in table["accurate_efficient_factor"].items():
        pairs = [part.partition("=")[::2] for part in key.replace(" ", "").split(",")]
        cells = keyed(pairs, f"{path}, {name} {key!r}")
        shape, flops, flag = (_attention if name.startswith("sdp") else _product)(name, cells)
        yield {**shape, "kernel_source": name, "latency_ms": flops / (share * table["tflops"] * 1e9), "flag": flag}


def _product(name: str, cells: Mapping[str, str]) -> tuple[dict[str, Any], float, str]:
    """(operator, FLOPs, flag) of a product; groups of a grouped one have M rows each."""
    grouped = name == "group_matmul"
    m, n, k = (int(cells[size.upper() if grouped else size]) for size in "mnk")
    batch = int(cells["ng" if grouped else "b"])
    layout = _STAGES[cells["stage"]] if grouped else cells["layout"].lower()
    shape = {
        "op": "gemm", "kind": "grouped" if grouped else "linear", "layout": layout, "bias": False, "batch": batch,
        "m": m, "n": n, "k": k,
    }  # fmt: skip
    return shape, 2.0 * batch * m * n * k, "accumulates" if cells["accumulate"] == "True" else ""


def _attention(name: str, cells: Mapping[str, str]) -> tuple[dict[str, Any], float, str]:
    """(operator, FLOPs, flag) of causal attention."""
    batch, length, heads, kv_heads, width, values = (
        int(cells[word]) for word in ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim")
    )
    backward = name == "sdp_bwd"
    shape = {
        "op": "attention", "batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": length, "kv_len": length,
        "head_dim": width, "v_head_dim": values, "causal": True, "phase": "backward" if backward else "forward",
    }  # fmt: skip
    flops = 2.0 * batch * heads * length**2 * (width + values)
    return shape, flops * (_BACKWARD if backward else 1.0), "flops_unknown" if backward else ""
