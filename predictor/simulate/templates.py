"""Templates of lowered graphs (`predictor.graph.template`) by structure, for structures that come again and again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.engines import Engine
from predictor.files.records import replace
from predictor.formats.parts import Formats
from predictor.graph import Graph
from predictor.models.base import Feature, Model
from predictor.models.step import Step
from predictor.simulate.columns import NoColumns, Size, agree
from predictor.simulate.lower import Lowering, lower
from predictor.simulate.stage import collectives_beside

if TYPE_CHECKING:
    from predictor.graph.template import Template
    from predictor.hardware.system import SystemSpec
    from predictor.passes.mesh import Mesh

#: How often a structure has come when its template is made, which costs about as much as making it eight times. Chosen
#: by hand, not from data: 2 and 3 took the same time in `benchmarks/speed.py`.
AGAIN = 3
#: Templates of one structure, one for each way in which its guards may go: at most so many, which guards against
#: endless ones.
VARIANTS = 8


class _Seen:
    """A structure: its templates, how often none fitted since the last was made, and whether there will be no more."""

    __slots__ = ("closed", "missed", "templates")

    def __init__(self) -> None:
        self.templates: list[Template] = []
        self.missed = 0
        self.closed = False


class Templates:
    """Templates by structure, the ``most`` that were used last.

    One is made when a structure comes again: what comes once or twice is made directly, and costs no more than that.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._seen: OrderedDict[Hashable, _Seen] = OrderedDict()

    def graphs(
        self, structure: Hashable, names: tuple[str, ...], points: Sequence[tuple[Any, ...]], make: Callable[..., Graph]
    ) -> list[Graph] | None:
        """The graphs of ``structure`` for each of ``points``, values for ``names``; None where they are to be made
        directly. ``structure`` has to name all that ``make`` reads beside them."""
        seen = self._at(structure)
        graphs = [_fitting(seen, values) for values in points]
        if None not in graphs:
            return graphs  # type: ignore[return-value]
        seen.missed += 1
        if seen.missed < AGAIN or seen.closed:
            return None
        seen.missed = 0
        if not _taken(seen, make, dict(zip(names, points[graphs.index(None)], strict=True))):
            return None
        graphs = [graph or _fitting(seen, values) for graph, values in zip(graphs, points, strict=True)]
        return None if None in graphs else graphs  # type: ignore[return-value]

    def columns(
        self, structure: Hashable, names: tuple[str, ...], values: tuple[Any, ...], count: int,
        make: Callable[..., Graph],
    ) -> Graph:  # fmt: skip
        """One graph of ``structure`` for ``count`` points, whose sizes among ``values`` are arrays (count,).

        Raises `PartWays` where the points are of several templates, `NoColumns` where they have to be made one by one.
        """
        seen = self._at(structure)
        for template in seen.templates:
            graph, ok = template.columns(values, count)
            if ok.any():
                agree(ok)
                return graph
        if seen.closed:
            raise NoColumns
        first = (value.item(0) if isinstance(value, np.ndarray) else value for value in values)
        if not _taken(seen, make, dict(zip(names, first, strict=True))):
            raise NoColumns
        graph, ok = seen.templates[-1].columns(values, count)
        if not ok.any():
            raise NoColumns
        agree(ok)
        return graph

    def _at(self, structure: Hashable) -> _Seen:
        """What is known of a structure, which is the one that was used last now."""
        seen = self._seen.get(structure)
        if seen is None:
            seen = self._seen[structure] = _Seen()
            if len(self._seen) > self.most:
                self._seen.popitem(last=False)
        else:
            self._seen.move_to_end(structure)
        return seen


def _taken(seen: _Seen, make: Callable[..., Graph], given: dict[str, Any]) -> bool:
    """Whether a template of what ``make`` makes of what is ``given`` can be made; it is one of the structure's then."""
    from predictor.graph.template import template_of  # what forecasts one run starts without it

    try:
        seen.templates.append(template_of(make, given))
    except Exception:  # whatever it is: making it directly is what says so
        seen.closed = True
        return False
    seen.closed = len(seen.templates) >= VARIANTS
    return True


def _fitting(seen: _Seen, values: tuple[Any, ...]) -> Graph | None:
    for template in seen.templates:
        graph = template.graph(values)
        if graph is not None:
            return graph
    return None


#: What of a step a template leaves open: sizes.
_OPEN = ("batch", "seq_len", "context_len")
_structure_of = attrgetter(*(each.name for each in fields(Step) if each.name not in _OPEN))
#: Chosen by hand, not from data: a sweep over a few models, engines and degrees has some hundred structures.
_TEMPLATES = Templates(most=512)


def lower_alike(
    config: Model, step: Step, tokens: Sequence[Size], mesh: Mesh | None, formats: Formats, engine: Engine,
    batch: Size = 0,
) -> list[Graph] | None:  # fmt: skip
    """The graphs of passes like ``step`` with other ``tokens``: of the context in decode, else query tokens a sequence.

    As `lower` makes them, without tensors, from a template; None where there is none, which is so where the structure
    comes for the first time, in training, and of ragged batches. A template leaves the system of a mesh open, too, of
    which a graph holds the links' numbers; how many stages of a pipeline share the layers is for who cuts the graph.
    With arrays for ``tokens`` and ``batch`` (0: the step's) each graph is of many points; `NoColumns` where there is
    none then.
    """
    mesh = mesh and mesh.within("pp")
    count = len(batch) if isinstance(batch, np.ndarray) else 0
    if step.lens or step.training or not config.supports(Feature.OPEN_SIZES):
        if count:
            raise NoColumns
        return None
    last, rest = ("context_len", step.seq_len) if step.mode == "decode" else ("seq_len", step.context_len)
    structure = (config, mesh and (mesh.axes, mesh.ep, mesh.exchange), formats, engine, rest, _structure_of(step))
    first = batch if count else step.batch

    def make(system: SystemSpec | None = None, **sizes: Any) -> Graph:
        over = replace(mesh, system=system) if mesh is not None and system is not None else None
        graph = lower(Lowering(config, replace(step, **sizes), over, formats, engine))
        if any(collectives_beside(block, engine) for block in graph.blocks):
            raise ValueError("its time hangs on its tensors, which a template has none of")
        return graph

    names = ("batch", last) if mesh is None else ("batch", "system", last)
    points = [(first, n) if mesh is None else (first, mesh.system, n) for n in tokens]
    if count:
        return [_TEMPLATES.columns(structure, names, values, count, make) for values in points]
    return _TEMPLATES.graphs(structure, names, points, make)
