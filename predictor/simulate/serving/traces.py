"""Files of requests: Tilecast's own traces, and lengths as published traces have them.

* Tilecast: CSV or parquet with arrival_s, input_tokens, output_tokens and, where there are any, shared_prefix_tokens;
  rows with one prefix_id share the same tokens, whose pages then count once.
* Azure's LLM traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens; times count from the first row.
* Mooncake's: JSON lines with timestamp (ms), input_length, output_length and hash_ids of blocks of 512 tokens; leading
  blocks that an earlier row has, too, are shared, and their pages count once.
* ShareGPT: JSON of conversations with messages (from, value): the first question and its answer, without times.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from predictor.engines.scheduling import BLOCK_TOKENS
from predictor.errors import SpecError
from predictor.files import LARGEST_TABLE, check_plain, parse_json, read_text
from predictor.simulate.serving.traffic import MOST, Traffic

#: Characters of English text that a token has. Source: OpenAI's "What are tokens and how to count them?".
CHARACTERS_A_TOKEN = 4
#: Most tokens of a request: a slip of the keyboard beyond it. Chosen by hand, not from data.
_LONGEST = 10_000_000
_EXPECTED = "a trace (CSV, parquet, JSON or JSON lines)"
_ARRIVAL = ("arrival_s", "timestamp", "arrival_time_ns", "arrived_at")
_INPUT = (
    "input_tokens",
    "contexttokens",
    "input_length",
    "input_toks",
    "prompt_len",
    "num_prefill_tokens",
    "prompt_tokens",
)
_OUTPUT = (
    "output_tokens",
    "generatedtokens",
    "output_length",
    "output_toks",
    "output_len",
    "num_decode_tokens",
    "completion_tokens",
)
_SHARED = ("shared_prefix_tokens", "prefix_shared_tokens")
#: Blocks that prompts of one prefix_id have names for: a guard, chosen by hand, not from data.
_NAMED = 2**20

Row = Mapping[str, Any]


def read_trace(path: str | Path, *, timed: bool = True, table: Sequence[Row] | None = None) -> Traffic:
    """The requests of a file in the order of their arrival; SpecError, one line with the row, for what is none.

    ``timed``: it has to say when they come; else times are not looked at, and all are 0. ``table``: its rows, where
    somebody read them (parquet).
    """
    where = Path(path)
    rows = list(_rows(where)) if table is None else [_lower(row) for row in table]
    if not rows:
        raise SpecError(f"{where}: expected at least one request")
    if len(rows) > MOST:
        raise SpecError(f"{where}: {len(rows):,} requests; expected at most {MOST:,}")
    seen: set[int] = set()
    found = [_request(row, f"{where}, row {number}", timed, seen) for number, row in enumerate(rows, start=1)]
    blocks = _named(rows, [shared for *_, shared in found])
    arrival = np.array([at for at, *_ in found], dtype=np.float64)
    if timed:
        late = np.flatnonzero(np.diff(arrival) < 0)
        if late.size:
            row = int(late[0]) + 2
            raise SpecError(f"{where}, row {row}: comes before the row above it; expected rows in the order of arrival")
        arrival = arrival - arrival[0]
    lengths = np.array([each[1:] for each in found], dtype=np.int64)
    return Traffic(arrival, lengths[:, 0], lengths[:, 1], np.minimum(lengths[:, 2], lengths[:, 0]), blocks=blocks)


def _rows(path: Path) -> Iterator[Row]:
    if path.suffix == ".csv":
        check_plain(path, _EXPECTED, LARGEST_TABLE)
        text = read_text(path, _EXPECTED)
        reader = csv.DictReader(io.StringIO(text, newline=""))
        for number, row in enumerate(reader, start=1):
            if None in row or None in row.values():
                raise SpecError(f"{path}, row {number}: expected {len(reader.fieldnames or ())} cells, one a column")
            yield {str(key).strip().lower(): value for key, value in row.items()}
        return
    if path.suffix not in (".json", ".jsonl"):
        raise SpecError(f"{path}: expected {_EXPECTED}: .csv, .parquet, .json or .jsonl")
    text = read_text(path, _EXPECTED)
    if path.suffix == ".json":
        found = parse_json(text, str(path))
        if not isinstance(found, list):
            raise SpecError(f"{path}: expected a list of requests, found {type(found).__name__}")
    else:
        found = [_line(line, path, number) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    for number, row in enumerate(found, start=1):
        if not isinstance(row, dict):
            raise SpecError(f"{path}, row {number}: expected an object, found {type(row).__name__}")
        yield _lower(row)


def _line(line: str, path: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        raise SpecError(f"{path}, row {number}: not valid JSON") from None


def _lower(row: Row) -> Row:
    return {key.lower(): value for key, value in row.items()}


def _request(row: Row, where: str, timed: bool, seen: set[int]) -> tuple[float, int, int, int]:
    """Arrival in seconds, tokens in, tokens out, tokens shared."""
    if "conversations" in row:
        if timed:
            raise SpecError(f"{where}: conversations have no times; expected --lengths with a --rate")
        return 0.0, *_conversation(row["conversations"], where), 0
    tokens = [_tokens(row, names, where, 1) for names in (_INPUT, _OUTPUT)]
    shared = _tokens(row, _SHARED, where, 0) if any(name in row for name in _SHARED) else _blocks(row, where, seen)
    return _arrival(row, where) if timed else 0.0, tokens[0], tokens[1], shared


def _one(row: Row, names: tuple[str, ...], where: str) -> str:
    name = next((each for each in names if each in row), None)
    if name is None:
        raise SpecError(f"{where}: no {names[0]}; the row has {', '.join(list(row)[:8]) or 'nothing'}")
    return name


def _tokens(row: Row, names: tuple[str, ...], where: str, least: int) -> int:
    name = _one(row, names, where)
    value = row[name]
    if value in ("", None) and not least:
        return 0
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not (least <= number <= _LONGEST) or number != int(number):
        raise SpecError(f"{where}: {name} {value!r}; expected a whole number of tokens, at least {least}")
    return int(number)


def _arrival(row: Row, where: str) -> float:
    name = _one(row, _ARRIVAL, where)
    value = row[name]
    scale: Callable[[float], float] = {
        "timestamp": lambda ms: ms * 1e-3, "arrival_time_ns": lambda ns: ns * 1e-9
    }.get(name, lambda s: s)  # fmt: skip
    try:
        number = scale(float(value))
    except (TypeError, ValueError):
        try:
            number = datetime.fromisoformat(str(value).strip()).timestamp()
        except ValueError:
            number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise SpecError(f"{where}: {name} {value!r}; expected a time in seconds")
    return number


def _blocks(row: Row, where: str, seen: set[int]) -> int:
    """Tokens of the leading blocks that an earlier row has, too."""
    ids = row.get("hash_ids")
    if ids is None:
        return 0
    if not isinstance(ids, list) or any(isinstance(one, bool) or not isinstance(one, int) for one in ids):
        raise SpecError(f"{where}: hash_ids {ids!r}; expected a list of whole numbers"[:200])
    shared = next((place for place, one in enumerate(ids) if one not in seen), len(ids))
    seen.update(ids)
    return shared * BLOCK_TOKENS


def _named(rows: Sequence[Row], shared: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Names of every prompt's leading blocks: its hash_ids, or what its prefix_id makes of its shared tokens."""
    prefixes: dict[str, int] = {}
    found: list[tuple[int, ...]] = []
    for row, tokens in zip(rows, shared, strict=True):
        prefix = str(row.get("prefix_id") or "")
        if not prefix:
            found.append(tuple(row.get("hash_ids") or ()))
            continue
        first = -_NAMED * (1 + prefixes.setdefault(prefix, len(prefixes)))
        found.append(tuple(range(first, first + min(tokens // BLOCK_TOKENS, _NAMED))))
    return tuple(found) if any(found) else ()


def _conversation(messages: Any, where: str) -> tuple[int, int]:
    """Tokens of the first question and its answer."""
    try:
        texts = [str(message["value"]) for message in messages[:2]]
        question, answer = texts
    except (TypeError, KeyError, ValueError):
        raise SpecError(f"{where}: expected conversations of at least two messages with from and value") from None
    return tuple(max(1, round(len(text) / CHARACTERS_A_TOKEN)) for text in (question, answer))  # type: ignore[return-value]
