"""`microbench doctor`: is this machine fit to be measured, and what to do where it is not."""

from __future__ import annotations

import argparse
import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from microbench import doctor, sweep
from microbench.capability import target_of
from microbench.case import Case
from microbench.collect import visible
from microbench.doctor import FAIL, OK, WARN, Finding
from microbench.supervisor import BenchWorker, WorkerError
from predictor.errors import TilecastError

#: Quick measurements: whether a launcher runs is asked, and a first sight of its time. Chosen by hand, not from data.
_SETTINGS = {"case_s": 0.05, "min_samples": 5, "noise": 0.05, "profile": False}
_CASE_S = 90.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `doctor`."""
    parser.epilog = "example: microbench doctor --out datasets"
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="GPUs (default) or the processor")
    parser.add_argument("--threads", type=int, default=0, help="threads of a processor (default: PyTorch's own choice)")
    parser.add_argument("--out", type=Path, default=Path("datasets"), metavar="DIR", help="where rows will go")
    parser.add_argument("--no-launch", action="store_true", help="look only: run no launcher, time no known answer")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; status 1 where one of them is that nothing can be measured."""
    findings = doctor.machine(arguments.out, arguments.device)
    entries: list[str] = []
    with contextlib.suppress(TilecastError):  # no GPU: a finding
        entries = list(visible(arguments.device))
    if arguments.device == "cuda":
        findings += doctor.boards(entries)
    fatal = any(finding.status == FAIL for finding in findings)
    if not arguments.no_launch and not fatal:
        for entry in entries:
            findings += examine(arguments.device, entry, arguments.threads)
    if arguments.json:
        print(
            json.dumps({"fit": not _failed(findings), "findings": [asdict(finding) for finding in findings]}, indent=1)
        )
    else:
        _print(findings)
    return 1 if _failed(findings) else 0


def _failed(findings: list[Finding]) -> bool:
    return any(finding.status == FAIL for finding in findings)


def examine(device: str, entry: str, threads: int) -> list[Finding]:
    """A launcher at a time on one board, then the known answers."""
    where = f"{device} {entry}".strip()
    worker = BenchWorker(device, entry, threads, dict(_SETTINGS))
    try:
        facts = worker.start()
        target = target_of(facts)
        first: dict[str, Case] = {}
        for case in sweep.build(target).cases:
            first.setdefault(_runs(case), case)
        findings = [_launcher(worker, case) for case in first.values()]
        rows: dict[str, Any] = {}
        for name, case in doctor.answers(target, int(facts["cache_bytes"])).items():
            row, why = _asked(worker, case)
            if row is None:
                findings.append(
                    Finding(f"known answer: {name}", WARN, why, "its row will lack (docs/reference/microbench.md)")
                )
            else:
                rows[name] = row
        return findings + doctor.judge(str(facts["id"]), rows)
    except WorkerError as error:
        return [Finding(where, FAIL, str(error), "nvidia-smi; a reset of the board, or leave it out"
                        " (CUDA_VISIBLE_DEVICES)")]  # fmt: skip
    finally:
        worker.stop()


def _asked(worker: BenchWorker, case: Case) -> tuple[dict[str, Any] | None, str]:
    if not worker.alive:
        worker.start()
    answer = worker.ask(case, _CASE_S)
    if answer.dead:
        worker.stop()
    return answer.row, str((answer.failure or {}).get("reason", ""))


def _runs(case: Case) -> str:
    """The launcher of a case, with the kernel of a library that it calls."""
    return " ".join(filter(None, (case.launcher, str(case.option("kernel", "")))))


def _launcher(worker: BenchWorker, case: Case) -> Finding:
    row, why = _asked(worker, case)
    name = f"launcher {_runs(case)}"
    if row is None:
        return Finding(name, WARN, f"{case.describe()}: {why}", "its rows will lack: collect --ops leaves it out")
    return Finding(name, OK, f"{row['latency_ms'] * 1e3:.4g} us, {case.describe()}")


def _print(findings: list[Finding]) -> None:
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{finding.status:<5}{finding.name:<{width + 2}}{finding.found}")
        if finding.do:
            print(f"{'':<5}{'':<{width + 2}}-> {finding.do}")
    counts = {status: sum(finding.status == status for finding in findings) for status in (FAIL, WARN)}
    print(f"\n{counts[FAIL]} that prevent measuring, {counts[WARN]} to look at, of {len(findings)} looked at")
