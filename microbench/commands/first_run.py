"""`microbench first-run`: the first session on a machine, in the order in which its mistakes are cheap.

doctor, the launch overhead, one case of every stratum, names of kernels on and off and burst and long run side by side,
a collection that is killed and gone on with, the rows that `tilecast calibrate` reads, then the collection itself, and
a set of estimators adapted to the machine: its error on rows kept aside, a forecast, the next command. All of it is in
the budget, from the start of the process on. Run again on the same machine it goes on: its notes say what was done.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from microbench import arguments as words
from microbench import ceilings, doctor, environment, management, sweep
from microbench.capability import Target, target_of
from microbench.case import Case
from microbench.collect import Collection, visible
from microbench.commands.doctor import examine
from microbench.dataset import read
from microbench.request import CollectionRequest
from microbench.storage import make_folder, write_atomic
from microbench.supervisor import BenchWorker
from predictor.data import dataset
from predictor.data.importers import microbench as importer
from predictor.data.schema import CUDA_GRAPH, SUSTAINED
from predictor.errors import RequestError, TilecastError
from predictor.files.commands import check_working_folder
from predictor.files.read import read_json

#: Shares of the budget of the strata and of the rehearsal of a kill; what is left is the collection's. Chosen by hand,
#: not from data.
_STRATA_SHARE, _KILL_SHARE, _CALIBRATION_SHARE = 0.2, 0.1, 0.6
#: Rows of an estimator to calibrate with; of all, one in so many is kept aside; what the end of the session takes at
#: most, and its share of a short budget. Chosen by hand, not from data.
_ROWS, _ASIDE = 48, 5
_END_S, _END_SHARE = 75.0, 0.2
_OVERHEAD_S = 3.0
NOTES, FOLDER = "first-run.json", "first-run"
#: Bounds of --minutes: less would be set-up alone; more is a collection's. Chosen by hand, not from data.
LEAST_MINUTES, MOST_MINUTES = 2, 1440
#: Steps that are done once on a machine, and those that are left for another run where no time is left.
ONCE = ("doctor", "launch overhead", "side by side", "kill and resume")
WAITING = ("strata", "side by side", "kill and resume", "rows to calibrate with", "collection")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `first-run`."""
    parser.epilog = "example: microbench first-run --out datasets"
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="GPUs (default) or the processor")
    parser.add_argument("--threads", type=int, default=0, help="threads of a processor (default: PyTorch's own choice)")
    whole = parser.add_mutually_exclusive_group()
    whole.add_argument("--budget", type=words.seconds, default=480.0, metavar="TIME", help="all of it (8min)")
    whole.add_argument(
        "--minutes", type=float, metavar="N", help="the budget in minutes; run the command again to continue"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the data set: made, or gone on with")
    parser.add_argument("--sweeps", type=Path, default=sweep.SWEEPS, metavar="DIR", help="sweep files of your own")


def run(arguments: argparse.Namespace) -> int:
    """One step after the other; a step that fails is said and the next one goes on."""
    check_working_folder()
    words.check_below_folder(arguments.out)
    if not arguments.sweeps.is_dir():
        raise RequestError(f"--sweeps {arguments.sweeps}: expected a folder of sweep files")
    if arguments.minutes is not None:
        if not LEAST_MINUTES <= arguments.minutes <= MOST_MINUTES:
            raise RequestError(f"--minutes {arguments.minutes:g}: expected {LEAST_MINUTES} to {MOST_MINUTES}")
        arguments.budget = 60.0 * arguments.minutes
    session = Session(arguments)
    here = place(arguments)
    known = done_before(arguments.out / NOTES, here)
    session.notes["here"] = here
    steps: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("doctor", session.doctor), ("launch overhead", session.overhead), ("strata", session.strata),
        ("side by side", session.side_by_side), ("kill and resume", session.kill),
        ("rows to calibrate with", session.calibration), ("collection", session.collection),
        ("calibrated set", session.calibrated),
    ]  # fmt: skip
    for number, (name, step) in enumerate(steps, start=1):
        if name in known:
            session.notes[name] = known[name]
            print(f"[{number}/{len(steps)}] {name}: done before", flush=True)
            continue
        print(f"[{number}/{len(steps)}] {name}", flush=True)
        try:
            if name in WAITING and session.over():
                raise TilecastError("no time was left; run the same command again to continue")
            session.notes[name] = step()
        except TilecastError as error:
            session.notes[name] = {"failed": str(error)}
            if name == "doctor":
                raise
        for key, value in session.notes[name].items():
            print(f"      {key}: {value}", flush=True)
        make_folder(arguments.out)
        write_atomic(arguments.out / NOTES, (json.dumps(session.notes, indent=1) + "\n").encode())
    print(f"notes in {arguments.out / NOTES}; microbench report {arguments.out} draws the rows")
    return 0


