"""What to measure next on a GPU: the cases that shrink a set's intervals most, of those that `calibrate` learns from.

The pool are operators of the catalogue's models: for every class of interval, shapes from equally full cells over FLOPs
and arithmetic intensity. What the set leaves open of a case is the half-width of its interval now; cases of a class err
alike where their shapes are near each other (`predictor.data.sampling`: same lengths, same noise). Cases are taken one
by one, each the one that narrows most the mean interval of its class (greedy design of experiments: Krause, Singh and
Guestrin 2008, "Near-optimal sensor placements in Gaussian processes"). No latency is read; the widths to come are the
design's expectation, and those of a calibrated set are what its held-out rows say.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from predictor.data.sampling import LENGTH_OCTAVES, NOISE, cells, one_of_each
from predictor.data.schema import CUDA_GRAPH, ROTATING, from_op
from predictor.errors import RequestError
from predictor.files import outputs
from predictor.files.records import dataclass, replace
from predictor.fit.calibrate import FEWEST, FITS, MOST
from predictor.fit.evaluate import as_measured, intervals
from predictor.hardware.gpu import GPUSpec, load_gpu
from predictor.kernels.artifact import ArtifactSet, RooflineOnly, load_artifacts
from predictor.kernels.base import predict_kernels
from predictor.ops import Attention, Elementwise, Gemm, Norm, Op, Softmax
from predictor.request.request import Request
from predictor.simulate.plan import plan_of

#: Format of the file of cases, as `microbench collect --cases` reads it.
FORMAT = "microbench-cases"
#: Models and (sequences, tokens of each) whose operators are the pool, and cases of a class in it: chosen by hand, not
#: from data.
MODELS = ("gpt2", "gpt2-xl", "bert-large", "opt-1.3b", "llama-3.2-1b", "llama-3.1-8b", "gemma-2-9b")
PASSES = ((1, 16), (1, 128), (1, 1024), (2, 512), (4, 256), (4, 2048), (16, 64), (16, 512), (64, 128))
POOL = 96
#: Element-wise functions whose call depends on nothing but the number of elements.
FUNCTIONS = ("add", "mul", "gelu", "silu", "tanh", "neg", "exp", "add_scalar", "mul_scalar", "div_scalar", "pow_scalar")
#: A case needs at most this share of the memory, and this long by the roofline. Chosen by hand, not from data.
MEMORY_SHARE, LONGEST_S = 0.25, 0.1
LEAST_ELEMENTS = 1024  # chosen by hand, not from data
#: Half-width of the 80 % interval of a normal distribution in standard deviations (by definition: its 90 % quantile).
HALF_WIDTH = 1.2816
#: First compute capabilities with bf16 and fp8 products (CUDA Programming Guide, input types of the tensor cores), and
#: with attention of the Hopper kind, which is cuDNN's in PyTorch (`calibrate_serving.HOPPER_PREFILL`); widest head of
#: it on every GPU (cuDNN's developer guide).
BF16, FP8, HOPPER, CUDNN_HEAD = (8, 0), (8, 9), (9, 0), 128


@dataclass(frozen=True, slots=True)
class Candidate:
    """A case of the pool. ``half_width``: of its interval now, a logarithm; ``kind``: (estimator, class, dtype)."""

    op: Op
    protocol: str
    kind: tuple[str, str, str]
    half_width: float
    options: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The case as `microbench collect --cases` reads it."""
        cells = from_op(self.op)
        if not cells["quant"]:
            cells.pop("quant")
        return {
            "launcher": cells["op"], "op": cells, "options": dict(self.options),
            "cache": ROTATING if self.protocol == CUDA_GRAPH and self.op.cold_bytes() else "warm",
            "protocol": self.protocol,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A case to measure: mean half-widths (logarithms) of its class before it is, with those above it, and after."""

    case: Candidate
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Design:
    """The cases to measure, those that say most first. ``left_out``: estimators that would have got so many cases, too
    few for a calibration to learn anything of them."""

    cases: list[Suggestion]
    left_out: Mapping[str, int]


def suggest(gpu: str, count: int, out: Path, artifacts: Path | None = None) -> Design:
    """Write the ``count`` cases that shrink the intervals of the set at ``artifacts`` most on ``gpu`` to ``out``.

    Raises RequestError where the GPU is unknown, ``count`` is not between 5 and 256, the set has no intervals, or
    ``out`` cannot be written.
    """
    if not FEWEST <= count <= MOST:
        raise RequestError(f"--suggest {count}: expected {FEWEST} to {MOST} cases")
    if out.exists() and not out.is_file():
        raise RequestError(f"--out {str(out)!r}: is no plain file; expected a .json file to write")
    spec = load_gpu(gpu)
    source = load_artifacts(None if artifacts is None else str(artifacts))
    if not isinstance(source, ArtifactSet):
        raise RequestError("--artifacts roofline: has no estimators to calibrate; expected a folder of them")
    fewest = {}
    for folder in source.folders():
        fit = FITS.get(str(source.member_manifest(folder)["kind"]))
        if fit is not None:
            fewest[folder] = fit.fewest
    suggestions = choose([candidate for candidate in pool(spec, source) if candidate.kind[0] in fewest], count, fewest)
    document = {
        "format": FORMAT,
        "target": spec.id,
        "cases": [suggestion.case.to_json() for suggestion in suggestions.cases],
    }
    outputs.write("--out", out, (json.dumps(document, indent=1) + "\n").encode())
    return suggestions


# ----------------------------------------------------------------------------------------------------------- the pool


def pool(gpu: GPUSpec, source: ArtifactSet) -> list[Candidate]:
    """The cases to choose from, at most `POOL` of a class. RequestError for a set without intervals."""
    candidates: list[Candidate] = []
    eager, graphs = _fp32(gpu), _serving(gpu)
    for ops, protocol in ((eager, "eager_events"), (graphs, CUDA_GRAPH)):
        ops = [op for op in ops if op.bytes_moved() <= MEMORY_SHARE * gpu.memory_capacity]
        if not ops:
            continue
        table = predict_kernels(ops, gpu, source)
        seconds = as_measured(ops, table, gpu, source, protocol)
        kinds, (low, high) = intervals(ops, table, gpu, source, seconds)
        half = np.log(high / low) / 2.0
        for i in np.flatnonzero(np.isfinite(half) & (table.lower_bound_s <= LONGEST_S)).tolist():
            kind = (table.estimators[i], str(kinds[i]), ops[i].dtype)
            candidates.append(Candidate(ops[i], protocol, kind, float(half[i]), _options(ops[i], gpu)))
    if not candidates:
        raise RequestError("--suggest: the set of estimators has no intervals; expected one trained with them")
    return stratified(candidates)


def stratified(candidates: Sequence[Candidate]) -> list[Candidate]:
    """At most `POOL` of each class, one from each of equally full cells over FLOPs and arithmetic intensity."""
    chosen: list[Candidate] = []
    for of_kind in _by_kind(candidates).values():
        flops = np.log([max(candidate.op.flops(), 1.0) for candidate in of_kind])
        intensity = flops - np.log([candidate.op.bytes_moved() for candidate in of_kind])
        chosen += [of_kind[i] for i in one_of_each(cells(flops, intensity, POOL), 0)]
    return chosen


def _by_kind(candidates: Sequence[Candidate]) -> dict[tuple[str, str, str], list[Candidate]]:
    kinds: dict[tuple[str, str, str], list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        kinds[candidate.kind].append(candidate)
    return kinds


def _ops_of(gpu: GPUSpec, mode: str, dtype: str, attention: str) -> list[Op]:
    """Operators of the passes of all models, each once, in the order in which they first come."""
    ops: dict[Op, None] = {}
    for model in MODELS:
        for batch, tokens in PASSES:
            asked = Request(model, gpu, mode=mode, batch=batch, seq_len=tokens, dtype=dtype, attention=attention)
            if mode == "prefill" and model.startswith("bert"):
                continue  # an encoder has no prefill
            try:
                plan = plan_of(asked.run(RooflineOnly()))
            except RequestError:  # more tokens than the model's positions
                continue
            ops |= dict.fromkeys(n.op for s in plan.stages for block in s.graph.blocks for n in block.nodes)
    return list(ops)


def _fp32(gpu: GPUSpec) -> list[Op]:
    """Operators of eager PyTorch in fp32, as its rows are: products, element-wise, softmax and norms, forward."""
    ops: dict[Op, None] = {}
    for op in _ops_of(gpu, "forward", "fp32", "math"):
        if op.dtype != "fp32":
            continue
        if isinstance(op, Gemm) and op.kind in ("linear", "bmm"):
            ops[replace(op, bias=False, layout="tn" if op.kind == "linear" else op.layout)] = None
        elif isinstance(op, Elementwise) and op.fn in FUNCTIONS and op.elements >= LEAST_ELEMENTS:
            ops[Elementwise("fp32", op.fn, op.elements)] = None
        elif isinstance(op, Softmax) or (isinstance(op, Norm) and not op.residual):
            ops[op] = None
    return list(ops)


def _serving(gpu: GPUSpec) -> list[Op]:
    """Linear layers in bf16 and fp8 and prefill in bf16, as a library that PyTorch calls runs them on ``gpu``."""
    capability = _capability(gpu)
    if capability < BF16 or not gpu.supports("bf16"):
        return []
    ops: dict[Op, None] = {}
    for op in _ops_of(gpu, "prefill", "bf16", "flash"):
        if isinstance(op, Gemm) and (op.dtype, op.kind, op.quant) == ("bf16", "linear", ""):
            plain = replace(op, bias=False, layout="tn")
            ops[plain] = None
            if capability >= FP8 and gpu.supports("fp8") and op.n % 16 == op.k % 16 == 0:
                ops[replace(plain, dtype="fp8")] = None
        elif isinstance(op, Attention) and _is_prefill(op) and (capability < HOPPER or op.head_dim <= CUDNN_HEAD):
            ops[replace(op, kv_dtype="", dropout=False)] = None
    return list(ops)


def _is_prefill(op: Attention) -> bool:
    """Whether scaled_dot_product_attention makes the call: all of a prompt, no window, values as wide as keys."""
    return op.q_len == op.kv_len > 1 and not (op.window or op.v_head_dim)


def _capability(gpu: GPUSpec) -> tuple[int, int]:
    major, _, minor = (gpu.compute_capability or "0").partition(".")
    return int(major), int(minor or 0)


def _options(op: Op, gpu: GPUSpec) -> tuple[tuple[str, str], ...]:
    if not isinstance(op, Attention):
        return ()
    return (("impl", "cudnn" if _capability(gpu) >= HOPPER else "flash"),)


# --------------------------------------------------------------------------------------------------------- the choice


def choose(candidates: Sequence[Candidate], count: int, fewest: Mapping[str, int]) -> Design:
    """``count`` of the candidates, in the order in which they are worth most.

    An estimator that would get fewer cases than the ``fewest`` of which its calibration learns anything gets none, and
    the others its share. Raises RequestError where there are not so many candidates.
    """
    left, left_out = list(candidates), dict[str, int]()
    while True:
        suggestions = _greedy(left, count)
        if len(suggestions) < count:
            raise RequestError(f"--suggest {count}: expected at most {len(suggestions)}, the cases to choose from")
        rows = Counter(suggestion.case.kind[0] for suggestion in suggestions)
        short = [name for name in rows if rows[name] < fewest[name]]
        if not short:
            return Design(suggestions, left_out)
        poorest = min(short, key=lambda name: (rows[name] / fewest[name], name))
        left_out[poorest] = rows[poorest]
        left = [candidate for candidate in left if candidate.kind[0] != poorest]


def _greedy(candidates: Sequence[Candidate], count: int) -> list[Suggestion]:
    classes = [_Class(of_kind) for of_kind in _by_kind(candidates).values()]
    suggestions: list[Suggestion] = []
    while len(suggestions) < count:
        best = max(classes, key=lambda candidates_of_kind: candidates_of_kind.gain, default=None)
        if best is None or best.gain <= 0.0:
            break
        suggestions.append(best.take())
    return suggestions


class _Class:
    """What is open of the cases of one class. ``gain``: what the best of them takes off the mean half-width, -1 where
    none is left."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.own = candidates
        deviation = np.array([candidate.half_width for candidate in candidates]) / HALF_WIDTH
        at = np.log2([_sizes(candidate.op) for candidate in candidates])
        apart = ((at[:, None, :] - at[None, :, :]) ** 2).sum(axis=2)
        self.open = np.exp(-0.5 * apart / LENGTH_OCTAVES**2) * deviation[:, None] * deviation[None, :]
        self.noise = (NOISE * deviation) ** 2
        self.free = np.ones(len(candidates), dtype=bool)
        self._look()

    def _look(self) -> None:
        variance = np.diag(self.open)
        self.mean = HALF_WIDTH * float(np.sqrt(np.maximum(variance, 0.0)).mean())
        told = self.open**2 / np.maximum(variance + self.noise, 1e-30)[:, None]  # row i: by measuring i; guards zero
        after = HALF_WIDTH * np.sqrt(np.maximum(variance[None, :] - told, 0.0)).mean(axis=1)
        gains = np.where(self.free, self.mean - after, -1.0)
        self.best = int(gains.argmax())
        self.gain = float(gains[self.best])

    def take(self) -> Suggestion:
        i, before = self.best, self.mean
        self.free[i] = False
        row = self.open[i]
        self.open = self.open - np.outer(row, row) / (row[i] + self.noise[i])
        self._look()
        return Suggestion(self.own[i], before, self.mean)


def _sizes(op: Op) -> list[int]:
    """The operator's sizes, 1 or more."""
    values = [getattr(op, f.name) for f in fields(op)]
    return [max(value, 1) for value in values if isinstance(value, int) and not isinstance(value, bool)]
