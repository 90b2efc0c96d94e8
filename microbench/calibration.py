"""Which cases of the sweeps to measure before `tilecast calibrate`: few, and spread so that they tell the most.

For each estimator that can be calibrated, so many rows: its shapes are cut into equally full cells over log FLOPs and
arithmetic intensity, and of every cell the case is taken that, with the others, leaves the least open about all
(`predictor.data.sampling`). Only the roofline's features are read, so neither torch nor a trained set is needed, and
the cases are the same on every machine.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from microbench.capability import Target, held_bytes, refusal
from microbench.case import Case
from microbench.storage import write_output
from predictor.data.sampling import cells, spread_out
from predictor.data.schema import ROTATING
from predictor.errors import RequestError, SpecError, TilecastError
from predictor.files.read import read_json
from predictor.ops import Attention, Gemm

FORMAT = "microbench-cases"
#: Rows of an estimator, within what `tilecast calibrate` takes of any: chosen by hand, not from data.
FEWEST, MOST = 16, 256
#: A call of a device without CUDA graphs has to be expected to take so long that the host's part does not show. Chosen
#: by hand, not from data.
_LONG_CALL_S = 2e-4
_SEED = 0
#: From this compute capability on serving frameworks prefill with kernels of the Hopper kind (FlashAttention-3, cuDNN),
#: while PyTorch's flash backend is FlashAttention-2 still: its rows say nothing of them. Source: FlashAttention-3
#: (arXiv:2407.08608); PyTorch's documentation of scaled_dot_product_attention.
HOPPER = (9, 0)


@dataclass(frozen=True, slots=True)
class CaseGroup:
    """Cases that are chosen together: ``estimator`` shares its rows among its groups."""

    estimator: str
    name: str
    holds: Callable[[Case], bool]
    alone: bool  # the kernel's time without the host's: a CUDA graph where there is one
    #: Compute capabilities of the GPUs that it is for; ends that no GPU reaches, chosen by hand, not from data.
    before: tuple[int, int] = (99, 0)
    since: tuple[int, int] = (0, 0)

    def takes(self, case: Case, target: Target) -> bool:
        """Whether the case is one of the group, timed as the estimator's rows are."""
        if target.kind == "cuda" and not self.since <= target.capability < self.before:
            return False
        protocol = target.protocols[0] if self.alone else "eager_events"
        rotating = target.kind == "cuda" and self.alone and held_bytes(case.op) > 0
        if case.cache != (ROTATING if rotating else "warm") or case.protocol != protocol or not self.holds(case):
            return False
        return not (self.alone and protocol == "eager_events") or target.seconds(case) >= _LONG_CALL_S


def _linear(dtype: str) -> Callable[[Case], bool]:
    def holds(case: Case) -> bool:
        op = case.op
        if case.launcher != "gemm" or not isinstance(op, Gemm):
            return False
        return (op.dtype, op.kind, op.layout, op.bias) == (dtype, "linear", "tn", False)

    return holds


def _product(kind: str) -> Callable[[Case], bool]:
    def holds(case: Case) -> bool:
        op = case.op
        return isinstance(op, Gemm) and (case.launcher, op.dtype, op.kind) == ("gemm", "fp32", kind)

    return holds


def _prefill(implementation: str) -> Callable[[Case], bool]:
    def holds(case: Case) -> bool:
        op = case.op
        if not isinstance(op, Attention) or case.option("impl") != implementation:
            return False
        return op.dtype == "bf16" and op.q_len > 1 and case.phase == "forward"

    return holds


def _served(op: str, kernels: tuple[str, ...]) -> Callable[[Case], bool]:
    """Kernels of serving libraries, where they are installed: "prefill", "decode" or "experts" in bf16."""

    def holds(case: Case) -> bool:
        if case.launcher != "serving" or case.op.dtype != "bf16" or case.option("kernel") not in kernels:
            return False
        if not isinstance(case.op, Attention):
            return op == "experts"
        return not case.op.window and (case.op.q_len == 1 if op == "decode" else case.op.q_len == case.op.kv_len)

    return holds


