"""Sweeps: one YAML file an operator -> the cases of a device, in an order of which every beginning is balanced.

A group of a file names fixed `fields`, `axes` along which shapes are drawn, dtypes, options and how it is timed. Shapes
come from an additive recurrence (Roberts, "The unreasonable effectiveness of quasirandom sequences", 2018): its first n
points fill the space evenly for every n, and they are the same on every machine. docs/reference/microbench.md shows a
file.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from microbench import calibration
from microbench.capability import Target, copies, held_bytes, refusal
from microbench.case import Case, op_from
from microbench.launchers import LAUNCHERS
from microbench.own_ops import KNOWN
from predictor.data.schema import ROTATING, SUSTAINED
from predictor.errors import RequestError, SpecError, unknown_name
from predictor.files.yaml_reader import read_yaml_file
from predictor.formats.dtypes import canonical
from predictor.ops import Embedding, MoE, Op

SWEEPS = Path(__file__).parent / "sweeps"
SERVED = Path(__file__).parent / "served_products.csv"
#: A call that is expected to take longer is left out of a sweep: hundreds of them are needed. Chosen by hand, not from
#: data.
LONGEST_CALL_S = {"cuda": 0.05, "cpu": 0.03}
#: Share of the device's memory that the bytes of a call may take, and the most that they may be: filling them with
#: random values takes a processor longer than measuring. Chosen by hand, not from data.
MEMORY_SHARE = 0.25
MOST_BYTES = {"cuda": 2.0**36, "cpu": 2.0**28}
#: Launchers whose first call imports PyTorch's compiler: 3 s on a busy machine.
_SLOW_START = ("optimizer",)
#: Cases of a launcher among which its first is chosen: so many, by hand, not from data.
_FEW = 8
#: Where bf16 runs at the rate of fp16, rows of one say what rows of the other do, and nothing reads the other's.
_SAME = "fp16, whose products take as long as those of bf16: --dtypes fp16 asks for it"
#: A call that is expected to be shorter is not measured under load: a board's power limit does not hold it. Chosen by
#: hand, not from data.
_SUSTAINED_CALL_S = 4e-5
#: The first of two dimensions of the sequence that say whether a shape is a served one, and which. By definition: no
#: axis of a group gets so far.
_SERVED_AT = 30
_GROUP_KEYS = frozenset(
    (
        "name",
        "op",
        "dtypes",
        "fields",
        "axes",
        "options",
        "points",
        "timed",
        "device",
        "longest_call_s",
        "turns",
        "served",
    )
)
#: (cache, protocol, share of the shapes) of a group that names none: chosen by hand, not from data.
_DEFAULT_TIMED = [["warm", "cuda_graph", 1.0], ["cold", "eager_events", 0.1], ["warm", "eager_events", 0.35]]


@dataclass(slots=True)
class CasePlan:
    """Cases in the order in which they run, and how many were left out and why."""

    cases: list[Case] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)


def sweep_names(folder: Path = SWEEPS) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def check_names(ops: Sequence[str] | None, folder: Path = SWEEPS) -> tuple[str, ...]:
    """The launchers that ``ops`` asks for (None: all). Raises UnknownNameError, one line."""
    names = sweep_names(folder)
    if not names:
        raise RequestError(f"{folder} holds no sweep: expected files such as gemm.yaml")
    for name in ops or ():
        if name not in names:
            raise unknown_name("operator", name, names)
    return tuple(dict.fromkeys(ops)) if ops else names


def build(
    target: Target, ops: Sequence[str] | None = None, dtypes: Sequence[str] | None = None, folder: Path = SWEEPS
) -> CasePlan:
    """The cases of the sweeps named by ``ops`` (None: all) in the dtypes wanted (None: all) that ``target`` can run.

    Raises UnknownNameError, and SpecError, one line, for a sweep that cannot be read.
    """
    return build_deep(target, ops, dtypes, folder)


def build_deep(
    target: Target, ops: Sequence[str] | None = None, dtypes: Sequence[str] | None = None, folder: Path = SWEEPS,
    depths: tuple[int, int] = (1, 1),
) -> CasePlan:  # fmt: skip
    """`build` with so many times the shapes: of cases that no calibration reads, and of those that one does."""
    launchers = check_names(ops, folder)
    kinds = {canonical(dtype) for dtype in dtypes} if dtypes else None
    plan = CasePlan()
    queues: list[tuple[float, list[Case]]] = []
    for name in launchers:
        path = folder / f"{name}.yaml"
        try:
            document = _load(path)
            cases = _launcher_cases(document, target, kinds, plan, depths)
            weight = float(document.get("weight", 1.0))
            if not 0 < weight < math.inf:
                raise ValueError(f"weight {weight:g} is not above zero")
        except (TypeError, ValueError, LookupError, ZeroDivisionError, AttributeError, OverflowError) as error:
            raise SpecError(f"the sweep {path} makes no cases: {type(error).__name__}: {error}") from None
        queues.append((weight, cases))
    plan.cases = _read_first(_weave(queues, target), target, len([cases for _, cases in queues if cases]))
    return plan


#: Of the plan's cases, as long as there are any, those that `tilecast calibrate` reads. Chosen by hand, not from data.
READ_SHARE = 0.6


def _read_first(cases: list[Case], target: Target, first_round: int) -> list[Case]:
    """``cases`` behind the first of every operator, `READ_SHARE` of them such as a calibration reads: an hour's rows
    are worth most where a forecast narrows by them."""
    kinds: tuple[list[Case], list[Case]] = ([], [])
    for case in cases[first_round:]:
        kinds[calibration.reads(case, target)].append(case)
    others, read = kinds
    keyed = [((place + 0.5) / READ_SHARE, case) for place, case in enumerate(read)]
    keyed += [((place + 0.5) / (1.0 - READ_SHARE), case) for place, case in enumerate(others)]
    return cases[:first_round] + [case for _, case in sorted(keyed, key=lambda entry: entry[0])]


def _weave(queues: Iterable[tuple[float, list[Case]]], target: Target) -> list[Case]:
    """Cases of all launchers together: a quick one of each, the quickest first, so that a short budget has them all;
    then a launcher of weight 2 has had two cases where one of weight 1 has had one."""
    keyed = [
        ((position + 0.5) / weight, number, case)
        for number, (weight, cases) in enumerate(queues)
        for position, case in enumerate(cases)
    ]
    woven = [case for _, _, case in sorted(keyed, key=lambda entry: entry[:2])]

    def work(case: Case) -> tuple[bool, bool, float]:  # the flush of the cache, then data to fill and a call
        seconds = _footprint(case.op) / target.bandwidth + target.seconds(case)
        return case.launcher in _SLOW_START or case.protocol == SUSTAINED, case.cache == "cold", seconds

    first = sorted((min(cases[:_FEW], key=work) for _, cases in queues if cases), key=work)
    return list({case.id: case for case in [*first, *woven]}.values())


def _launcher_cases(
    document: Mapping[str, Any], target: Target, kinds: set[str] | None, plan: CasePlan, depths: tuple[int, int]
) -> list[Case]:
    """The cases of one file: its strata (group, dtype, options, cache, protocol, phase) take turns."""
    strata: dict[tuple[Any, ...], list[Case]] = {}
    turns: dict[tuple[Any, ...], float] = {}
    for group in document["groups"]:
        if target.kind not in group.get("device", ("cuda", "cpu")):
            continue
        for case in _group_cases(document["launcher"], group, target, kinds, plan, depths):
            key = (group["name"], case.op.dtype, case.options, case.cache, case.protocol, case.phase)
            strata.setdefault(key, []).append(case)
            turns[key] = float(group.get("turns", 1)) * _share(case, group, target)
    return _rounds(list(strata.values()), list(turns.values()))


def _rounds(strata: list[list[Case]], turns: list[float]) -> list[Case]:
    """The strata in turns: each gives one case a round, or as many as its group's ``turns`` and the share of its shapes
    that are timed so say; so a beginning of the plan has the shares of the whole."""
    keyed = [
        ((place + 0.5) / often, number, case)
        for number, (stratum, often) in enumerate(zip(strata, turns, strict=True))
        for place, case in enumerate(stratum)
    ]
    return [case for _, _, case in sorted(keyed, key=lambda entry: entry[:2])]


def _share(case: Case, group: Mapping[str, Any], target: Target) -> float:
    """Of the shapes of a group, what is timed as ``case`` is."""
    timed = _timed(group.get("timed", _DEFAULT_TIMED), target)
    return next(share for cache, protocol, share in timed if (cache, protocol) == (case.cache, case.protocol))


def _group_cases(
    launcher: str, group: Mapping[str, Any], target: Target, kinds: set[str] | None, plan: CasePlan,
    depths: tuple[int, int],
) -> Iterator[Case]:  # fmt: skip
    timed = _timed(group.get("timed", _DEFAULT_TIMED), target)
    longest = float(group.get("longest_call_s", LONGEST_CALL_S[target.kind]))
    for dtype in group["dtypes"]:
        if kinds is not None and dtype not in kinds:
            continue
        if kinds is None and dtype == "fp16" and "bf16" in group["dtypes"] and target.has_bf16:
            plan.left_out[_SAME] = plan.left_out.get(_SAME, 0) + int(group.get("points", 1))
            continue
        many, read, deeper = depths[0] * _points(group), False, depths[1] > depths[0]
        served = float(group.get("served", 0.0)) if target.kind == "cuda" else 0.0  # a processor's are no serving rows
        for number, cells in enumerate(_shapes(group, served, max(depths))):
            if number >= many and not read:
                break
            op = op_from({"op": group.get("op", launcher), "dtype": canonical(dtype), **cells})
            if launcher != "tile" and not op.bytes_moved() + op.flops() > 0 and not getattr(op, "size", 0) > 0:
                raise ValueError(f"sizes are above zero, not {cells}")
            for options in _options(group):
                for cache, protocol, share in timed:
                    if _fraction(number, 7) >= share:
                        continue
                    case = _case(launcher, op, options, cache, protocol, target)
                    if number >= many and not calibration.reads(case, target):
                        continue
                    read = read or (deeper and calibration.reads(case, target))
                    why = refusal(case, target) or _too_much(case, target, longest)
                    if why:
                        plan.left_out[why] = plan.left_out.get(why, 0) + 1
                    else:
                        yield case


def _case(
    launcher: str, op: Op, options: tuple[tuple[str, Any], ...], cache: str, protocol: str, target: Target
) -> Case:
    """The case; a tile probe gets m and n here, so that its tiles fill as many waves of the device as it asks for, in a
    grid that is nearly square, or in a row."""
    if launcher != "tile":
        return Case(launcher, op, options, cache, protocol)
    chosen = dict(options)
    tile_m, tile_n, _ = (int(part) for part in str(chosen["tile"]).split("x"))
    tiles = max(1, round(int(chosen["quarter_waves"]) / 4 * target.units))
    down = max(d for d in range(1, math.isqrt(tiles) + 1) if tiles % d == 0) if chosen.get("grid") != "row" else 1
    shaped = replace(op, m=down * tile_m, n=tiles // down * tile_n)  # type: ignore[call-arg]
    return Case(launcher, shaped, (("tile", chosen["tile"]),), cache, protocol)


def _too_much(case: Case, target: Target, longest: float) -> str:
    filled = _footprint(case.op)
    if case.cache == ROTATING:
        filled += (copies(held_bytes(case.op), target.cache_bytes) - 1) * (_held(case.op) or held_bytes(case.op))
    if filled > min(MEMORY_SHARE * target.memory_bytes, MOST_BYTES[target.kind]):
        return "takes too much memory"
    if target.seconds(case) > longest:
        return f"a call would take longer than {longest:g} s"
    if case.protocol == SUSTAINED and target.seconds(case) < _SUSTAINED_CALL_S:
        return f"a call of less than {_SUSTAINED_CALL_S * 1e6:g} us does not load a board"
    return ""


def _footprint(op: Op) -> float:
    """Bytes that the operands of ``op`` fill, at the least: a table and the experts whole, not what of them is read."""
    return max(op.bytes_moved(), _held(op))


def _held(op: Op) -> float:
    """Bytes of a table or of the experts, whole; 0 for other operators."""
    if isinstance(op, Embedding):
        return op.vocab * op.width * op.itemsize
    return op.experts * op.matrices * op.hidden * op.intermediate * op.itemsize if isinstance(op, MoE) else 0.0


def _timed(entries: Sequence[Sequence[Any]], target: Target) -> list[tuple[str, str, float]]:
    """How a group is timed on this device: one without graphs times calls in their place."""
    shares: dict[tuple[str, str], float] = {}
    for cache, protocol, share in entries:
        if protocol == SUSTAINED and SUSTAINED not in target.protocols:
            continue
        if target.kind == "cpu":  # its calls are no serving rows, and its cache takes long to pass
            cache = "warm" if cache == ROTATING else cache
        key = (str(cache), str(protocol) if protocol in target.protocols else "eager_events")
        shares[key] = max(shares.get(key, 0.0), float(share))
    return [(cache, protocol, share) for (cache, protocol), share in shares.items()]


def _options(group: Mapping[str, Any]) -> list[tuple[tuple[str, Any], ...]]:
    """Every combination of the options' values, each sorted by name."""
    options = group.get("options", {})
    names = sorted(options)
    values = [options[name] if isinstance(options[name], list) else [options[name]] for name in names]
    return [tuple(zip(names, combination, strict=True)) for combination in itertools.product(*values)]


