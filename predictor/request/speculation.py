"""Speculative decoding in words: how many drafts a step has, who makes them, and how many are right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.errors import RequestError
from predictor.files.read import read_table_text
from predictor.files.yaml_reader import read_yaml_file

if TYPE_CHECKING:
    from predictor.engines import Engine
    from predictor.models.base import Model

#: Columns of a CSV file: a place among the drafts, and the share of the steps in which the draft there was taken.
COLUMNS = POSITION, RATE = "position", "rate"
_EXPECTED = (
    "a chance from 0 to 1, the tokens a step (above 1, with K drafts at most K + 1), a CSV file of position,rate, or a"
    " YAML file of tokens a step by drafts"
)


def tokens_a_step(acceptance: float, drafts: int) -> float:
    """What a step gives a sequence on average: its own token, and the drafts up to the first that is wrong.

    ``acceptance`` up to 1 is the chance that a draft is right where those before it were, so that drafts give
    p + p^2 + ... + p^K (Leviathan et al., arXiv:2211.17192, equation 1); above 1 it is the answer itself.
    """
    if acceptance > 1.0:
        return acceptance
    return 1.0 + sum(acceptance**i for i in range(1, drafts + 1))


def name_of(model: str | Path | Model | None) -> str:
    """What a model that makes drafts is called; "" for none."""
    if model is None:
        return ""
    return str(model) if isinstance(model, str | Path) else model.name


def read_acceptance(given: str | float | Path, drafts: int) -> tuple[float, str]:
    """A chance from 0 to 1, or tokens a step above 1, of what --acceptance says for ``drafts`` tokens a step; and the
    line for the answer where a file has several tables, of which the first counts.

    RequestError, one line, for anything else, and for more tokens a step than there can be.
    """
    try:
        number = float(given) if not isinstance(given, bool | Path) else None
    except (TypeError, ValueError):
        number = None
    if number is None:
        if not isinstance(given, str | Path):
            raise RequestError(f"--acceptance {given!r:.40}: expected {_EXPECTED}")
        length, note = _of_file(str(given), drafts)
        return (length if length > 1.0 else 0.0), note
    if not 0.0 <= number <= 1.0 + drafts:
        raise RequestError(f"--acceptance {given}: with --drafts {drafts} expected {_EXPECTED}")
    return number, ""


def check_words_together(drafts: int, acceptance: object, draft_model: object) -> None:
    """RequestError, one line, for a word of speculation without the others that it needs."""
    if not drafts and draft_model is not None:
        raise RequestError("--draft-model: makes drafts; expected --drafts K and --acceptance, too")
    if bool(drafts) != (acceptance is not None):
        raise RequestError("--drafts K and --acceptance P go together; expected both or neither")


def check_speculation(
    drafts: int, acceptance: object, draft_model: object, config: Model, engine: Engine, pp: int = 1
) -> None:
    """RequestError, one line, for words of speculation that do not go together, or with a model or an engine that has
    no such thing."""
    check_words_together(drafts, acceptance, draft_model)
    if not drafts:
        return
    word = f"--drafts {drafts}"
    if engine.batching is None:
        raise RequestError(f"{word}: --execution {engine.name} does not speculate; expected an engine that serves")
    if draft_model is None and not config.draft_layers:
        raise RequestError(
            f"{word}: {config.name} has no layer that guesses tokens (multi-token prediction); expected --draft-model M"
        )
    if config.is_encoder_decoder or config.parts():
        raise RequestError(f"{word}: {config.name} is no single decoder; expected 0")
    if pp > 1:
        raise RequestError(f"{word}: not built for --pp {pp}; expected --pp 1")


def _of_file(text: str, drafts: int) -> tuple[float, str]:
    path, _, table = text.partition(":")
    if path.endswith(".csv"):
        return _of_rates(Path(path), drafts), ""
    if path.endswith((".yaml", ".yml")):
        return _of_lengths(path, table, drafts)
    raise RequestError(f"--acceptance {text!r:.80}: expected {_EXPECTED}")


def _of_rates(path: Path, drafts: int) -> float:
    """Of shares by position, which engines print: that a draft was taken, and so were all before it."""
    lines = [line.split(",") for line in read_table_text(path, "a CSV file of rates", COLUMNS).splitlines() if line]
    header = [name.strip() for name in lines[0]]
    try:
        rates = {int(row[header.index(POSITION)]): float(row[header.index(RATE)]) for row in lines[1:]}
    except (ValueError, IndexError):
        raise RequestError(f"--acceptance {path}: expected columns position,rate of numbers") from None
    asked = list(range(1, drafts + 1))
    if lacking := [place for place in asked if place not in rates]:
        raise RequestError(f"--acceptance {path}: no rate of position {lacking[0]}; expected positions 1 to {drafts}")
    taken = [rates[place] for place in asked]
    if not all(0.0 <= rate <= 1.0 for rate in taken) or sorted(taken, reverse=True) != taken:
        raise RequestError(f"--acceptance {path}: expected rates from 0 to 1 that do not rise with the position")
    return 1.0 + sum(taken)


def _of_lengths(path: str, table: str, drafts: int) -> tuple[float, str]:
    """Of tokens a step by drafts, in tables of their own (a model, thinking on or off)."""
    tables = dict(_tables(read_yaml_file(Path(path), "a YAML file of tokens a step", f"--acceptance {path}"), ()))
    if not tables:
        raise RequestError(f"--acceptance {path}: no table of drafts and tokens a step in it")
    chosen = [name for name in tables if not table or table in (name, *name.split("/"))]
    if not chosen:
        raise RequestError(f"--acceptance {path}:{table}: no such table; expected one of {', '.join(tables)}")
    note = "" if len(chosen) == 1 else (
        f"Of {Path(path).name} the table {chosen[0]} counts; --acceptance {Path(path).name}:NAME takes another of"
        f" {', '.join(chosen[1:])}."
    )  # fmt: skip
    lengths = tables[chosen[0]]
    if drafts not in lengths:
        raise RequestError(f"--acceptance {path}: nothing of {drafts} drafts; expected one of"
                           f" {', '.join(map(str, sorted(lengths)))}")  # fmt: skip
    length = lengths[drafts]
    if not 1.0 <= length <= 1.0 + drafts:
        raise RequestError(f"--acceptance {path}: {length:g} tokens a step of {drafts} drafts; expected 1 to"
                           f" {drafts + 1}")  # fmt: skip
    return length, note


def _tables(value: Any, name: tuple[str, ...]) -> list[tuple[str, dict[int, float]]]:
    """Every mapping of whole numbers to numbers, with the keys that lead to it."""
    if not isinstance(value, Mapping):
        return []
    if value and all(isinstance(key, int) and isinstance(each, int | float) for key, each in value.items()):
        return [("/".join(name) or "all", {key: float(each) for key, each in value.items()})]
    return [each for key, inner in value.items() for each in _tables(inner, (*name, str(key)))]