def _memory(launcher: str) -> Callable[[Case], bool]:
    def holds(case: Case) -> bool:
        return case.launcher == launcher and case.op.dtype == "fp32" and getattr(case.op, "fn", "") != "fused"

    return holds


#: Compute capability 10.0 is Blackwell's, which FlashAttention-3 has no kernels for. Source: flash-attn, hopper/.
_FA3 = ("vllm.fa3", "flash_attn.fa3", "sgl_kernel.fa3")
GROUPS = (
    CaseGroup("gemm", "linear bf16", _linear("bf16"), True),
    CaseGroup("gemm", "linear fp8", _linear("fp8"), True),
    CaseGroup("attention", "prefill bf16", _prefill("flash"), True, before=HOPPER),
    CaseGroup("attention", "prefill bf16, cuDNN", _prefill("cudnn"), True, since=HOPPER),
    CaseGroup(
        "attention", "prefill bf16, FlashAttention-3", _served("prefill", _FA3), True, since=HOPPER, before=(10, 0)
    ),
    CaseGroup("attention", "decode bf16", _served("decode", ("vllm.fa2",)), True, before=HOPPER),
    CaseGroup(
        "attention", "decode bf16, FlashAttention-3", _served("decode", _FA3), True, since=HOPPER, before=(10, 0)
    ),
    CaseGroup("moe", "experts bf16", _served("experts", ("vllm.experts",)), True),
    CaseGroup("fp32-gemm", "linear fp32", _product("linear"), False),
    CaseGroup("fp32-gemm", "bmm fp32", _product("bmm"), False),
    *(CaseGroup("memory-bound", f"{name} fp32", _memory(name), False) for name in ("elementwise", "softmax", "norm")),
)


