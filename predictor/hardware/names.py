"""A board's name as tools print it -> its id: "NVIDIA H100 80GB HBM3", "A100-80GB", "rtx4090", "Tesla V100-SXM2-16GB".

A name is read as three things: what the board is called ("h100", "rtx4090"), once the words that every board of a maker
has are left away; how it is built in (sxm, pcie, nvl, oam); and its memory, in GB and by type. A board has the name
where it is called so and none of what else the name says speaks against it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from predictor.files.records import dataclass

#: Words that do not tell one board from another (ac: cooled by air; vf: a virtual function of the whole board).
_NOISE = frozenset((
    "nvidia", "geforce", "tesla", "amd", "instinct", "intel", "r", "tm", "gpu", "graphics", "generation", "blackwell",
    "edition", "tensor", "core", "ac", "vf", "radeon", "data", "center",
))  # fmt: skip
_FORM = re.compile(r"(.*?)(sxm|pcie|nvl|oam)\d*", re.ASCII)
_SIZE = re.compile(r"(\d{1,4})(?:gb|gib|g)", re.ASCII)
_APART = re.compile(r"\b(\d{1,4}) (gb|gib)\b", re.ASCII)  # "32 GB"
_TYPE = re.compile(r"(?:hbm|gddr)\d\w?", re.ASCII)
#: GB in a name over those in a file: 192 of a B200 of which 180 are to be had, 80 GiB that are 86 GB.
#: Chosen by hand, not from data.
_ALIKE = (0.9, 1.1)


@dataclass(frozen=True, slots=True)
class Spelling:
    """What a name says. ``called``: letters and digits alone; ``forms``, ``gigabytes`` and ``types``: "" or empty where
    it says nothing of them."""

    called: str
    forms: frozenset[str] = frozenset()
    gigabytes: tuple[float, ...] = ()
    types: frozenset[str] = frozenset()

    def fits(self, forms: frozenset[str], memory_bytes: float, memory_type: str | None) -> bool:
        """Whether nothing that the name says speaks against a board with such forms (none: any) and memory."""
        if self.forms and forms and not self.forms <= forms:
            return False
        low, high = _ALIKE
        if any(not low < gigabytes * 1e9 / memory_bytes < high for gigabytes in self.gigabytes):
            return False
        return not (self.types and memory_type and self.types != {memory_type.lower()})


def spelling(name: str) -> Spelling:
    """What a name says.

    >>> spelling("NVIDIA A100-SXM4-80GB")
    Spelling(called='a100', forms=frozenset({'sxm'}), gigabytes=(80.0,), types=frozenset())
    """
    rest, forms, sizes, types = [], set(), [], set()
    for word in re.findall(r"[a-z0-9]+", _APART.sub(r"\1\2", name.lower())):
        if form := _FORM.fullmatch(word):
            forms.add(form[2])
            rest.append(form[1])  # "H100SXM"
        elif size := _SIZE.fullmatch(word):
            sizes.append(float(size[1]))
        elif _TYPE.fullmatch(word):
            types.add(word)
        elif word not in _NOISE:
            rest.append(word)
    return Spelling("".join(rest), frozenset(forms), tuple(sizes), frozenset(types))


def boards_called(
    name: str, names: Mapping[str, Iterable[str]], memory_of: Callable[[str], tuple[float, str | None]]
) -> tuple[str, ...]:
    """The ids of the boards that ``name`` may stand for: one, several where it does not tell them apart, or none.

    ``names``: id -> the names that its file has (id, aliases); ``memory_of`` gives a board's memory in bytes and its
    type. Where several are left and one of them has the name alone as an alias ("a100"), it is that one.
    """
    asked = spelling(name)
    if not asked.called:
        return ()
    alike: list[str] = []
    usual: list[str] = []
    for board, spellings in names.items():
        said = [spelling(name) for name in spellings]
        if all(said_name.called != asked.called for said_name in said):
            continue
        forms = frozenset[str]().union(*(said_name.forms for said_name in said))
        if asked.fits(forms, *memory_of(board)):
            alike.append(board)
            usual += [board] * any(said_name == Spelling(asked.called) for said_name in said)
    return tuple(usual) if len(usual) == 1 and not asked.forms else tuple(sorted(alike))
