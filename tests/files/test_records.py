"""Data classes that are cheap to define: whatever is done with them comes out as with the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, FrozenInstanceError, field
from typing import Any, ClassVar

import pytest

from predictor.files import records


def classes(dataclass: Callable[..., Any]) -> tuple[type, ...]:
    """By this decorator: a frozen class with slots, one that extends it, one that may be changed, one with fields by
    word alone, and one that extends that."""

    @dataclass(frozen=True, slots=True)
    class Board:
        name: str
        peak: float = 1.0
        dies: int = 1
        notes: list[str] = field(default_factory=list, compare=False)
        unit: ClassVar[str] = "FLOP/s"

        def __post_init__(self) -> None:
            if self.peak <= 0.0:
                raise ValueError(f"peak {self.peak}")

    @dataclass(frozen=True, slots=True)
    class Rack(Board):  # type: ignore[misc, valid-type]
        dies: int = 72
        power: float = field(default=2.0, metadata={"unit": "W"})

    @dataclass(slots=True)
    class Count:
        n: int = 0

    @dataclass(slots=True)
    class Words:
        model: str
        _: KW_ONLY
        batch: int
        tags: list[str] = field(default_factory=list, metadata={"unit": "names"})

    @dataclass(slots=True)
    class Request(Words):  # type: ignore[misc, valid-type]
        gpu: str = "h100"

    return Board, Rack, Count, Words, Request


PAIRS = list(zip(classes(records.dataclass), classes(dataclasses.dataclass), strict=True))
NAMES = ["frozen", "extended", "changeable", "by_word", "by_word_extended"]
#: Arguments that make an object of each of them.
MADE: list[dict[str, Any]] = [
    {"name": "a", "peak": 3.0}, {"name": "a", "power": 5.0}, {"n": 4}, {"model": "a", "batch": 2},
    {"model": "a", "batch": 2, "gpu": "a100"},
]  # fmt: skip


@pytest.mark.parametrize(("kinds", "words"), list(zip(PAIRS, MADE, strict=True)), ids=NAMES)
@pytest.mark.parametrize(
    "look",
    [
        lambda kind, words: re.sub(r"<locals>.\w+", "", repr(kind(**words))),
        lambda kind, words: dataclasses.asdict(kind(**words)),
        lambda kind, words: [
            (f.name, f.type, f.default, f.compare, f.kw_only, dict(f.metadata))
            for f in dataclasses.fields(kind(**words))
        ],
        lambda kind, words: dataclasses.is_dataclass(kind),
        lambda kind, words: kind(**words) == kind(**words),
        lambda kind, words: kind(**words) == object(),
        lambda kind, words: kind(next(iter(words.values())), **dict(list(words.items())[1:])) == kind(**words),
        lambda kind, words: dataclasses.asdict(records.replace(kind(**words), **dict.fromkeys(words, 7))),
        lambda kind, words: str(inspect.signature(kind)),
        lambda kind, words: kind.__match_args__,
        lambda kind, words: kind.__slots__,
        lambda kind, words: hasattr(kind(**words), "__dict__"),
        lambda kind, words: kind.__hash__ is None or hash(kind(**words)),
        lambda kind, words: dataclasses.asdict(copy.deepcopy(kind(**words))),
        lambda kind, words: dataclasses.asdict(dataclasses.replace(kind(**words), **dict.fromkeys(words, 7))),
        lambda kind, words: kind.__dataclass_params__.frozen,
    ],
    ids=[
        "repr", "asdict", "fields", "is_dataclass", "equal", "other", "positional", "replace", "signature",
        "match_args", "slots", "dict", "hash", "deepcopy", "library_replace", "params",
    ],
)  # fmt: skip
def test_it_is_as_the_library_makes_it(
    kinds: tuple[type, type], words: dict[str, Any], look: Callable[[type, dict[str, Any]], object]
) -> None:
    ours, librarys = kinds
    assert look(ours, words) == look(librarys, words)


@pytest.mark.parametrize("dataclass", [records.dataclass, dataclasses.dataclass], ids=["ours", "library"])
def test_a_frozen_one_takes_no_value_and_checks_itself(dataclass: Callable[..., Any]) -> None:
    board = classes(dataclass)[0]
    made = board("a")
    with pytest.raises(FrozenInstanceError):
        made.peak = 2.0
    with pytest.raises(FrozenInstanceError):
        del made.peak
    with pytest.raises(TypeError, match="nme"):
        board(nme="a")
    with pytest.raises(TypeError, match="name"):
        board()
    with pytest.raises(ValueError, match=r"peak -1\.0"):
        board("a", -1.0)
    assert made.notes is not board("a").notes
    assert board("a", notes=["x"]) == board("a")
    assert {board("a"), board("a", notes=["x"]), board("b")} == {board("b"), board("a")}


@pytest.mark.parametrize("dataclass", [records.dataclass, dataclasses.dataclass], ids=["ours", "library"])
def test_a_field_by_word_has_no_place(dataclass: Callable[..., Any]) -> None:
    for kind in classes(dataclass)[3:]:
        with pytest.raises(TypeError, match="batch"):
            kind("a")
        with pytest.raises(TypeError, match="positional"):
            kind("a", "b", 2)


def test_replace_keeps_the_others_and_checks_again() -> None:
    board = classes(records.dataclass)[0]
    made = board("a", 3.0, 2, ["x"])
    changed = records.replace(made, peak=4.0)
    assert dataclasses.asdict(changed) == {"name": "a", "peak": 4.0, "dies": 2, "notes": ["x"]}
    assert made.peak == 3.0
    with pytest.raises(ValueError, match=r"peak 0\.0"):
        records.replace(made, peak=0.0)
    with pytest.raises(TypeError, match="no field 'peek'"):
        records.replace(made, peek=1.0)


@pytest.mark.parametrize("made_before", [0, 100])
def test_every_object_is_checked(made_before: int) -> None:
    """The first ones are made without a compiled ``__init__``, the others with it."""
    board = classes(records.dataclass)[0]
    boards = [board("a", 3.0) for _ in range(made_before)]
    with pytest.raises(ValueError, match=r"peak 0\.0"):
        board("a", 0.0)
    assert all(made.peak == 3.0 for made in boards)


def test_objects_of_compiled_classes_are_frozen_too() -> None:
    """While `__init__` fills an object its class is another; afterwards it is its own, also of a subclass."""
    for kind in classes(records.dataclass)[:2]:
        plain = type("Plain", (kind,), {"__slots__": ()})
        with_words = type("WithWords", (kind,), {})  # its objects have a dictionary
        for made_by in (kind, plain, with_words):
            made = [made_by("a", 3.0) for _ in range(100)]
            assert {type(each) for each in made} == {made_by}
            assert {(each.name, each.peak) for each in made} == {("a", 3.0)}
            assert made[-1].notes == []
            assert made[-1].notes is not made[-2].notes
            with pytest.raises(FrozenInstanceError):
                made[-1].peak = 2.0
            with pytest.raises(ValueError, match=r"peak 0\.0"):
                made_by("a", 0.0)


def test_replace_takes_what_the_library_made() -> None:
    board = classes(dataclasses.dataclass)[0]
    assert records.replace(board("a"), peak=4.0) == board("a", 4.0)


@records.dataclass(frozen=True, slots=True)
class Kept:
    """At the module's top, where pickle finds it."""

    x: int
    y: tuple[int, ...] = ()


