"""Inputs of a traced model in words: "tokens:int64[8,1024]", or "float32[8,3,224,224]" by position.

"x:float[8,4096/cp,64]" says which axis context parallelism splits; "turns.0:float[64] turns.1:float[64]" are a tuple.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from predictor.errors import RequestError, nearest
from predictor.formats.dtypes import ALIASES, DTYPES, bytes_of
from predictor.graph.tensor import WEIGHT

_WORDS = re.compile(
    r"^\s*(?:(?P<name>[A-Za-z_]\w*(?:\.\d)?)\s*:)?\s*(?P<dtype>[A-Za-z]\w*)?\s*\[(?P<shape>(?:\d+|/cp|[,\s])*)\]\s*$"
)
#: Behind the size of an axis that context parallelism splits.
SPLIT = "/cp"
#: Dtypes that a tensor may be asked to have, by the house's names; "float" is that of the run.
KNOWN = ("float", "fp64", "fp32", "fp16", "bf16", "int64", "int32", "int8", "bool")
#: Entries of one input: more is a slip of the keyboard, chosen by hand, not from data.
_LARGEST = 2**40


class Input(NamedTuple):
    """One input: ``name`` of the argument of forward ("" by position), ``dtype`` of `KNOWN`, ``shape``. ``split``: the
    place of the axis that context parallelism splits, -1 for none."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    split: int = -1

    def part(self, cp: int) -> Input:
        """What one of ``cp`` ranks has of it. RequestError where they do not divide the axis that is split."""
        if self.split < 0:
            return self
        size = self.shape[self.split]
        if size % cp:
            fit = max(n for n in range(1, cp + 1) if size % n == 0)
            raise RequestError(f"--cp {cp}: does not divide {size} of input {self}; nearest valid: {fit}")
        return self._replace(shape=(*self.shape[: self.split], size // cp, *self.shape[self.split + 1 :]), split=-1)

    def __str__(self) -> str:
        head = f"{self.name}:" if self.name else ""
        return f"{head}{self.dtype}[{','.join(map(str, self.shape))}]"


def inputs_of(words: str | Sequence[str] | None) -> tuple[Input, ...]:
    """The inputs that ``words`` name: one text, several with ";" or a space between, or a list of such texts.

    >>> str(inputs_of("x:float[2,4096/cp,64]")[0].part(4))
    'x:float[2,1024,64]'

    RequestError, one line, for what is none.
    """
    if words is None or words == ():
        return ()
    texts = [words] if isinstance(words, str) else list(words)
    parts = [part for text in texts for part in re.split(r";|(?<=\])[\s,]+", str(text)) if part.strip()]
    inputs = [_input(part) for part in parts]
    named = [each.name for each in inputs if each.name]
    for name in named:
        if named.count(name) > 1:
            raise RequestError(f"--input {name}: named twice; expected once")
    if any(not each.name for each in inputs[len(inputs) - len(named) :]) and named:
        raise RequestError(f"--input {parts[-1]!r}: inputs without a name come first; expected name:dtype[sizes]")
    return tuple(inputs)


def _input(text: str) -> Input:
    match = _WORDS.match(text)
    if match is None:
        raise RequestError(f"--input {text.strip()!r}: expected name:dtype[sizes], such as tokens:int64[8,1024]")
    said = (match["dtype"] or "float").lower()
    dtype = "float" if said == "float" else ALIASES.get(said, said)
    if dtype == "float16":
        dtype = "fp16"
    if dtype not in KNOWN:
        close = nearest(said, (*KNOWN, *ALIASES), 1)
        tail = f"; nearest: {close[0]}" if close else ""
        raise RequestError(
            f"--input {text.strip()!r}: unknown dtype {said!r}: expected one of {', '.join(KNOWN)}{tail}"
        )
    sizes = [size.strip() for size in match["shape"].split(",")] if match["shape"].strip() else []
    marked = [place for place, size in enumerate(sizes) if size.endswith(SPLIT)]
    sizes = [size.removesuffix(SPLIT).strip() for size in sizes]
    if any(not size.isdigit() or len(size) > 12 for size in sizes) or len(marked) > 1:
        raise RequestError(f"--input {text.strip()!r}: expected whole sizes such as [8,1024], one of them with {SPLIT}")
    shape = tuple(int(size) for size in sizes)
    count = 1
    for size in shape:
        count *= size
    if 0 in shape or count > _LARGEST:
        raise RequestError(f"--input {text.strip()!r}: {count:,} entries; expected 1 to {_LARGEST:,}")
    assert dtype in KNOWN and (dtype == "float" or dtype in DTYPES)
    return Input(match["name"] or "", dtype, shape, marked[0] if marked else -1)


def words_of(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


class Operand(NamedTuple):
    """A tensor of a call: ``stride`` in elements, ``dtype`` one of `predictor.formats.dtypes`, ``role`` one of
    `ROLES`. ``key`` tells its memory from that of others (0: unknown)."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    role: str
    key: int = 0

    @property
    def elements(self) -> int:
        """Entries, those that an expanded axis repeats among them."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> float:
        return bytes_of(self.dtype)

    @property
    def nbytes(self) -> float:
        return self.elements * self.itemsize

    @property
    def unique(self) -> int:
        """Entries that lie in memory: an expanded axis (stride 0) counts once."""
        return math.prod(size for size, step in zip(self.shape, self.stride, strict=True) if step or size == 0)

    @property
    def is_weight(self) -> bool:
        return self.role == WEIGHT

    @property
    def column_major(self) -> bool:
        """Of a matrix (its last two axes): whether a column's entries lie side by side, and a row's do not."""
        return len(self.shape) > 1 and self.stride[-2] == 1 and self.stride[-1] != 1 and self.shape[-1] > 1


class Call(NamedTuple):
    """One call. ``args`` and ``kwargs`` hold operands where the framework's have tensors, lists of them too."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[Operand, ...]

    def arg(self, place: int, name: str = "", default: Any = None) -> Any:
        """The argument at ``place``, or by ``name``."""
        if place < len(self.args):
            return self.args[place]
        return self.kwargs.get(name, default)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Every tensor that it reads, in order."""
        return tuple(_operands((*self.args, *self.kwargs.values())))

    @property
    def out(self) -> Operand:
        return self.outs[0]


def _operands(values: Any) -> Iterator[Operand]:
    for value in values:
        if isinstance(value, Operand):
            yield value
        elif isinstance(value, list | tuple):
            yield from _operands(value)
