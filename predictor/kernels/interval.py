"""How far a forecast may be off: widths by operator class and by distance from the GPUs that were measured.

A width is a pair (low, high) of logarithms of measured / predicted, the 10 % and the 90 % quantile of what forecasts of
that kind were off by on rows that their fit had not seen (`predictor.fit.fit_intervals`). The interval of a kernel
that takes t is [t exp(low), t exp(high)]. Four distances, each at least as wide as the one before it:

    seen     the GPU was measured; shapes were held out
    sibling  a GPU of the same generation was (`predictor.hardware.generation`)
    new      none was
    beyond   new, and outside the measured range besides; or a board of which values are assumed or announced

The distance is that from the GPUs with rows of the operator's dtype or quantization scheme: a board whose bf16 was
measured is new to int4. A scheme that one generation alone has was never left out of a fit with rows of it, so that
every other generation lies beyond.

An operator outside the range of what was measured (a size beyond twice the largest or below half the smallest, a dtype
that stands in for another one) takes the next distance, and so does one of a class without rows, which borrows the
widest of its estimator. A GPU that was calibrated has the widths that its rows, each held out from the others, show
(`predictor.kernels.fitting.adapt.width`); in classes without rows it counts as a sibling of itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from predictor.errors import SpecError
from predictor.files.read import read_json
from predictor.files.records import dataclass
from predictor.formats.quantization import variant
from predictor.hardware.generation import generation
from predictor.hardware.gpu import LINKS, GPUSpec
from predictor.kernels.ranges import INTERVALS, check
from predictor.kernels.stored import FILES, check_version, read_verified
from predictor.ops.attention import Attention
from predictor.ops.base import BACKWARD, Op
from predictor.ops.gemm import Gemm

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

FILE = "intervals.json"
#: Share of the measurements that an interval is meant to hold, by definition; half of the rest lies below it, half
#: above.
LEVEL = 0.8
DISTANCES = ("seen", "sibling", "new", "beyond")
#: The code of an answer that is the roofline alone, behind those of `DISTANCES`.
ALONE = len(DISTANCES)
#: How far beyond the largest (below the smallest) measured size counts as inside.
SLACK = 2.0
#: Sizes whose range is watched, of those that an operator has.
SIZES = frozenset((
    "batch", "m", "n", "k", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "tokens", "hidden", "intermediate",
    "experts", "rows", "cols", "vocab", "read_bytes", "write_bytes", "size",
))  # fmt: skip
#: Sizes that may be as small as they like: what such a kernel takes is its launch.
_NO_LEAST = ("read_bytes", "write_bytes", "size", "rows")
#: Families in which another dtype means other kernels; elsewhere only its bytes count.
BY_DTYPE = ("gemm", "attention", "moe")

#: Attention over latent vectors runs kernels of its own; sets without classes of it answer with plain attention's.
LATENT = "latent "
#: Class of eager measurements that are the host's time more than the kernel's (`predictor.fit.evaluate`).
LAUNCH = "launch"

Pair = tuple[float, float]


def op_class(op: Op) -> str:
    """The class whose widths hold for an operator: its family, told apart where kernels differ in kind."""
    if isinstance(op, Gemm):
        return op.kind
    if isinstance(op, Attention):
        latent = LATENT if op.shared_kv or (op.v_head_dim or op.head_dim) != op.head_dim else ""
        return latent + ("decode attention" if op.q_len == 1 else "prefill attention")
    return f"{op.family} backward" if getattr(op, "phase", "") == BACKWARD else op.family


@dataclass(frozen=True, slots=True)
class Width:
    """Log widths of n operators of one estimator, each of shape (n,), and a line for each class that is outside.

    ``distance``: the place in `DISTANCES` that each was taken from.
    """

    low: FloatArray
    high: FloatArray
    inside: BoolArray
    distance: IntArray
    classes: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OperatorIntervals:
    """Intervals of n operators of any estimators; arrays of shape (n,), NaN in the seconds where none is known.

    Operators of one code in ``classes`` err together: 0 for the roofline's, else a place in ``kinds``, counted from 1,
    of (estimator, class). ``notes`` has a line for each class outside what was measured. ``distance``: a place in
    `DISTANCES`, or `ALONE`.
    """

    low_s: FloatArray
    high_s: FloatArray
    inside: BoolArray
    classes: IntArray
    notes: tuple[str, ...]
    kinds: tuple[tuple[str, str], ...] = ()
    distance: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class ClassWidths:
    """One operator class: a pair a distance, a pair a measured GPU, sizes measured [least, most], dtypes measured.

    ``variants`` maps a dtype or quantization scheme to the GPUs with rows of it; empty where kernels go by none.
    """

    by_distance: Mapping[str, Pair]
    by_gpu: Mapping[str, Pair]
    sizes: Mapping[str, Pair]
    dtypes: tuple[str, ...]
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class _ClassOnBoard(NamedTuple):
    """Operators of one class, dtype and scheme on one GPU: the class's place among the tables', the index into
    `DISTANCES`, whether the dtype or scheme picks the kernel and was not measured; the pair within the measured range,
    and the one beyond it."""

    name: str
    place: int
    distance: int
    foreign: bool
    inside: Pair
    outside: Pair


#: Boards whose kinds are kept, a guard against memory without end; chosen by hand, not from data.
_BOARDS = 64


class Intervals:
    """The widths of one estimator. ``gpus`` maps the id of a measured GPU to (generation, vendor)."""

    def __init__(
        self,
        gpus: Mapping[str, tuple[str, str]],
        classes: Mapping[str, ClassWidths],
        calibrated: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        self.gpus = gpus
        self.classes = classes
        self._calibrated = {
            gpu: {name: _pair(pair) for name, pair in about.get("width", {}).items()}
            for gpu, about in calibrated.items()
        }
        self._names = list(classes)
        self._index = {name: i for i, name in enumerate(self._names)}
        self._tables: dict[str, FloatArray] = {}
        self._distance: dict[tuple[str, str, GPUSpec], int] = {}
        self._ranges: dict[tuple[str, ...], tuple[tuple[str, ...], FloatArray, FloatArray]] = {}
        self._known: dict[GPUSpec, dict[tuple[str, str, str], _ClassOnBoard]] = {}

    @classmethod
    def read(cls, folder: Path, manifest: Mapping[str, Any]) -> Intervals | None:
        """The widths in an estimator's folder, None where it has none.

        SpecError where they are not those that its ``manifest`` names, or cannot be read.
        """
        path = folder / FILE
        if FILE not in manifest.get(FILES, ()) and not path.is_file():
            return None
        read_verified(path, manifest)
        data = read_json(path)
        check_version(path, data)
        check(path, data, INTERVALS)
        try:
            return cls.from_dict(data, manifest.get("calibrated", {}))
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # a number where a mapping was
            raise SpecError(f"{path} is incomplete: {error}") from None

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], calibrated: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    ) -> Intervals:
        """From the content of an ``intervals.json``; KeyError or ValueError where it is not one."""
        if not data["classes"]:
            raise ValueError("no classes")
        classes = {
            name: ClassWidths(
                {distance: _pair(entry["widths"][distance]) for distance in DISTANCES},
                {gpu: _pair(pair) for gpu, pair in entry["gpus"].items()},
                {size: _pair(pair) for size, pair in entry["sizes"].items()},
                _texts(entry["dtypes"]),
                {name: _texts(measured) for name, measured in entry["variants"].items()},
            )
            for name, entry in data["classes"].items()
        }
        gpus = {gpu: (str(arch), str(vendor)) for gpu, (arch, vendor) in data["gpus"].items()}
        return cls(gpus, classes, calibrated)

    def distance(self, gpu: GPUSpec, measured: Collection[str] = ()) -> int:
        """Index into `DISTANCES`; a GPU of a vendor that was not measured is beyond, and so is one of which values are
        assumed or announced.

        With ``measured``, from these GPUs alone; where they are of one generation, another one is beyond, too.
        """
        known = [self.gpus[name] for name in measured or self.gpus if name in self.gpus]
        if gpu.id in (measured or self.gpus):
            return 0
        if gpu.id not in self._calibrated and (gpu.announced or not set(gpu.assumed) <= set(LINKS)):
            return 3
        if gpu.id in self._calibrated or generation(gpu) in {kin for kin, _ in known}:
            return 1
        kin = {name for name, vendor in known if vendor == gpu.vendor}
        return 2 if len(kin) > (1 if measured else 0) else 3

    def width(self, ops: Sequence[Op], columns: Mapping[str, FloatArray], gpu: GPUSpec) -> Width:
        """Widths of operators of one family; ``columns`` are theirs, of shape (n,)."""
        kinds = self._kinds(ops, gpu)
        sizes, least, most = self._range(tuple(columns))
        index = np.array([kind.place for kind in kinds])
        values = np.array([columns[name] for name in sizes]).T if sizes else np.empty((len(ops), 0))
        far = (values < least[index]) | (values > most[index])
        foreign = np.array([kind.foreign for kind in kinds])
        ways = (far.any(axis=1) | foreign).tolist()
        pairs = np.array([kind.outside if way else kind.inside for kind, way in zip(kinds, ways, strict=True)])
        inside = np.array([kind.distance < 3 and not way for kind, way in zip(kinds, ways, strict=True)])
        names = tuple(kind.name for kind in kinds)
        notes = self._notes(names, sizes, values, far, foreign, ops) if any(ways) else ()
        if any(kind.distance == 3 for kind in kinds) and self.distance(gpu) < 3:
            notes += self._alone(names, ops, gpu)
        taken = np.array([min(kind.distance + way, ALONE - 1) for kind, way in zip(kinds, ways, strict=True)])
        return Width(pairs[:, 0], pairs[:, 1], inside, taken, names, notes)

    def _kinds(self, ops: Sequence[Op], gpu: GPUSpec) -> list[_ClassOnBoard]:
        """What is known of each operator's class on ``gpu``; looked up once for all operators of a kind."""
        known = self._known.get(gpu)
        if known is None:
            if len(self._known) >= _BOARDS:
                self._known.clear()
            known = self._known[gpu] = {}
        kinds = []
        for op in ops:
            name = op_class(op)
            key = name, op.dtype, getattr(op, "quant", "")
            kind = known.get(key)
            if kind is None:
                kind = known[key] = self._kind(name if name in self._index else name.removeprefix(LATENT), op, gpu)
            kinds.append(kind)
        return kinds

    def _kind(self, name: str, op: Op, gpu: GPUSpec) -> _ClassOnBoard:
        """What is known of a class on ``gpu`` for operators such as ``op``."""
        last = len(self._names)  # the widest of all
        place, entry, of = self._index.get(name, last), self.classes.get(name), variant_of(op)
        distance, foreign = self.distance(gpu), False
        if op.family in BY_DTYPE:
            quant = getattr(op, "quant", "")
            quant = quant if quant == of else ""  # else kernels of the dtype
            foreign = entry is not None and (op.dtype not in entry.dtypes or self._unmeasured(entry, quant))
            distance = self._variant_distance(name, of, gpu)
            distance = max(distance, 2) if quant and foreign else distance
        table, calibrated = self._table(gpu), self._calibrated.get(gpu.id, {})
        near, far = (
            (float(low), float(high))
            for low, high in table[place, [min(distance + more, len(DISTANCES) - 1) for more in (place == last, 1)]]
        )
        near = calibrated.get(f"{name}|{of}", calibrated.get(name, near))
        return _ClassOnBoard(name, place, distance, foreign, near, far)

    def _variant_distance(self, name: str, kind: str, gpu: GPUSpec) -> int:
        """The distance from GPUs with rows of a variant of a class, from all where none is listed."""
        key = (name, kind, gpu)
        if key not in self._distance:
            entry = self.classes.get(name)
            self._distance[key] = self.distance(gpu, entry.variants.get(kind, ()) if entry else ())
        return self._distance[key]

    @staticmethod
    def _unmeasured(entry: ClassWidths, quant: str) -> bool:
        """Whether a quantization scheme has no row on any GPU: other schemes' kernels answer for it."""
        return bool(quant and entry.variants) and quant not in entry.variants

    def _alone(self, names: Sequence[str], ops: Sequence[Op], gpu: GPUSpec) -> tuple[str, ...]:
        """One line for each variant whose only generation is not this GPU's."""
        return tuple(
            f"{name}: {kind} was only measured on {', '.join(self.classes[name].variants[kind])}"
            for name, kind in dict.fromkeys((n, variant_of(op)) for n, op in zip(names, ops, strict=True))
            if self._variant_distance(name, kind, gpu) == 3
        )

    def launch(self, gpu: GPUSpec) -> Pair | None:
        """Log widths of eager calls whose time is the host's, None where no such row was judged."""
        if LAUNCH not in self._index:
            return None
        low, high = self._table(gpu)[self._index[LAUNCH], self.distance(gpu)]
        return float(low), float(high)

    def _table(self, gpu: GPUSpec) -> FloatArray:
        """(classes + 1, distances, 2): the pairs for a GPU, those of its own rows where it was measured."""
        key = gpu.id if gpu.id in self.gpus else ""
        if key not in self._tables:
            rows = [
                [entry.by_gpu.get(key, entry.by_distance["seen"]), *(entry.by_distance[d] for d in DISTANCES[1:])]
                for entry in self.classes.values()
            ]
            table = np.array(rows, dtype=np.float64)
            table[:, :, 0] = np.minimum.accumulate(table[:, :, 0], axis=1)
            table[:, :, 1] = np.maximum.accumulate(table[:, :, 1], axis=1)
            kernels = table[[i for i, name in enumerate(self._names) if name != LAUNCH] or slice(None)]
            widest = np.stack([kernels[:, :, 0].min(axis=0), kernels[:, :, 1].max(axis=0)], axis=1)
            self._tables[key] = np.concatenate([table, widest[None]])
        return self._tables[key]

    def _range(self, columns: tuple[str, ...]) -> tuple[tuple[str, ...], FloatArray, FloatArray]:
        """The sizes that are watched among ``columns``; least and most of each that counts as inside, of shape
        (classes + 1, sizes)."""
        if columns not in self._ranges:
            sizes, anything = tuple(name for name in columns if name in SIZES), (-np.inf, np.inf)
            pairs = [[entry.sizes.get(name, anything) for name in sizes] for entry in self.classes.values()]
            table = np.array([*pairs, [anything] * len(sizes)], dtype=np.float64).reshape(-1, len(sizes), 2)
            least = np.where([name in _NO_LEAST for name in sizes], -np.inf, table[:, :, 0] / SLACK)
            most = table[:, :, 1] * SLACK
            self._ranges[columns] = sizes, least, most
        return self._ranges[columns]

    def _notes(
        self, names: Sequence[str], sizes: tuple[str, ...], values: FloatArray, far: BoolArray, foreign: BoolArray,
        ops: Sequence[Op],
    ) -> tuple[str, ...]:  # fmt: skip
        """One line for each class with an operator outside: the first of them."""
        notes: dict[str, str] = {}
        for i in np.flatnonzero(far.any(axis=1) | foreign).tolist():
            name = names[i]
            if name in notes:
                continue
            entry = self.classes[name]
            if foreign[i]:
                quant = getattr(ops[i], "quant", "")
                what, were = (
                    (quant, tuple(entry.variants)) if quant and entry.variants else (ops[i].dtype, entry.dtypes)
                )
                notes[name] = f"{name}: {what} was not measured, only {', '.join(were)}"
            else:
                j = int(np.argmax(far[i]))
                low, high = entry.sizes[sizes[j]]
                size = ops[i].called.get(sizes[j], sizes[j])
                notes[name] = f"{name}: {size} {values[i, j]:.10g} is outside the measured {low:.10g} to {high:.10g}"
        return tuple(notes.values())