@records.dataclass(eq=False, frozen=True)
class Alike:
    x: int


def test_it_pickles() -> None:
    assert pickle.loads(pickle.dumps(Kept(3, (1, 2)))) == Kept(3, (1, 2))


def test_without_eq_each_object_is_itself() -> None:
    made = Alike(1)
    assert made == made
    assert made != Alike(1)
    assert len({made, Alike(1)}) == 2


def test_a_class_keeps_the_methods_that_it_writes() -> None:
    @records.dataclass(frozen=True, slots=True)
    class Named:
        x: int

        def __repr__(self) -> str:
            return "named"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named)

        def __hash__(self) -> int:
            return 11

    assert (repr(Named(1)), Named(1) == Named(2), hash(Named(1))) == ("named", True, 11)


def test_a_library_class_extends_one_and_is_extended() -> None:
    board = classes(records.dataclass)[0]

    @dataclasses.dataclass(frozen=True)
    class Sold(board):  # type: ignore[misc, valid-type]
        price: float = 1.0

    @records.dataclass(frozen=True, slots=True)
    class Rented(Sold):
        hours: int = 2

    rented = Rented("a", 2.0, hours=3)
    assert [f.name for f in dataclasses.fields(rented)] == ["name", "peak", "dies", "notes", "price", "hours"]
    assert records.replace(rented, hours=4) == Rented("a", 2.0, hours=4)
