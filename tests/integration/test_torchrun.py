"""Collectives over nodes: the real torchrun twice on this machine, a node each, gloo between their ranks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))
from microbench_runs import environment

from microbench import collectives, management
from microbench.case import Case
from microbench.cli import main
from microbench.commands.collectives import PENDING
from microbench.dataset import read
from microbench.ranks import free_port
from microbench.validate import row_problems

SWEEP = """
launcher: collective
groups:
  - name: two
    dtypes: [fp32]
    fields: {ranks: 8, kind: [all_reduce, all_gather, all_to_all, send_recv]}
    axes: {size: {log: [4096, 65536], multiple: 4096}}
    timed: [[warm, eager_events, 1.0]]
    points: 5
"""


def torchrun(out: Path, sweeps: Path) -> None:
    """`torchrun ... -m microbench collectives` on two nodes; once more where an agent of torchrun never ends, which was
    seen once, its ranks done: what they measured stands."""
    assert ended(out, sweeps) or ended(out, sweeps)


def ended(out: Path, sweeps: Path) -> bool:
    """Whether both nodes came to their end, which is a good one."""
    port, env = free_port(), {**os.environ, **environment(), "GLOO_SOCKET_IFNAME": "lo"}
    words = ["-m", "microbench", "collectives", "--device", "cpu", "--out", str(out), "--sweeps", str(sweeps)]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--node-rank",
             str(n), "--master-addr", "127.0.0.1", "--master-port", str(port), *words],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )
        for n in (0, 1)
    ]  # fmt: skip
    try:
        for node in nodes:
            said, errors = node.communicate(timeout=90)
            assert node.returncode == 0, errors[-2000:]
            if said:
                assert "2 ranks, 1 a node" in said and "0 left" in said
    except subprocess.TimeoutExpired:
        return False
    finally:
        for node in nodes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.communicate()
    return True


def test_two_nodes_measure_as_one_and_go_on_behind_the_case_they_died_at(tmp_path: Path) -> None:
    sweeps, out = tmp_path / "sweeps", tmp_path / "out"
    sweeps.mkdir()
    (sweeps / "collective.yaml").write_text(SWEEP)
    from microbench.devices import open_device

    facts = open_device("cpu", 1).facts()
    (died,) = collectives.between(collectives.target_of(facts), 2, collectives.Links("pcie", 1), sweeps)[:1]
    (out / facts["id"]).mkdir(parents=True)
    (out / facts["id"] / PENDING).write_text(json.dumps(died.to_json()))
    torchrun(out, sweeps)
    (part,) = read(out)
    rows = part.all_rows
    assert len(rows) == 5 and {(row["ranks"], row["ranks_per_node"], row["flag"]) for row in rows} == {
        (2, 1, "network_unknown")
    }
    assert {row["kind"] for row in rows} == {"all_reduce", "all_gather", "all_to_all", "send_recv"}
    assert {row["checked"] for row in rows} <= {"yes", "kernel"}
    assert all(row["network"] and row["rank_spread"] >= 0 for row in rows)
    assert not [problem for row in rows for problem in row_problems(row)]
    buried = [json.loads(line) for line in (part.path / "failures.jsonl").read_text().splitlines()]
    assert [one["kind"] for one in buried] == ["worker_died"] and Case.from_json(buried[0]["case"]) == died
    assert died.id in {row["case_id"] for row in rows} and not (out / facts["id"] / PENDING).exists()  # once more


def test_without_torchrun_one_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collectives", "--device", "cpu", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "torchrun" in said and said.count("\n") == 1


def test_ports_that_are_up_are_the_network(tmp_path: Path) -> None:
    for card, state, rate in (("mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)"), ("mlx5_1", "1: DOWN", "40 Gb/sec (4X)")):
        port = tmp_path / card / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "rate").write_text(rate + "\n")
    assert collectives.network(tmp_path) == ("mlx5_0 400 Gbit/s", 5e10)
    assert collectives.network(tmp_path / "none") == ("", 0.0)
    assert management.joined_by([None, None]) == ""
