"""`microbench workload`: whole models, cell by cell of a suite, into a CSV of the ground-truth schema.

The suite and what is written have the same columns, so that a result can be evaluated as any published suite. A cell
is done when its row is in the file, which is replaced as a whole after every cell; what is there is not measured again.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from microbench.storage import FolderLock, make_folder, write_output
from microbench.supervisor import BenchWorker
from predictor.errors import RequestError, SpecError
from predictor.files.read import csv_header, inside, read_json, read_table_text
from predictor.formats.dtypes import canonical

#: The ground-truth schema, in its order; the columns from `measured_forward_ms` on are what the harness adds.
COLUMNS: tuple[str, ...] = (
    "suite", "case", "config", "mode", "gpu", "num_gpus", "gpus_per_node", "gpu_note", "dtype", "seq_len", "output_len",
    "context_len", "prompt_lens", "global_batch", "micro_batch", "tp", "pp", "dp", "cp", "ep", "vpp", "shard",
    "sequence_parallel", "recompute", "optimizer", "execution", "attention", "fused", "measured_ms", "peak_memory_gib",
    "assumed", "source", "licence", "measured_forward_ms", "measured_min_ms", "noise", "samples", "sm_clock_hz",
    "torch_version", "cuda_version", "driver", "transformers_version", "parameters", "_note",
)  # fmt: skip
#: What makes a cell; `case` names it for a reader.
KEY: tuple[str, ...] = (
    "config", "mode", "dtype", "seq_len", "context_len", "global_batch", "optimizer", "execution", "attention",
)  # fmt: skip
MODES = ("forward", "train", "prefill", "decode")
EXECUTIONS = ("eager", "cuda_graph")
Cell = dict[str, str]


@dataclass(slots=True)
class Outcome:
    """What a run of a suite did."""

    measured: int = 0
    known: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)


def read_suite(path: Path) -> list[Cell]:
    """The cells of a suite. Raises RequestError for an unreadable file, SpecError, one line, for a wrong cell."""
    text = read_table_text(path, "a CSV file of a suite", COLUMNS)
    cells = [{k: (v or "").strip() for k, v in row.items() if k} for row in csv.DictReader(io.StringIO(text))]
    if not cells:
        raise SpecError(f"the suite {path} has no rows")
    missing = [name for name in ("config", "mode", "dtype", "global_batch") if name not in cells[0]]
    if missing:
        raise SpecError(f"the suite {path} lacks the columns {', '.join(missing)}")
    return [_complete(path, number, cell) for number, cell in enumerate(cells, start=1)]


def _complete(path: Path, number: int, cell: Cell) -> Cell:
    """A cell with its defaults; refuses what the harness cannot measure."""
    where = f"the suite {path}, row {number}"
    cell = {name: cell.get(name, "") for name in COLUMNS} | {"suite": path.stem}
    cell["execution"] = cell["execution"] or "eager"
    cell["attention"] = cell["attention"] or "math"
    try:
        cell["dtype"] = canonical(cell["dtype"])
    except RequestError as error:
        raise SpecError(f"{where}: {error}") from None
    if cell["mode"] == "train":
        cell["optimizer"] = cell["optimizer"] or "none"
    for name, choices in (("mode", MODES), ("execution", EXECUTIONS), ("attention", ("math", "flash"))):
        if cell[name] not in choices:
            raise SpecError(f"{where}: {name} {cell[name]!r}: expected one of {', '.join(choices)}")
    if cell["mode"] == "train" and cell["optimizer"] not in ("none", "adam", "adam_fused", "sgd"):
        raise SpecError(f"{where}: optimizer {cell['optimizer']!r}: expected one of none, adam, adam_fused, sgd")
    for name in ("global_batch", "seq_len", "context_len"):
        if cell[name] and not (cell[name].isascii() and cell[name].isdigit() and 0 < int(cell[name]) < 10**9):
            raise SpecError(f"{where}: {name} {cell[name]!r}: expected a whole number above zero")
    if not cell["global_batch"]:
        raise SpecError(f"{where}: no global_batch")
    if cell["mode"] == "decode" and not cell["context_len"]:
        raise SpecError(f"{where}: decode needs a context_len")
    for name in ("num_gpus", "tp", "pp", "dp", "cp", "ep", "vpp"):
        if cell[name] not in ("", "1"):
            raise SpecError(f"{where}: {name} {cell[name]}: one GPU is measured here; expected 1")
    return cell


def name_of(cell: Mapping[str, str]) -> str:
    """A name for a cell that the suite did not name: "gpt2-forward-b8-s1024-bf16-eager"."""
    parts = [cell["config"], cell["mode"], f"b{cell['global_batch']}"]
    parts += [f"s{cell['seq_len']}"] if cell["seq_len"] else []
    parts += [f"c{cell['context_len']}"] if cell["context_len"] else []
    parts += [cell["dtype"], cell["execution"], cell["attention"]]
    return "-".join([*parts, cell["optimizer"]] if cell["optimizer"] not in ("", "none") else parts)


def read_config(configs: Path, name: str) -> dict[str, Any]:
    """`configs/NAME.json`. Raises RequestError or SpecError, one line."""
    path = inside(configs, f"{name}.json")
    document = read_json(path)
    if not document.get("architectures") or not document.get("model_type"):
        raise SpecError(f"the model {path} names no architectures or no model_type: expected a Hugging Face config")
    return document


def read_results(path: Path) -> list[Cell]:
    """The rows of an earlier run; none where there is no file. Raises RequestError for a file that is none of ours."""
    if not path.exists():
        return []
    try:
        names = set(csv_header(path))
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise RequestError(f"--out {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not {"gpu", "measured_ms", *KEY} <= names or not names <= set(COLUMNS):
        raise RequestError(f"--out {path} holds something else than results of workload: give another name")
    return [dict(row) for row in rows]


def failures_of(out: Path) -> Path:
    """The file beside the results that says which cells failed."""
    return out.with_name(out.name + ".failures.jsonl")


def to_csv(rows: list[Cell]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


class SuiteRun:
    """Measures a suite on one device. `say` gets one line a cell."""

    def __init__(
        self, suite: Path, out: Path, configs: Path | None, device: str, visible: str, threads: int,
        settings: dict[str, Any], cell_timeout_s: float, say: Any = print,
    ) -> None:  # fmt: skip
        self.cells = read_suite(suite)
        self.configs = configs or suite.parent / "configs"
        self.models = {cell["config"]: read_config(self.configs, cell["config"]) for cell in self.cells}
        self.out = out
        self.cell_timeout_s = cell_timeout_s
        self._say = say
        self._worker = BenchWorker(device, visible, threads, settings, "microbench.workload_worker")

    def run(self) -> Outcome:
        """Every cell that the output lacks. Raises TilecastError: no device, a locked folder, a full disk."""
        make_folder(self.out.resolve().parent)
        lock = FolderLock(self.out.resolve().parent)
        lock.acquire()
        try:
            return self._run()
        finally:
            self._worker.stop()
            lock.release()

    def _run(self) -> Outcome:
        outcome, rows = Outcome(), read_results(self.out)
        facts = self._worker.start()
        known = {_key(row) for row in rows if row.get("gpu") == facts["id"]}
        for cell in self.cells:
            cell["case"] = cell["case"] or name_of(cell)
            if _key(cell) in known:
                outcome.known += 1
                continue
            answer = self._worker.request({"cell": cell, "config": self.models[cell["config"]]}, self.cell_timeout_s)
            if answer.row is not None:
                rows.append(_result(cell, facts, answer.row))
                write_output(self.out, to_csv(rows))
                outcome.measured += 1
                self._say(f"{cell['case']}: {answer.row['measured_ms']:.3f} ms")
            else:
                outcome.failures.append({"case": cell["case"], **(answer.failure or {})})
                self._say(f"{cell['case']}: failed: {(answer.failure or {}).get('reason')}")
            if answer.dead:
                self._worker.stop()
                self._worker.start()
        lines = "".join(json.dumps(failure) + "\n" for failure in outcome.failures)
        write_output(failures_of(self.out), lines.encode())
        return outcome


def _key(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row.get(name) or "" for name in KEY)


def _result(cell: Cell, facts: Mapping[str, Any], measured: Mapping[str, Any]) -> Cell:
    """The row of one cell."""
    ones = dict.fromkeys(("num_gpus", "gpus_per_node", "tp", "pp", "dp", "cp", "ep"), "1")
    plain = {"shard": "none", "recompute": "none", "fused": "0", "assumed": "", "licence": "Apache-2.0"}
    today = datetime.now(UTC).date().isoformat()
    if cell["mode"] == "train":
        plain["micro_batch"] = cell["global_batch"]
    made = {"gpu": str(facts["id"]), "source": f"microbench workload, {today}, {facts['stack']}"}
    values = {key: f"{value:.6g}" if isinstance(value, float) else str(value) for key, value in measured.items()}
    return {**cell, **ones, **plain, **made, **values}
