"""Inputs of a traced model in words: "tokens:int64[8,1024]", or "float32[8,3,224,224]" by position.

"x:float[8,4096/cp,64]" says which axis context parallelism splits; "turns.0:float[64] turns.1:float[64]" are a tuple.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from predictor.dtypes import ALIASES, DTYPES
from predictor.errors import RequestError, nearest

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
    found = [_input(part) for part in parts]
    named = [one.name for one in found if one.name]
    for name in named:
        if named.count(name) > 1:
            raise RequestError(f"--input {name}: named twice; expected once")
    if any(not one.name for one in found[len(found) - len(named) :]) and named:
        raise RequestError(f"--input {parts[-1]!r}: inputs without a name come first; expected name:dtype[sizes]")
    return tuple(found)


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
