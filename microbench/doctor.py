"""What a machine is like before anything is measured on it: findings, each with what to do about it. It sets nothing.

A finding is "ok", "warn" (rows will be noisier or poorer) or "fail" (nothing can be measured). The known answers are
times that a data sheet, or another kernel, tells beforehand: a first sight of a board that is slow, or of a harness
that measures wrongly.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from microbench import ceilings, libraries, management
from microbench.capability import Target, refusal, release
from microbench.case import Case
from microbench.environment import versions
from microbench.management import ManagedBoard
from microbench.own_ops import Ceiling
from predictor.hardware.gpu import GPUSpec
from predictor.ops import Attention

OK, WARN, FAIL = "ok", "warn", "fail"
#: The oldest PyTorch that the launchers are written for: chosen by hand, not from data.
_LEAST_TORCH = (2, 4)
#: Room that a collection takes at most, and the shares of a known answer's rate that are believed: a large product of a
#: healthy board reaches 60 to 90 % of its dense peak, a copy 80 to 95 % of its bandwidth, and FlashAttention-2 a third
#: to all of what cuDNN reaches on the same shape. Chosen by hand, not from data, wide enough for every board seen.
_ROOM_BYTES = 2 * 2**30
GEMM, COPY, ATTENTION = (0.45, 1.02), (0.6, 1.02), (0.25, 4.0)
#: What is above its end but below so many times what is known is said and no more. Chosen by hand, not from data.
BELIEVED = 1.25


@dataclass(frozen=True, slots=True)
class Finding:
    """``found`` is what is, ``do`` what to do about it (empty where it is good)."""

    name: str
    status: str
    found: str
    do: str = ""


def machine(out: Path, device: str = "cpu") -> list[Finding]:
    """Software, compiler and room, without torch; of a torch that has no CUDA on a machine of GPUs, too."""
    known = versions()
    torch = known.get("torch")
    findings = []
    if torch is None:
        findings.append(Finding("torch", FAIL, "not installed", "pip install torch"))
    elif device == "cuda" and "+cpu" in torch:
        findings.append(Finding("torch", FAIL, f"{torch}: built for a processor alone",
                                "pip install --force-reinstall torch, from the package index"))  # fmt: skip
    else:
        old = release(torch) < _LEAST_TORCH
        findings.append(Finding("torch", WARN if old else OK, torch, "pip install 'torch>=2.4'" if old else ""))
    for name in ("numpy", "pyarrow"):
        there = known.get(name)
        findings.append(Finding(name, OK if there else FAIL, there or "not installed",
                                "" if there else f"pip install {name}"))  # fmt: skip
    compiler = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")
    findings.append(
        Finding("C compiler", OK if compiler else WARN, compiler or "none",
                "" if compiler else "install gcc: Triton builds its launcher with it (tile probes, compiled chains)")
    )  # fmt: skip
    header = Path(sysconfig.get_path("include")) / "Python.h"
    findings.append(
        Finding("Python.h", OK if header.is_file() else WARN, str(header) if header.is_file() else f"no {header}",
                "" if header.is_file() else "install python3-dev: Triton's launcher includes it")
    )  # fmt: skip
    above = next((path for path in [out.absolute(), *out.absolute().parents] if path.is_dir()), Path("/"))
    free = shutil.disk_usage(above).free
    findings.append(
        Finding("disk", OK if free >= _ROOM_BYTES else WARN, f"{free / 2**30:.1f} GiB free for {out}",
                "" if free >= _ROOM_BYTES else "free some space, or give another --out")
    )  # fmt: skip
    return [*findings, _libraries(), _load()]


def _libraries() -> Finding:
    """Libraries of serving kernels that are installed, and the releases that their calls were written for."""
    there = libraries.installed()
    told = [f"{name} {there[name]} (calls: {libraries.libraries()[name].read})" for name in there]
    lacking = ", ".join(name for name in libraries.libraries() if name not in there)
    return Finding("serving libraries", OK, "; ".join(told) or f"none of {lacking}: their kernels are left out")


def _load() -> Finding:
    busy, processors = os.getloadavg()[0], os.cpu_count() or 1
    high = busy > 0.5 * processors
    return Finding("load of the host", WARN if high else OK, f"{busy:.1f} on {processors} processors",
                   "end other work: launches and eager rows wait for the processor" if high else "")  # fmt: skip


def boards(entries: Sequence[str]) -> list[Finding]:
    """What NVML, or AMD's library, says of every visible board."""
    if not entries:
        return [Finding("GPU", FAIL, "none is visible",
                        "nvidia-smi has to list one; CUDA_VISIBLE_DEVICES hides them; or --device cpu")]  # fmt: skip
    if not management.there():
        return [Finding("NVML", WARN, "libnvidia-ml.so.1 does not load, and neither amdsmi nor rocm-smi answers",
                        "in a container: the utility capability; clocks and power stay unknown")]  # fmt: skip
    findings = []
    for entry in entries:
        board = management.entry_board(entry)
        if board is None:
            findings.append(
                Finding(f"GPU {entry}", FAIL, "its driver does not know it", "look at nvidia-smi -L, or rocm-smi")
            )
        else:
            findings += _board(entry, board)
    return findings


