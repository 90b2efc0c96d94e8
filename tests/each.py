"""Many values in one test: `each` runs the test for all of them and then names every value that failed.

A folder of a hundred files in `pytest.mark.parametrize` is a hundred tests to collect, set up and report, of which one
says what the others say. Fixtures of a test below `each` are set up once for all its values.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

#: How many of the values that failed are written out.
SHOWN = 20


class Failed(AssertionError):
    """Some of the values failed; a line for each."""


def each(
    names: str | tuple[str, ...], values: Iterable[Any], ids: Callable[[Any], object] = repr
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`pytest.mark.parametrize` in one test: ``names`` of the arguments, their ``values``, what to call a value.

    Fails with a line for each value whose run failed, from the first failure on its way; so it does without values.
    """
    found = tuple(values)
    words = (names,) if isinstance(names, str) else names

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            assert found, f"{test.__name__}: nothing to look at"
            failed: list[str] = []
            first: BaseException | None = None
            for value in found:
                bound = dict(zip(words, (value,) if isinstance(names, str) else value, strict=True))
                try:
                    test(*args, **fixtures, **bound)
                except (Exception, pytest.fail.Exception) as error:
                    first = first or error
                    lines = str(error).strip().splitlines() or [""]
                    if isinstance(error, Failed):  # of an `each` below this one: its values, too
                        failed.append("\n    ".join([f"  {ids(value)}: {lines[0]}", *lines[1:]]))
                    else:
                        failed.append(f"  {ids(value)}: {type(error).__name__}: {lines[0]}")
            if failed:
                more = [f"  and {len(failed) - SHOWN} more"] if len(failed) > SHOWN else []
                lines = [f"{len(failed)} of {len(found)} failed ({', '.join(words)}):", *failed[:SHOWN], *more]
                raise Failed("\n".join(lines)) from first

        signature = inspect.signature(test)
        left = [p for p in signature.parameters.values() if p.name not in words]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        del run.__wrapped__  # type: ignore[attr-defined]  # else pytest asks for the arguments as fixtures
        return run

    return decorate