def place(arguments: argparse.Namespace) -> dict[str, Any]:
    """Where the figures of a run hold: machine, packages, device, threads, and of the GPU its UUID and its driver,
    as far as the management library tells. RequestError where no GPU is visible."""
    here: dict[str, Any] = {
        "machine": environment.machine(), "packages": environment.versions(), "device": arguments.device,
        "threads": arguments.threads,
    }  # fmt: skip
    if arguments.device == "cuda":
        board = management.entry_board(visible(arguments.device)[0])
        here |= {"gpu": board and board.uuid(), "driver": board and board.driver()}
    whole: dict[str, Any] = json.loads(json.dumps(here))  # as the notes have it
    return whole


def done_before(notes: Path, here: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The steps that an earlier run on this device of this machine, with these packages, has done and that are done
    once."""
    try:
        said = read_json(notes)
    except TilecastError:
        return {}
    if not isinstance(said, dict) or said.get("here") != here:
        return {}
    return {name: said[name] for name in ONCE if isinstance(said.get(name), dict) and "failed" not in said[name]}


def process_age_s() -> float:
    """Seconds since this process began (Linux; 0 elsewhere): imports are of the budget, too."""
    try:
        began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, float(Path("/proc/uptime").read_text().split()[0]) - began)
    except (OSError, ValueError, IndexError):
        return 0.0


class Session:
    """What the steps share."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.begin = time.monotonic() - process_age_s()
        self.notes: dict[str, dict[str, Any]] = {}
        self._target: Target | None = None

    @property
    def target(self) -> Target:
        """The first device, opened once. Raises WorkerError."""
        if self._target is None:
            a = self.arguments
            worker = BenchWorker(a.device, visible(a.device)[0], a.threads, {})
            try:
                self._target = target_of(worker.start())
            finally:
                worker.stop()
        return self._target

    def over(self) -> bool:
        """Whether what is left is the end's."""
        return self._rest_s() <= 0.0

    def _rest_s(self) -> float:
        end_s = min(_END_S, _END_SHARE * self.arguments.budget)
        return float(self.arguments.budget - end_s - (time.monotonic() - self.begin))

    def _left_s(self) -> float:
        return max(5.0, self._rest_s())

    def _request(self, budget_s: float | None, **more: Any) -> CollectionRequest:
        a = self.arguments
        return CollectionRequest(a.out, device=a.device, threads=a.threads, budget_s=budget_s, sweeps=a.sweeps, **more)

    def doctor(self) -> dict[str, Any]:
        a = self.arguments
        entries = list(visible(a.device))
        findings = doctor.machine(a.out, a.device) + (doctor.boards(entries) if a.device == "cuda" else [])
        findings += examine(a.device, entries[0], a.threads)
        bad = {finding.name: f"{finding.found} -> {finding.do}" for finding in findings if finding.status != doctor.OK}
        fatal = [name for finding in findings if finding.status == doctor.FAIL for name in (finding.name,)]
        if fatal:
            raise TilecastError(f"doctor: {', '.join(fatal)}: {bad[fatal[0]]}")
        return {"looked at": len(findings), **bad}

    def overhead(self) -> dict[str, Any]:
        a = self.arguments
        worker = BenchWorker(a.device, visible(a.device)[0], a.threads, {}, "microbench.launch_worker")
        try:
            self._target = target_of(worker.start())
            answer = worker.request({"budget_s": _OVERHEAD_S}, 90.0)
        finally:
            worker.stop()
        if answer.row is None:
            raise TilecastError(f"the calls could not be timed: {(answer.failure or {}).get('reason')}")
        return {"a framework call takes": f"{answer.row['launch_overhead_s'] * 1e6:.3g} us"}

    def _strata_cases(self) -> list[Case]:
        """The first case of every stratum: operator, dtype, form, options, cache, protocol."""
        first: dict[tuple[Any, ...], Case] = {}
        for case in sweep.build(self.target, None, None, self.arguments.sweeps).cases:
            form = (getattr(case.op, "kind", ""), getattr(case.op, "fn", ""), getattr(case.op, "layout", ""))
            timed = (case.cache, case.protocol)
            first.setdefault((case.launcher, case.op.dtype, case.phase, case.options, timed, form), case)
        return [case for case in first.values() if case.launcher != "collective"]

    def strata(self) -> dict[str, Any]:
        cases = self._strata_cases()
        budget_s = min(_STRATA_SHARE * self.arguments.budget, self._left_s())
        quick = {"case_s": 0.05, "min_samples": 5}
        done = Collection(self._request(budget_s, cases=tuple(cases), settings=quick)).run()
        return {"strata": len(cases), "rows": done.new_rows, "failures": done.new_failures, "left": done.left}

    def side_by_side(self) -> dict[str, Any]:
        """A large product: with CUPTI in the process and without, as a burst and as a long run."""
        case = doctor.answers(self.target, 2**25).get("gemm")
        if case is None:
            raise TilecastError("no product to compare")
        a = self.arguments
        entry = visible(a.device)[0]
        worker, other = (BenchWorker(a.device, entry, a.threads, {"profile": False}, module) for module in
                         ("microbench.worker", "microbench.profile_worker"))  # fmt: skip
        try:
            worker.start()
            answers: dict[str, Any] = {}
            for name, timed in (("burst", case), ("sustained", replace(case, protocol=SUSTAINED))):
                if timed.protocol == CUDA_GRAPH or SUSTAINED in self.target.protocols:
                    answer = worker.ask(timed, 60.0)
                    answers[name] = f"{answer.row['latency_ms']:.4g} ms" if answer.row else str(answer.failure)
            if not answers:
                answer = worker.ask(case, 60.0)
                answers["product"] = f"{answer.row['latency_ms']:.4g} ms" if answer.row else str(answer.failure)
            other.start()
            named = other.request({"case": case.to_json()}, 60.0)
            answers["kernel, by the other process"] = (named.row or {}).get("kernel_name", str(named.failure))
            repeated = worker.ask(case, 60.0)
            answers["after it"] = f"{repeated.row['latency_ms']:.4g} ms" if repeated.row else str(repeated.failure)
            return answers
        finally:
            worker.stop()
            other.stop()

    def kill(self) -> dict[str, Any]:
        """A collector that is killed amid its work, and what is on the disk before and after."""
        a = self.arguments
        budget_s = max(5.0, min(_KILL_SHARE * a.budget, 0.5 * self._left_s()))
        command = [
            sys.executable, "-m", "microbench", "collect", "--device", a.device, "--threads", str(a.threads),
            "--budget", f"{budget_s:.0f}s", "--out", str(a.out), "--sweeps", str(a.sweeps), "--tracking-uri", "off",
        ]  # fmt: skip
        before = _rows(a.out)
        process = subprocess.Popen(command, env=_environment(), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)  # fmt: skip
        until = time.monotonic() + budget_s
        while time.monotonic() < until and process.poll() is None and len(_rows(a.out)) <= len(before):
            time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed = _rows(a.out)
        Collection(self._request(min(budget_s, self._left_s()), max_cases=1)).run()  # goes on: files the journal
        after = _rows(a.out)
        lost = [case for case in {**before, **killed} if after.get(case) != {**before, **killed}[case]]
        if lost:
            raise TilecastError(f"{len(lost)} rows were lost by a kill: do not collect; case {lost[0]}")
        return {"rows before": len(before), "when it was killed": len(killed), "after": len(after), "lost": 0}

    def calibration(self) -> dict[str, Any]:
        """The cases of `plan --calibration`, as many as there is time for: every beginning of them is balanced."""
        done = Collection(self._request(_CALIBRATION_SHARE * self._left_s(), calibration_rows=_ROWS)).run()
        return {"rows": done.new_rows, "failures": done.new_failures, "left": done.left}

    def calibrated(self) -> dict[str, Any]:
        """The shipped set adapted by four rows of five, and what it says of the fifth."""
        gpu, folder = self.target.id, self.arguments.out / FOLDER
        result = importer.run(self.arguments.out)
        frame = result.frame[result.frame["gpu"].astype(str) == gpu].reset_index(drop=True)
        aside = [place % _ASIDE == _ASIDE - 1 for place in range(len(frame))]
        make_folder(folder)
        for name, rows in (("kept-aside", frame[aside]), ("rows", frame[[not kept for kept in aside]])):
            dataset.write(rows.reset_index(drop=True), folder / f"{name}.parquet", result.about())
        adapted = _tilecast("calibrate", "--gpu", gpu, "--data", folder / "rows.parquet", "--out", folder / "set",
                            "--tracking-uri", "off", "--json")  # fmt: skip
        errors = []
        for artifacts in ([], ["--artifacts", folder / "set"]):
            told = _tilecast("evaluate", "kernels", folder / "kept-aside.parquet", *artifacts, "--json")
            errors.append(f"{told['median_ape_pct']:.1f} %")
        device = self.arguments.out / gpu / ceilings.DEVICE_FILE
        asked = ("--model", "gpt2", "--gpu", device if device.is_file() else gpu, "--dtype", "fp32", "--artifacts",
                 folder / "set")  # fmt: skip
        forecast = _tilecast("predict", *asked, "--json")
        return {
            "rows": ", ".join(f"{name} {adapted['rows'][name]}" for name in adapted["scalars"]) or "none that helped",
            "median error on rows kept aside": f"{errors[0]} before, {errors[1]} after",
            "forecast of gpt2": f"{forecast['latency_ms']:.4g} ms",
            "next": f"predict {' '.join(str(word) for word in asked)}",
        }  # fmt: skip

    def collection(self) -> dict[str, Any]:
        done = Collection(self._request(self._left_s())).run()
        return {"rows": done.new_rows, "in all": done.rows, "failures": done.new_failures, "left": done.left}


def _tilecast(*words: object) -> dict[str, Any]:
    """What a command of `tilecast` says as JSON. Raises TilecastError with its line."""
    command = [sys.executable, "-m", "tilecast", *(str(word) for word in words)]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise TilecastError(f"tilecast {words[0]}: {(done.stderr.strip().splitlines() or ['ended early'])[-1]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _environment() -> dict[str, str]:
    """This process's, with this checkout importable."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, "PYTHONPATH": path}


def _rows(out: Path) -> dict[str, float]:
    """Case id -> latency, of every row on the disk."""
    try:
        return {row["case_id"]: row["latency_ms"] for part in read(out) for row in part.all_rows}
    except TilecastError:
        return {}
