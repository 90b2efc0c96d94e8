"""The rows of the table of words as options of a command line, in their groups; --help of the common ones."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable
from typing import Any

from predictor.files.arguments import Parser
from predictor.files.outputs import output_argument
from predictor.request.options import GROUPS, OPTIONS, Option, words_of

#: Columns of the list of names that --help ends with. Chosen by looking at it: a terminal has 80.
_WIDTH = 79


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Add the options of rows, each in its group."""
    sections = {group.title: group for group in parser._action_groups}
    rows = list(options)
    for group in GROUPS:
        if any(option.row.group == group for option in rows) and group not in sections:
            sections[group] = parser.add_argument_group(group)
    explains = getattr(parser, "explains", True)
    for option in rows:
        _add(sections[option.row.group], option, option.text if explains else option.row.help)


def _add(section: Any, option: Option, text: str) -> None:
    row = option.row
    words: dict[str, Any] = {"help": text.replace("%", "%%"), "dest": option.name}
    if option.kind == "switch":
        words["action"] = "store_true"
    else:
        kinds = {"whole": int, "real": float}
        words |= {"default": option.default, "required": option.required}
        words |= {"type": kinds[option.kind]} if option.kind in kinds else {}
        words |= {"action": "append"} if row.repeats else {}
        words |= {"metavar": row.unit if option.kind == "text" else row.unit.upper()} if row.unit else {}
    if row.writes is not None:
        output_argument(section, option.flag, row.writes, **words)
    else:
        section.add_argument(option.flag, **words).option = option


def check_words(arguments: argparse.Namespace, options: Iterable[Option]) -> None:
    """RequestError, one line, for the first word that was given and that its row does not allow."""
    for option in options:
        value = getattr(arguments, option.name)
        if value is not None:
            option.check(value)


def option_of(action: argparse.Action) -> Option | None:
    """The row that an action was made of; None for a verb's own."""
    option: Option | None = getattr(action, "option", None)
    return option


def rows_of(verb: str) -> dict[str, Option]:
    """The rows of ``verb``, which asks of one mode: the model, the GPU, and the words that it takes."""
    rows = {name: OPTIONS[name].with_row(modes=()) for name in ("model", "gpu", *words_of(verb))}
    rows["model"] = rows["model"].with_row(
        help="a name of `tilecast models`, org/name of Hugging Face, or a config.json"
    )
    return rows


def two_helps(parser: argparse.ArgumentParser) -> None:
    """--help explains the common options alone, and names the others; --help-all explains all."""
    assert isinstance(parser, Parser)
    parser.usage = "%(prog)s --model MODEL --gpu GPU [OPTION ...]"
    parser.add_argument("--help-all", action=_HelpAll, help="explain every option")
    parser.short_help = short_help


class _HelpAll(argparse._HelpAction):
    """Prints every option."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        print(argparse.ArgumentParser.format_help(parser), end="")
        parser.exit()


def short_help(parser: argparse.ArgumentParser) -> str:
    """The common options with their help, the names of the others by group, and the examples."""
    common = {name for name, option in OPTIONS.items() if option.row.common}
    formatter = parser._get_formatter()
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    formatter.add_text(parser.description)
    more = []
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if action.dest in common]
        named = [action for action in group._group_actions if action not in shown]
        if group is parser._optionals:
            shown, named = named, shown
        if shown:
            formatter.start_section(group.title)
            formatter.add_arguments(shown)
            formatter.end_section()
        if named:
            names = " ".join(max(action.option_strings, key=len) for action in named)
            more.append(textwrap.fill(
                f"  {group.title or '':<10}{names}", _WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False
            ))  # fmt: skip
    formatter.add_text("more options, which --help-all explains:\n" + "\n".join(more))
    formatter.add_text(parser.epilog)
    return formatter.format_help()
