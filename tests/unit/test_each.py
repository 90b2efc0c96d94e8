"""`each` fails where one value fails, names it, and goes on to the others."""

from __future__ import annotations

import pytest
from each import SHOWN, each


def test_every_value_that_fails_is_named_and_the_others_are_run() -> None:
    seen = []

    @each("value", ["good", "bad", "fine", "worse"])
    def check(value: str) -> None:
        seen.append(value)
        if value == "bad":
            raise KeyError("no such")
        assert value != "worse", "it is worse\nthan that"

    with pytest.raises(AssertionError) as caught:
        check()
    assert seen == ["good", "bad", "fine", "worse"]
    assert str(caught.value).splitlines() == [
        "2 of 4 failed (value):", "  'bad': KeyError: 'no such'", "  'worse': AssertionError: it is worse"
    ]  # fmt: skip
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_missing_error_counts_and_nothing_to_look_at_fails() -> None:
    @each("value", [1])
    def never(value: int) -> None:
        with pytest.raises(ValueError, match="x"):
            pass

    @each("value", [])
    def nothing(value: int) -> None:
        return

    with pytest.raises(AssertionError, match="1 of 1 failed"):
        never()
    with pytest.raises(AssertionError, match="nothing to look at"):
        nothing()


def test_the_values_of_an_inner_loop_are_named_too() -> None:
    @each("a", [1, 2])
    @each("b", [3, 4])
    def fails(a: int, b: int) -> None:
        assert a + b != 6, "six"

    with pytest.raises(AssertionError) as caught:
        fails()
    assert str(caught.value).splitlines() == [
        "1 of 2 failed (a):", "  2: 1 of 2 failed (b):", "      4: AssertionError: six"
    ]  # fmt: skip


def test_long_lists_are_cut() -> None:
    @each("value", range(SHOWN + 3))
    def fails(value: int) -> None:
        raise ValueError(value)

    with pytest.raises(AssertionError) as caught:
        fails()
    assert str(caught.value).splitlines()[-1] == "  and 3 more"


@each(("a", "b"), [(1, 2), (3, 4)])
@each("c", [5, 6])
def test_values_of_two_go_with_fixtures(a: int, b: int, c: int, tmp_path: object) -> None:
    assert (a + 1, c in (5, 6)) == (b, True)
    assert tmp_path