def reads(case: Case, target: Target) -> bool:
    """Whether `tilecast calibrate` learns from rows of ``case``."""
    return any(group.takes(case, target) for group in GROUPS)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What rows of a kind brought on boards left out: ``errors`` in % by rows (0: none), and the command of it."""

    of: str
    errors: Mapping[int, float]
    command: str
    halfwidths: Mapping[int, float] = field(default_factory=dict)  # of the 80 % interval, in %
    whole: bool = False  # of all rows of the estimator, not of the group's

    def says(self, rows: int) -> str:
        """One line."""
        known = [count for count in self.errors if 0 < count <= rows]
        at = max(known, default=min(count for count in self.errors if count))
        line = f"{self.of}: {self.errors[0]:.1f} % without rows, {self.errors[at]:.1f} % with {at}"
        if at in self.halfwidths:
            line += f"; 80 % interval of +-{self.halfwidths[at]:.0f} %"
        return f"{line} ({self.command})"


_SERVED = "benchmarks/accuracy_serving.py --calibrate --sample 3000 --families gemm"
_FP32 = "benchmarks/leave_one_out_fp32.py"
NO_EVIDENCE = "no figure: it was not held against boards left out"
#: By group, what rows brought. Measured by the commands named, on A100, L40S, RTX PRO 6000, H100 and B200 (bf16; one
#: draw a framework), and on P4, P100, T4, V100 and A100-40GB (fp32; benchmarks/results/accuracy-fp32-2026-11-21.md).
EVIDENCE: Mapping[str, Evidence] = {
    "linear bf16": Evidence("bf16 GEMM, median error", {0: 9.2, 16: 7.7, 64: 6.4}, _SERVED, {16: 35, 64: 16}),
    **{
        f"{kind} fp32": Evidence("fp32 GEMM, mean error", {0: 21.7, 20: 11.2, 64: 9.2}, _FP32, whole=True)
        for kind in ("linear", "bmm")
    },
}


def choose(cases: Sequence[Case], target: Target, rows: int) -> dict[CaseGroup, list[Case]]:
    """The cases of each group to measure: ``rows`` for an estimator, in equal parts for its groups that have any.

    Raises RequestError where ``rows`` is not between 16 and 256, or the sweeps hold no such case.
    """
    if not FEWEST <= rows <= MOST:
        raise RequestError(f"{rows} rows to calibrate with: expected {FEWEST} to {MOST} for each estimator")
    taken = {group: [case for case in cases if group.takes(case, target)] for group in GROUPS}
    taken = {group: of_group for group, of_group in taken.items() if of_group}
    if not taken:
        raise RequestError(
            f"the sweeps have no case on {target.id} that an estimator is calibrated with: expected linear layers or"
            " flash attention in bf16, linear layers in fp8, or gemm, elementwise, softmax, norm in fp32"
        )
    chosen: dict[CaseGroup, list[Case]] = {}
    for estimator in dict.fromkeys(group.estimator for group in taken):
        groups = [group for group in taken if group.estimator == estimator]
        for place, group in enumerate(groups):
            share = rows // len(groups) + (place < rows % len(groups))
            chosen[group] = _informative(taken[group], share)
    return chosen


def bought(chosen: Mapping[CaseGroup, Sequence[Case]]) -> list[dict[str, str | int]]:
    """What the rows of each group buy: ``estimator``, ``group``, ``rows``, ``brings``."""
    groups: list[dict[str, str | int]] = []
    for group, cases in chosen.items():
        known = EVIDENCE.get(group.name)
        every = sum(len(rows) for other, rows in chosen.items() if other.estimator == group.estimator)
        brings = known.says(every if known.whole else len(cases)) if known else NO_EVIDENCE
        groups.append({"estimator": group.estimator, "group": group.name, "rows": len(cases), "brings": brings})
    return groups


def in_turns(chosen: Mapping[CaseGroup, Sequence[Case]]) -> list[Case]:
    """The cases of all groups, which take turns: every beginning is balanced."""
    rounds = itertools.zip_longest(*chosen.values())
    return [case for entry in rounds for case in entry if case is not None]


def _informative(cases: Sequence[Case], count: int) -> list[Case]:
    """At most ``count`` of the cases, in an order of which every beginning is spread."""
    flops = np.log([max(case.op.flops(), 1.0) for case in cases])
    intensity = flops - np.log([case.op.bytes_moved() for case in cases])
    picked = spread_out(np.log2([_sizes(case) for case in cases]), cells(flops, intensity, count), _SEED)
    return [cases[i] for i in np.random.default_rng(_SEED).permutation(picked)]


def _sizes(case: Case) -> list[int]:
    """The operator's sizes, 1 or more."""
    values = [getattr(case.op, f.name) for f in fields(case.op)]
    return [max(value, 1) for value in values if isinstance(value, int) and not isinstance(value, bool)]


# -------------------------------------------------------------------------------------------------------------- files


def write(path: Path, target: Target, cases: Sequence[Case]) -> None:
    """The cases as JSON, which `read` takes back."""
    document = {"format": FORMAT, "target": target.id, "cases": [case.to_json() for case in cases]}
    write_output(path, (json.dumps(document, indent=1) + "\n").encode())


def read(path: Path) -> list[Case]:
    """The cases of a file of `write`. Raises RequestError or SpecError, one line."""
    try:
        document = read_json(path)
        if document["format"] != FORMAT:
            raise KeyError("format")
        cases = [Case.from_json(entry) for entry in document["cases"]]
    except TilecastError as error:
        raise SpecError(f"--cases {path}: {error}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise SpecError(f"--cases {path}: expected a file of `microbench plan --calibration --out`") from None
    return list({case.id: case for case in cases}.values())


def runnable(cases: Sequence[Case], target: Target) -> list[Case]:
    """``cases`` as they are. Raises RequestError for the first that ``target`` cannot run."""
    for case in cases:
        why = refusal(case, target)
        if why:
            raise RequestError(
                f"--cases: {case.describe()}: {why}; plan for {target.id} (microbench plan --calibration)"
            )
    return list(cases)