def variant_of(op: Op) -> str:
    """The dtype or quantization scheme whose kernels run an operator (`predictor.formats.quantization.variant`)."""
    return variant(op.dtype, getattr(op, "quant", ""))


def _texts(values: Any) -> tuple[str, ...]:
    """A list of texts; ValueError for what is none."""
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise ValueError(f"{values!r:.60}: expected a list of texts")
    return tuple(values)


def _pair(values: Sequence[float]) -> Pair:
    low, high = (float(v) for v in values)
    if not low <= high:
        raise ValueError(f"[{low}, {high}]: expected the lower one first")
    return low, high


@runtime_checkable
class HasIntervals(Protocol):
    """A selector that knows how far its estimators, and the roofline, may be off."""

    def intervals(self, name: str) -> Intervals | None:
        """Widths of the estimator ``name``."""
        ...

    def roofline_width(self) -> Pair | None:
        """Log widths of an answer that is the roofline alone."""
        ...


#: Operators, columns and rows of one group that an estimator (by name) answered for.
Group = tuple[str, Sequence[Op], Mapping[str, FloatArray], npt.NDArray[np.int64]]


#: Logarithms of what a copy to the host takes over the forecast, chosen by hand, not from data: from the link's own
#: rate (15 % faster than `predictor.passes.offload.REACHED`) to two GPUs that share a switch.
COPIES = (-0.14, 0.7)