# ------------------------------------------------------------------------------------------------------------ shapes


def _combinations(group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fixed fields of a group: lists take turns."""
    constants = group.get("fields", {})
    names = list(constants)
    lists = [constants[name] if isinstance(constants[name], list) else [constants[name]] for name in names]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*lists)]


def _points(group: Mapping[str, Any]) -> int:
    """Shapes of a group."""
    return int(group.get("points", len(_combinations(group))))


@functools.cache
def served_products() -> tuple[list[tuple[int, int]], list[float]]:
    """(n, k) of linear layers that are served, and up to each the share of the time that one row through all of them
    takes, which is that of their weights' bytes."""
    lines = [line for line in SERVED.read_text(encoding="utf-8").splitlines() if line and line[0].isdigit()]
    pairs = [(int(n), int(k)) for n, _, k in (line.partition(",") for line in lines)]
    sums = list(itertools.accumulate(n * k for n, k in pairs))
    return pairs, [at / sums[-1] for at in sums]


def _shapes(group: Mapping[str, Any], served: float, depth: int) -> Iterator[dict[str, Any]]:
    """The `points` first distinct shapes of a group, times ``depth``: fixed fields (lists take turns) and drawn axes.
    The share ``served`` of them has n and k of `served_products`."""
    combinations = _combinations(group)
    axes = group.get("axes", {})
    points = depth * _points(group)
    seen: set[tuple[Any, ...]] = set()
    for number in range(8 * points):
        if len(seen) >= points:
            return
        cells = dict(combinations[number % len(combinations)])
        for place, (name, axis) in enumerate(axes.items()):
            cells[name] = _draw(axis, cells, _fraction(number, place + 1), _fraction(number, place + 41))
        if _fraction(number, _SERVED_AT) < served:
            pairs, shares = served_products()
            cells["n"], cells["k"] = pairs[bisect.bisect_left(shares, _fraction(number, _SERVED_AT + 1))]
        key = tuple(cells.items())
        if key not in seen:
            seen.add(key)
            yield cells


@functools.cache
def _step(dimension: int) -> float:
    """An irrational step for a dimension: the fractional part of the square root of the dimension-th prime."""
    primes = [n for n in range(2, 400) if all(n % d for d in range(2, math.isqrt(n) + 1))]
    return math.sqrt(primes[dimension]) % 1.0


def _fraction(number: int, dimension: int) -> float:
    """The ``number``-th term of the sequence of a dimension, in [0, 1)."""
    return (0.5 + (number + 1) * _step(dimension)) % 1.0


def _draw(axis: Mapping[str, Any], cells: Mapping[str, Any], at: float, how: float) -> Any:
    """One value: of a list (`choice`), of a range with equal ratios (`log`), or of an earlier field."""
    if "choice" in axis:
        return axis["choice"][int(at * len(axis["choice"]))]
    if "same" in axis:
        return cells[axis["same"]]
    if "divide" in axis:
        fitting = [by for by in axis["by"] if cells[axis["divide"]] % by == 0]
        return cells[axis["divide"]] // fitting[int(at * len(fitting))]
    low, high = axis["log"]
    value = low * (high / low) ** at
    return align(value, how, int(axis.get("multiple", 1)), low, high)


def align(value: float, how: float, multiple: int, low: int, high: int) -> int:
    """A drawn size as people use sizes: 40 % powers of two, 35 % multiples of 64 or 8, 25 % as it comes ("awkward").

    ``multiple`` is what every value has to be a multiple of.
    """
    if how < 0.4:
        size = 2 ** round(math.log2(value))
    elif how < 0.75:
        step = 64 if value >= 256 else 8 if value >= 16 else 1
        size = max(step, round(value / step) * step)
    else:
        size = max(1, round(value))
    size = max(multiple, round(size / multiple) * multiple)
    return int(min(max(size, low), high))


# ------------------------------------------------------------------------------------------------------------- files


def _load(path: Path) -> dict[str, Any]:
    """One sweep file, checked. Raises SpecError, one line that names the file, the group and what is wrong."""
    document = read_yaml_file(path, "a sweep: a launcher and groups", f"the sweep {path}")
    if not isinstance(document, dict) or "launcher" not in document or not isinstance(document.get("groups"), list):
        raise SpecError(f"the sweep {path} has no launcher or no list of groups")
    if document["launcher"] not in tuple(LAUNCHERS):
        raise SpecError(
            f"the sweep {path}: no launcher {document['launcher']!r}: expected one of {', '.join(LAUNCHERS)}"
        )
    for group in document["groups"]:
        _check_group(path, str(document["launcher"]), group)
    return document


def _check_group(path: Path, launcher: str, group: Any) -> None:
    where = f"the sweep {path}, group {group.get('name') if isinstance(group, dict) else group!r}"
    if not isinstance(group, dict) or "name" not in group or "dtypes" not in group:
        raise SpecError(f"{where}: expected a name and dtypes")
    strange = [key for key in group if key not in _GROUP_KEYS]
    if strange:
        raise SpecError(f"{where}: unknown key {strange[0]!r}: expected one of {', '.join(sorted(_GROUP_KEYS))}")
    for key, kind, such_as in (("dtypes", list, "[bf16]"), ("fields", dict, "{k: 64}"), ("axes", dict, "{m: ...}")):
        if not isinstance(group.get(key, kind()), kind):
            raise SpecError(f"{where}: {key} is {group[key]!r}: expected such as {such_as}")
    name = str(group.get("op", launcher))
    if name not in KNOWN:
        raise SpecError(f"{where}: unknown operator {name!r}")
    given = {**group.get("fields", {}), **group.get("axes", {})}
    known = {f.name: f.default for f in fields(KNOWN[name])}
    for field_name in given:
        if field_name not in known:
            raise SpecError(f"{where}: operator {name!r} has no field {field_name!r}")
    missing = [n for n, default in known.items() if default is MISSING and n not in given and n != "dtype"]
    if missing:
        raise SpecError(f"{where}: no value for {', '.join(missing)}")
    for field_name, axis in group.get("axes", {}).items():
        if not isinstance(axis, dict) or not {"choice", "same", "divide", "log"} & set(axis):
            raise SpecError(f"{where}: an axis is choice, log, same or divide, not {axis!r}")
        _check_axis(f"{where}: axis {field_name} is {axis!r}", axis, given)


def _check_axis(said: str, axis: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuses bounds that are no sizes, an empty choice, and a reference to a field that the group does not give."""
    low_high = axis.get("log", [1, 1])
    plain = isinstance(low_high, list) and all(isinstance(n, int | float) and n > 0 for n in low_high)
    if not plain or len(low_high) != 2 or low_high[0] > low_high[1]:
        raise SpecError(f"{said}: expected log: [lowest, highest], both above zero")
    if axis.get("choice", [1]) in ([], None) or not isinstance(axis.get("choice", []), list):
        raise SpecError(f"{said}: expected choice: a list of values")
    other = axis.get("same", axis.get("divide"))
    if other is not None and other not in given:
        raise SpecError(f"{said}: {other!r} is no field of the group; expected one of {', '.join(given)}")
