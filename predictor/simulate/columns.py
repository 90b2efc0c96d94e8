"""Many runs as one: runs that differ in sizes alone are a run whose sizes are columns, arrays of shape (points,).

Its plan is one plan, whose graphs have columns in their operators, and its times are arrays, a row a point: passes,
timelines and intervals are worked out once. Whatever asks which way to go (`agree`) has to get one answer of all
points; where they part ways (`PartWays`) they become two runs, and the question comes again to each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from predictor.files.records import replace
from predictor.models.base import Feature
from predictor.request.request import SIZES
from predictor.request.run import Run
from predictor.request.serving import Serving
from predictor.request.workload import Workload

if TYPE_CHECKING:
    from predictor.simulate.stage import Plan

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
#: A size of one run, or that of every point of a column.
Size = Any
_words_of = attrgetter(*(name for name in Workload.__match_args__ if name not in (*SIZES, "serving")))
_serving_words_of = attrgetter(*(name for name in Serving.__match_args__ if name not in SIZES))
#: Runs that are worth a column: fewer are forecast one by one. Chosen by hand, not from data: a template costs about as
#: much as making a graph eight times.
FEWEST = 8
#: Largest tokens of all sequences of a column: whole numbers of numpy end at 2^63, by definition.
_MOST_TOKENS = 2**62


class NoColumns(Exception):
    """These runs have to be forecast one by one."""


class PartWays(Exception):
    """The points of a column part ways: those of ``mask`` go one way, the others another."""

    def __init__(self, mask: BoolArray) -> None:
        super().__init__("points part ways")
        self.mask = mask


def agree(answer: bool | BoolArray) -> bool:
    """The answer that all points give; PartWays where they do not."""
    if not isinstance(answer, np.ndarray):
        return bool(answer)
    if answer.all():
        return True
    if answer.any():
        raise PartWays(answer)
    return False


def first(size: Size) -> int:
    """The size of the first point."""
    return int(size[0]) if isinstance(size, np.ndarray) else size


def whole(value: Any) -> Size:
    """The nearest whole number, the even one of two, point by point."""
    return np.rint(value).astype(np.int64) if isinstance(value, np.ndarray) else round(value)


def plain(value: Any) -> Any:
    """A number of one run as Python's own; a column as it is."""
    return value if isinstance(value, np.ndarray) and value.ndim else float(value)


def by_point(weight: Any) -> Any:
    """A factor of each point as it stands before arrays of shape (points, ...); one of a run as it is."""
    return weight[:, None] if isinstance(weight, np.ndarray) and weight.ndim else weight


def each_of(answer: Callable[..., Any], *columns: Size) -> list[Any]:
    """What ``answer`` says of the sizes of every point, asked once for those that come again."""
    known: dict[tuple[int, ...], Any] = {}
    answers = []
    for sizes in zip(*(column.tolist() for column in columns), strict=True):
        if sizes not in known:
            known[sizes] = answer(*sizes)
        answers.append(known[sizes])
    return answers


def largest(*values: Any) -> Any:
    """The largest of some numbers, point by point."""
    if all(type(value) is float for value in values):
        return max(values)
    result = values[0]
    for value in values[1:]:
        result = np.maximum(result, value)
    return result


class _Columns:
    """A workload, or its words of serving, with columns for sizes: what it says of itself it works out of them."""

    def __init__(self, record: Workload | Serving, columns: Mapping[str, Any]) -> None:
        self._record, self._columns = record, columns

    def __getattr__(self, name: str) -> Any:
        if name in self._columns:
            return self._columns[name]
        known = getattr(type(self._record), name, None)
        return known.__get__(self) if isinstance(known, property) else getattr(self._record, name)


def in_columns(runs: Sequence[Run]) -> Run:
    """Runs of one `structure` as one."""
    works = [run.work for run in runs]
    columns: dict[str, Any] = _sizes_of(works) | {"in_flight": works[0].in_flight}  # `structure` has it
    served = [work.serving for work in works if work.serving is not None]
    if served:
        columns["serving"] = _Columns(served[0], _sizes_of(served))
    return replace(runs[0], work=cast(Workload, _Columns(works[0], columns)))


