#!/usr/bin/env python3
"""Steps and operators of one job on two boards: what each board's trace forecasts of the other.

python benchmarks/profile_pairs.py FIRST.json.gz SECOND.json.gz

prints the steps, the operators that both ran (those of 20 us and more), and how the logarithms of the forecasts' errors
on both go together, which is the constant `TOGETHER` of `predictor/profiles/transfer.py`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np

from predictor.hardware.gpu import load_gpu
from predictor.kernels.artifact import load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.profiles.linked import Linked
from predictor.profiles.recorded import Recorded
from predictor.profiles.steps import steps_of
from predictor.profiles.transfer import moved

#: Microseconds from which on operators count; launches and tails are most of what is shorter.
LEAST = 20.0


class Job:
    """A trace's steps, and the median time of each operator that it ran."""

    def __init__(self, file: str) -> None:
        self.linked = Linked(Recorded(file))
        self.steps = steps_of(self.linked)
        self.gpu = load_gpu(self.linked.trace.board)
        calls: dict[object, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for step in self.steps:
            for row in step.rows.tolist():
                work = self.linked.work[row]
                if work.ops:
                    calls[work.ops][work.call] += float(self.linked.trace.kernels.length[row])
        self.measured = {ops: float(np.median(list(times.values()))) for ops, times in calls.items()}

    def forecast(self, ops: object) -> float:
        table = predict_kernels(list(ops), self.gpu, load_artifacts(), cold=True)
        return float(table.latency_s.sum()) * 1e6


def main(files: list[str]) -> None:
    """Print the tables."""
    jobs = [Job(file) for file in files]
    print("| from | to | step forecast ms | interval ms | step measured ms | error | operators | median error |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    both = [ops for ops in jobs[0].measured if ops in jobs[1].measured]
    for here, there in (jobs, jobs[::-1]):
        said = moved(here.linked, here.steps, here.gpu, there.gpu, load_artifacts())
        truth = float(np.median([step.length_us for step in there.steps])) / 1e3
        long = [ops for ops in both if here.measured[ops] >= LEAST]
        off = [here.measured[o] * there.forecast(o) / here.forecast(o) / there.measured[o] - 1.0 for o in long]
        low, high = said.interval_ms
        print(
            f"| {here.gpu.id} | {there.gpu.id} | {said.latency_ms:.2f} | {low:.2f} to {high:.2f} | {truth:.2f} |"
            f" {said.latency_ms / truth - 1.0:+.1%} | {len(long)} | {np.median(np.abs(off)):.1%} |"
        )
    print(f"\n| operator | us on {jobs[0].gpu.id} | forecast | us on {jobs[1].gpu.id} | forecast |")
    print("| --- | --- | --- | --- | --- |")
    errors = []
    for ops in sorted(both, key=lambda ops: -jobs[0].measured[ops]):
        times = [job.measured[ops] for job in jobs]
        forecasts = [job.forecast(ops) for job in jobs]
        cells = " | ".join(f"{t:.1f} | {f:.1f}" for t, f in zip(times, forecasts, strict=True))
        print(f"| {ops[0].label} {ops[0].dtype} {getattr(ops[0], 'fn', '')} | {cells} |")
        if max(times) >= LEAST:
            errors.append([np.log(f / t) for t, f in zip(times, forecasts, strict=True)])
    together = np.corrcoef(np.array(errors).T)[0, 1]
    print(f"\nerrors go together by {together:.2f}, over {len(errors)} operators")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs=2, metavar="TRACE", help="a profiler's trace of the job on one board")
    main(parser.parse_args().traces)