def _board(entry: str, board: ManagedBoard) -> list[Finding]:
    def about(name: str, bad: bool, seen: object, do: str) -> Finding:
        return Finding(f"GPU {entry} {name}", WARN if bad else OK, str(seen), do if bad else "")

    now, most = board.clock_hz() or 0.0, board.max_clock_hz() or 0.0
    persistence, ecc, mig = (board.setting(name) for name in ("PersistenceMode", "EccMode", "MigMode"))
    processes, reasons = board.processes(), board.throttled()
    words = {None: "not told", 0: "off", 1: "on"}
    return [
        about("driver", False, f"{board.driver()}, {board.uuid()}", ""),
        about("clocks", False, f"SM {now / 1e6:.0f} of {most / 1e6:.0f} MHz; limit {board.power_limit_w()} W", ""),
        about("persistence mode", persistence == 0, words.get(persistence, "?"),
              "sudo nvidia-smi -pm 1: else the driver is loaded anew for every process"),
        about("ECC", ecc == 0, words.get(ecc, "?"), "rows with ECC off are not comparable with others: note it"),
        about("MIG", mig == 1, words.get(mig, "?"), "a slice of a board is measured: sudo nvidia-smi -mig 0 for all"),
        about("other processes", bool(processes), processes if processes is not None else "not told",
              "end them (nvidia-smi, rocm-smi --showpids): they take time and memory of the board"),
        about("throttling at rest", bool(reasons), ", ".join(reasons) or "none",
              "look at nvidia-smi -q -d PERFORMANCE, or amd-smi metric: cooling, power cables, a lowered power limit"),
        about("permission to lock clocks", False, "administrator" if os.geteuid() == 0 else "no",
              ""),
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------------------- known answers


def answers(target: Target, cache_bytes: int) -> dict[str, Case]:
    """The cases of the three known answers that ``target`` can run."""
    dtype = "bf16" if target.kind == "cuda" and target.has_bf16 else "fp32"
    size, moved = (8192, max(8 * cache_bytes, 2**30)) if target.kind == "cuda" else (1024, 4 * cache_bytes)
    protocol = target.protocols[0]
    attended = Attention("bf16", 2, 16, 16, 4096, 4096, 128, causal=True) if target.kind == "cuda" else Attention(
        "fp32", 1, 4, 4, 256, 256, 64, causal=True)  # fmt: skip
    others = ("flash", "cudnn") if target.kind == "cuda" else ("flash", "math")
    cases_by_name = {
        "gemm": Case("ceiling", Ceiling(dtype, "matmul", size), (), "warm", protocol),
        "copy": Case("ceiling", Ceiling("fp32", "copy", moved), (), "warm", protocol),
        **{name: Case("attention", attended, (("impl", name),), "warm", protocol) for name in others},
    }
    return {name: case for name, case in cases_by_name.items() if not refusal(case, target)}


def judge(gpu: str, rows: Mapping[str, Mapping[str, Any]], folder: Path = Path()) -> list[Finding]:
    """The known answers against what is known: ``rows`` by the names of `answers`."""
    findings = []
    spec = ceilings.spec_of(folder, gpu) if ceilings.in_catalogue(gpu) else None
    for name, (low, high), what in (("gemm", GEMM, "peak"), ("copy", COPY, "bandwidth")):
        row = rows.get(name)
        if row is None:
            continue
        rate = float(row["rate"])
        if spec is None:
            findings.append(Finding(f"known answer: {name}", OK, f"{rate / 1e9:.4g} G/s; no data sheet of {gpu}"))
            continue
        nominal = spec.peak_flops(str(row["dtype"])) * faster(row, spec) if name == "gemm" else spec.memory_bandwidth
        at = f" at {row['sm_clock_hz'] / 1e6:.0f} MHz" if name == "gemm" and row.get("sm_clock_hz") else ""
        findings.append(_share(f"known answer: {name}", rate / nominal, low, high, f"of the data sheet's {what}{at}"))
    flash, other = rows.get("flash"), rows.get("cudnn") or rows.get("math")
    if flash is not None and other is not None:
        said = "cudnn" if "cudnn" in rows else "math"
        low, high = ATTENTION if said == "cudnn" else (1 / 50, 50.0)
        ratio = float(other["latency_ms"]) / float(flash["latency_ms"])
        findings.append(_share("known answer: flash attention", ratio, low, high, f"of the speed of {said}"))
    return findings


def faster(row: Mapping[str, Any], spec: GPUSpec) -> float:
    """The SM clock that was sampled over the data sheet's boost clock, 1 where it is not known: a GeForce board runs
    far above what its data sheet promises, and its peak goes with it."""
    return float(row.get("sm_clock_hz") or spec.boost_clock_hz) / spec.boost_clock_hz


def _share(name: str, share: float, low: float, high: float, of: str) -> Finding:
    seen = f"{share * 100:.0f} % {of} (expected {low * 100:.0f} to {high * 100:.0f} %)"
    if high < share < BELIEVED:
        return Finding(
            name, WARN, seen, "faster than it should be: look at nvidia-smi -q -d CLOCK, and at the data sheet"
        )
    if share > high:
        return Finding(name, FAIL, seen, "faster than it can be: the timing is wrong; do not collect")
    if share < low:
        return Finding(name, WARN, seen, "slow: clocks, power limit, other processes, or a poor kernel")
    return Finding(name, OK, seen)