def _sizes_of(records: Sequence[Workload] | Sequence[Serving]) -> dict[str, IntArray]:
    """The sizes of records of one class, by name."""
    names = [name for name in records[0].__match_args__ if name in SIZES]
    return {name: np.array([getattr(record, name) for record in records], dtype=np.int64) for name in names}


def points(run: Run) -> int:
    """How many points a run has; 0 where it is one run."""
    work: Any = run.work
    return len(work.batch) if isinstance(work, _Columns) else 0


def structure(run: Run, pipelines: bool = False) -> tuple[object, ...] | None:
    """All of a run but its sizes, the same for those that can be one; None where it has to be forecast alone.
    ``pipelines``: steps of serving pipelines can be one, too, whose times are columns, though not their memory."""
    work, config, serving = run.work, run.config, run.work.serving
    over = work.parallelism
    if work.training is not None or run.strict or run.power or work.prompt_lens:
        return None
    if over.pp != 1 and not (pipelines and serving is not None):
        return None
    if over.cp != 1 or over.sp or not config.supports(Feature.OPEN_SIZES) or config.parts():
        return None
    tokens, makes, served = work.seq_len, 0, None
    if serving is not None:
        if serving.drafts:
            return None
        tokens = max(tokens, serving.context_len) + serving.output_len
        makes = min(serving.output_len, 6)  # of a few steps each is forecast, of more a sample (`plan.sample_contexts`)
        served = _serving_words_of(serving)
    if work.batch * tokens > _MOST_TOKENS:
        return None
    words = _words_of(work), served, work.in_flight
    return (id(config), id(run.gpu), run.numbers, id(run.selector), makes, words)


def planned(
    runs: Sequence[Run], plan_of: Callable[[Run], Plan], fewest: int = FEWEST, pipelines: bool = False
) -> tuple[list[tuple[list[int], Run, Plan]], list[int]]:
    """Runs as columns of ``fewest`` points or more, each with the places of its points, the run and the plan that they
    are; and the places of runs that are none's. ``pipelines``: as `structure` has it."""
    groups: dict[object, list[int]] = {}
    alone: list[int] = []
    for place, run in enumerate(runs):
        key = structure(run, pipelines)
        if key is None:
            alone.append(place)
        else:
            groups.setdefault(key, []).append(place)
    columns: list[tuple[list[int], Run, Plan]] = []
    asked = list(groups.values())
    while asked:
        places = asked.pop()
        if len(places) < fewest:
            alone += places
            continue
        column = in_columns([runs[place] for place in places])
        try:
            columns.append((places, column, plan_of(column)))
        except PartWays as parting:
            ways = parting.mask.tolist()
            asked += [[place for place, way in zip(places, ways, strict=True) if way is side] for side in (True, False)]
        except NoColumns:
            alone += places
    return columns, sorted(alone)


def apart(value: Any, count: int) -> Iterator[Any]:
    """What each of ``count`` points has of a value that holds columns: of an array its numbers, of mappings, tuples and
    records those of their parts."""
    if isinstance(value, np.ndarray) and value.ndim:
        return iter(value.tolist())
    if isinstance(value, dict):
        columns = zip(*(apart(part, count) for part in value.values()), strict=True) if value else _same((), count)
        return (dict(zip(value, parts, strict=True)) for parts in columns)
    if isinstance(value, tuple) and any(isinstance(part, np.ndarray) for part in value):
        return zip(*(apart(part, count) for part in value), strict=True)
    return _same(value, count)


def _same(value: Any, count: int) -> Iterator[Any]:
    return (value for _ in range(count))


def records_apart(record: Any, count: int, **given: Sequence[Any]) -> Iterator[Any]:
    """The records of each point, of one whose fields hold columns; ``given``: those of fields that are known."""
    plan = type(record).__plan__
    columns = [
        iter(given[name]) if name in given else apart(value, count)
        for name, value in zip(plan.names, plan.values(record), strict=True)
    ]
    return (type(record)(*values) for values in zip(*columns, strict=True))
