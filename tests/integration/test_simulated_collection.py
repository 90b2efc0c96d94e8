"""Collections on simulated boards, as real processes: two boards, one of them dead, a fault, ranks of a collective."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))
import simulated_cuda
from microbench_runs import environment, microbench, report

from microbench.case import Case
from microbench.dataset import read
from microbench.ranks import RankGroup
from microbench.validate import row_problems
from predictor.ops import Collective

SWEEP = """
launcher: softmax
groups:
  - name: quick
    dtypes: [fp32]
    fields: {phase: [forward, backward]}
    axes: {rows: {log: [1, 64]}, cols: {log: [8, 512]}}
    timed: [[warm, cuda_graph, 1.0], [warm, eager_events, 0.5]]
    points: 8
"""


def simulated(boards: str, **said: object) -> dict[str, str]:
    path = os.pathsep.join([str(simulated_cuda.SITE), environment()["PYTHONPATH"]])
    return {"SIMULATED_CUDA": json.dumps({"l2_bytes": 2**20, **said}), "CUDA_VISIBLE_DEVICES": boards,
            "PYTHONPATH": path}  # fmt: skip


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps")
    (folder / "softmax.yaml").write_text(SWEEP)
    return folder


def test_a_board_measured_by_real_processes_while_another_is_dead(tmp_path: Path, sweeps: Path) -> None:
    words = ("collect", "--sweeps", sweeps, "--out", tmp_path / "out", "--tracking-uri", "off", "--max-cases", 8,
             "--budget", "60s", "--case-seconds", "0.01s", "--min-samples", 3, "--noise", "0.5")  # fmt: skip
    done = microbench(*words, **simulated("0,1", dead=[1]))
    assert "warning: no worker for cuda 1" in done.stderr and "the others go on" in done.stderr
    found = report(tmp_path / "out")
    assert found["valid"] and found["failures"] == 0
    rows = [row for part in read(tmp_path / "out") for row in part.all_rows if row["launcher"] == "softmax"]
    assert rows and {row["board_uuid"] for row in rows} == {simulated_cuda.uuid_of("0")}
    names = {row["kernel_name"] for row in rows}
    assert names == {"simulated__softmax", "simulated__softmax_backward_data"}
    assert max(row["latency_ms"] for row in rows if row["protocol"] == "cuda_graph") < 0.002 * 1.5  # no CUPTI in it


def test_ranks_measure_as_one(tmp_path: Path) -> None:
    """Three processes without a GPU: gloo in the place of NCCL, the same calls, agreement and checks."""
    group = RankGroup("cpu", ["", "", ""], 1, {"case_s": 0.02, "min_samples": 3, "noise": 0.9, "warm_up_s": 0.0})
    try:
        group.start()
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"):
            case = Case("collective", Collective("fp32", kind, 12288, 3), (), "warm", "eager_events")
            answer = group.ask(case, 120.0)
            assert answer.row is not None, (kind, answer.failure)
            assert answer.row["checked"] == "yes" and answer.row["kernel_source"] == "gloo"
            assert not row_problems(answer.row) and answer.row["rank_spread"] >= 0
        wrong = group.ask(Case("collective", Collective("fp32", "all_reduce", 4096, 2)), 60.0)
        assert wrong.failure is not None and wrong.failure["kind"] == "illegal" and wrong.dead
    finally:
        group.stop()