def spread(
    selector: object, gpu: GPUSpec, groups: Sequence[Group], latency_s: FloatArray, bound_s: FloatArray,
    copies: Sequence[int] = (),
) -> OperatorIntervals | None:  # fmt: skip
    """Intervals of n operators, no lower end below the roofline's bound; None where the selector knows of none.

    Rows of no group were answered by the roofline; ``copies`` among them are bytes over the link to the host.
    """
    if not isinstance(selector, HasIntervals):
        return None
    n = len(latency_s)
    low, high = np.full(n, np.nan), np.full(n, np.nan)
    inside, codes = np.ones(n, dtype=bool), np.zeros(n, dtype=np.int64)
    distance = np.full(n, ALONE, dtype=np.int64)
    distance[list(copies)] = 0
    notes: list[str] = []
    numbers: dict[tuple[str, str], int] = {}
    alone = np.ones(n, dtype=bool)
    widths: list[Width] = []
    places: list[npt.NDArray[np.int64]] = []
    kinds: list[int] = []
    for name, ops, columns, index in groups:
        alone[index] = False
        known = selector.intervals(name)
        if known is None:
            continue
        width = known.width(ops, columns, gpu)
        widths.append(width)
        places.append(index)
        kinds += [numbers.setdefault((name, kind), len(numbers) + 1) for kind in width.classes]
        notes += width.notes
    if widths:
        at = np.concatenate(places)
        low[at], high[at] = (np.concatenate([getattr(width, end) for width in widths]) for end in ("low", "high"))
        inside[at], codes[at] = np.concatenate([width.inside for width in widths]), kinds
        distance[at] = np.concatenate([width.distance for width in widths])
    rest = selector.roofline_width()
    if rest is not None:
        low[alone], high[alone] = rest
        low[list(copies)], high[list(copies)] = COPIES
    low = np.maximum(latency_s * np.exp(low), np.minimum(bound_s, latency_s))
    lines = tuple(dict.fromkeys(notes))
    return OperatorIntervals(low, latency_s * np.exp(high), inside, codes, lines, tuple(numbers), distance)
