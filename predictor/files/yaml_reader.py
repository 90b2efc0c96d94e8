"""YAML as plain data, where nothing in the text can hang the reader or read as something else in silence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from predictor.errors import SpecError
from predictor.files.read import read_text

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a safe loader: it makes plain data only
#: How deep collections may be nested, and how many values a text may stand for with every alias written out: guards
#: against bombs. Files of ours have 5 levels and hundreds of values. libyaml nests its C stack as deep as the text
#: does.
_DEEPEST, _MOST_VALUES = 50, 100_000
_TOO_DEEP = f"nested more than {_DEEPEST} deep"
_INT = "tag:yaml.org,2002:int"


class _Loader(_SafeLoader):  # type: ignore[misc]
    """Refuses a key that appears twice in a mapping, of which YAML would keep the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} appears twice; expected once", key.start_mark
                    )
                seen.add(key.value)
        result: dict[Any, Any] = super().construct_mapping(node, deep)
        return result


# YAML 1.1 reads 0132 as the octal of 90 and 1:30 as 90 of base 60: a whole number is decimal here, all else is text.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _INT]
    for first, resolvers in _SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INT, re.compile(r"[-+]?(0|[1-9][0-9]*)$"), list("-+0123456789"))


def read_yaml(text: str) -> Any:
    """What a YAML text holds, as plain data. Raises YAMLError, for a number or a date that is none, too."""
    try:
        _check_size(yaml.parse(text, Loader=_Loader))
        return yaml.load(text, Loader=_Loader)
    except yaml.scanner.ScannerError as error:
        if "nesting depth" in str(error.problem):  # PyYAML 6.0.4 scans ahead and stops at 1,000 levels of its own
            error.problem = _TOO_DEEP
        raise
    except (ValueError, RecursionError) as error:  # thousands of digits, a 13th month
        raise yaml.YAMLError("a value that is no number or date") from error


def parse_yaml(text: str, named: str) -> Any:
    """As `read_yaml`; ``named`` begins the line of the SpecError that says what is wrong, and where."""
    try:
        return read_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        reason = getattr(error, "problem", None) or " ".join(map(str, error.args)) or str(error) or "unreadable"
        raise SpecError(f"{named}{line}: broken YAML: {reason}") from None


def read_yaml_file(path: Path, expected: str, named: str = "") -> Any:
    """What a YAML file holds. Raises SpecError, one line; ``expected`` and ``named`` as in `files.read_text`."""
    return parse_yaml(read_text(path, expected, named), named or str(path))


def _check_size(events: Iterator[Any]) -> None:
    """Raises ComposerError where the text is nested too deep, stands for too many values, or holds itself."""
    values: list[int] = [0]  # of every collection that is open, aliases written out
    names: list[str | None] = [None]
    of: dict[str, int] = {}
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            names.append(event.anchor)
            values.append(1)
            of.pop(event.anchor or "", None)
        elif isinstance(event, yaml.CollectionEndEvent):
            name, inside = names.pop(), values.pop()
            if name is not None:
                of[name] = inside
            values[-1] += inside
        elif isinstance(event, yaml.ScalarEvent):
            if event.anchor:
                of[event.anchor] = 1
            values[-1] += 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in names:
                raise _composer_error(f"{event.anchor!r} holds itself", event)
            values[-1] += of.get(str(event.anchor), 1)
        if len(values) > _DEEPEST:
            raise _composer_error(_TOO_DEEP, event)
        if values[-1] > _MOST_VALUES:
            raise _composer_error(f"more than {_MOST_VALUES:,} values", event)


def _composer_error(problem: str, event: Any) -> yaml.YAMLError:
    error: yaml.YAMLError = yaml.composer.ComposerError(None, None, problem, event.start_mark)
    return error
