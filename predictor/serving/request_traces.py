"""Files of requests: Tilecast's own traces, and lengths as published traces have them.

* Tilecast: CSV or parquet with arrival_s, input_tokens, output_tokens and, where there are any, shared_prefix_tokens;
  rows with one prefix_id share the same tokens, whose pages then count once.
* Azure's LLM traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens; times count from the first row.
* Mooncake's and aiperf's: JSON lines with timestamp (ms), input_length, output_length and hash_ids of blocks of 512
  tokens; leading blocks that an earlier row has, too, are shared, and their pages count once.
* BurstGPT: CSV with Timestamp (seconds), Request tokens, Response tokens.
* SGLang's Autobench: JSON lines with timestamp (ms), prompt_len, output_len.
* ShareGPT: JSON of conversations with messages (from, value): the first question and its answer, without times.

The unit of a time is that of its name (arrival_ms, timestamp_s), else the format's; a bare timestamp of no known format
is in seconds. Which was taken is among the notes of the requests, and whether it makes a rate that can be.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.engines.scheduling import BLOCK_TOKENS
from predictor.errors import SpecError
from predictor.files.read import LARGEST_TABLE, check_header, check_plain, parse_json, read_text
from predictor.request.options import MOST_REQUESTS
from predictor.serving.traffic import Traffic

#: Characters of English text that a token has. Source: OpenAI's "What are tokens and how to count them?".
CHARACTERS_A_TOKEN = 4
#: Most tokens of a request: a slip of the keyboard beyond it. Chosen by hand, not from data.
_LONGEST = 10_000_000
_EXPECTED = "a trace (CSV, parquet, JSON or JSON lines)"
#: A column of times, with its unit where the name has one.
_ARRIVAL = re.compile(r"(arrival|arrival_time|arrived_at|timestamp|created_time)(?:_(s|ms|us|ns))?", re.ASCII)
#: Seconds of a unit, by definition.
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
#: Formats whose column of times has no unit in its name: columns that only they have, the unit, whose definition. The
#: first fits. Sources: aiperf 0.13.0, dataset/loader/models.py (Mooncake's, aiperf's; BurstGPT's rows in seconds);
#: sglang, tools/sglang-simulator, README (Autobench).
_DEFINED: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("chat_id",), "s", "Bailian's traces"),
    (("arrived_at",), "s", "Vidur's traces"),
    (("request tokens",), "s", "BurstGPT"),
    (("input_length",), "ms", "Mooncake's and aiperf's traces"),
    (("hash_ids",), "ms", "Mooncake's and aiperf's traces"),
    (("prompt_len", "output_len"), "ms", "SGLang's Autobench"),
)
#: Tokens of a block that Bailian's hash_ids name. Source: the README of its traces, as recalled, unverified.
_BAILIAN_TOKENS = 16
#: Requests a second of a trace that can be, on the mean: from one in 50 s to as many as a fleet of servers takes; a
#: factor of 1000 in the unit leaves the range. Chosen by hand, not from data.
_PLAUSIBLE = (0.02, 200.0)
_INPUT = (
    "input_tokens",
    "contexttokens",
    "input_length",
    "input_toks",
    "prompt_len",
    "num_prefill_tokens",
    "prompt_tokens",
    "request tokens",
)
_OUTPUT = (
    "output_tokens",
    "generatedtokens",
    "output_length",
    "output_toks",
    "output_len",
    "num_decode_tokens",
    "completion_tokens",
    "response tokens",
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
    if len(rows) > MOST_REQUESTS:
        raise SpecError(f"{where}: {len(rows):,} requests; expected at most {MOST_REQUESTS:,}")
    seen: set[int] = set()
    clock = _clock(rows[0], f"{where}, row 1") if timed and "conversations" not in rows[0] else None
    requests = [_request(row, f"{where}, row {number}", clock, timed, seen) for number, row in enumerate(rows, start=1)]
    blocks = _named(rows, [shared for *_, shared in requests])
    arrival = np.array([at for at, *_ in requests], dtype=np.float64)
    if timed:
        late = np.flatnonzero(np.diff(arrival) < 0)
        if late.size:
            row = int(late[0]) + 2
            raise SpecError(f"{where}, row {row}: comes before the row above it; expected rows in the order of arrival")
        arrival = arrival - arrival[0]
    lengths = np.array([each[1:] for each in requests], dtype=np.int64)
    notes = () if clock is None else _notes(clock, arrival, _dated(str(rows[0][clock.name])))
    shared = np.minimum(lengths[:, 2], lengths[:, 0])
    return Traffic(arrival, lengths[:, 0], lengths[:, 1], shared, blocks=blocks, notes=notes)


class Clock(NamedTuple):
    """The column of times: its name, seconds of its unit, and who says so ("" where nobody does)."""

    name: str
    unit: str
    says: str


def _clock(row: Row, where: str) -> Clock:
    """The column of times of a trace whose first row this is."""
    named = [(name, match[2]) for name in row if (match := _ARRIVAL.fullmatch(name))]
    if not named:
        raise SpecError(f"{where}: no arrival_s; the row has {', '.join(list(row)[:8]) or 'nothing'}")
    name, unit = next((timing for timing in named if timing[1]), named[0])
    if unit:
        return Clock(name, unit, "its name")
    for columns, unit, whose in _DEFINED:
        if all(column in row for column in columns):
            return Clock(name, unit, f"the definition of {whose}")
    return Clock(name, "s", "")


def _notes(clock: Clock, arrival: npt.NDArray[np.float64], dated: bool) -> tuple[str, ...]:
    """What was taken for the unit of times, and whether the rate that follows can be."""
    span = float(arrival[-1])
    if dated:
        return ()
    by = f"by {clock.says}" if clock.says else "as nothing says otherwise"
    taken = f"times of the trace: {clock.name} in {clock.unit}, {by}"
    if span <= 0.0:
        return (taken,)
    rate = (len(arrival) - 1) / span
    low, high = _PLAUSIBLE
    if low <= rate <= high:
        return (f"{taken}: {rate:,.3g} requests/s over {span:,.4g} s",)
    other = "s" if clock.unit != "s" else "ms"
    stem = _ARRIVAL.fullmatch(clock.name)
    assert stem is not None  # which made it the clock
    return (
        f"{taken}: {rate:,.3g} requests/s, which is implausible; if they are in {other}, call the column"
        f" {stem[1]}_{other}",
    )


def _rows(path: Path) -> Iterator[Row]:
    if path.suffix == ".csv":
        check_plain(path, _EXPECTED, LARGEST_TABLE)
        text = read_text(path, _EXPECTED)
        reader = csv.DictReader(io.StringIO(text, newline=""))
        header = [name.strip().lower() for name in reader.fieldnames or ()]
        check_header(header, str(path))
        for number, row in enumerate(reader, start=1):
            if None in row or None in row.values():
                raise SpecError(f"{path}, row {number}: expected {len(reader.fieldnames or ())} cells, one a column")
            yield {str(key).strip().lower(): value for key, value in row.items()}
        return
    if path.suffix not in (".json", ".jsonl"):
        raise SpecError(f"{path}: expected {_EXPECTED}: .csv, .parquet, .json or .jsonl")
    text = read_text(path, _EXPECTED)
    if path.suffix == ".json":
        rows = parse_json(text, str(path))
        if not isinstance(rows, list):
            raise SpecError(f"{path}: expected a list of requests, found {type(rows).__name__}")
    else:
        rows = [_line(line, path, number) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise SpecError(f"{path}, row {number}: expected an object, found {type(row).__name__}")
        yield _lower(row)


def _line(line: str, path: Path, number: int) -> Any:
    return parse_json(line, f"{path}, row {number}")


def _lower(row: Row) -> Row:
    return {key.lower(): value for key, value in row.items()}


def _request(row: Row, where: str, clock: Clock | None, timed: bool, seen: set[int]) -> tuple[float, int, int, int]:
    """Arrival in seconds, tokens in, tokens out, tokens shared."""
    if "conversations" in row:
        if timed:
            raise SpecError(f"{where}: conversations have no times; expected --lengths with a --rate")
        return 0.0, *_conversation(row["conversations"], where), 0
    tokens = [_tokens(row, names, where, 1) for names in (_INPUT, _OUTPUT)]
    shared = _tokens(row, _SHARED, where, 0) if any(name in row for name in _SHARED) else _blocks(row, where, seen)
    return 0.0 if clock is None else _arrival(row, where, clock), tokens[0], tokens[1], shared


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


def _arrival(row: Row, where: str, clock: Clock) -> float:
    """Seconds; a text that is a date counts from 1970, in UTC where it names no zone."""
    value = row.get(clock.name)
    if value is None:
        raise SpecError(f"{where}: no {clock.name}; the row has {', '.join(list(row)[:8]) or 'nothing'}")
    try:
        number = float(value) * _SECONDS[clock.unit]
    except (TypeError, ValueError):
        try:
            date = datetime.fromisoformat(str(value).strip())
            number = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except ValueError:
            number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise SpecError(f"{where}: {clock.name} {value!r}; expected a time in {clock.unit}")
    return number


def _dated(text: str) -> bool:
    """Whether it is a date, which has no unit."""
    try:
        float(text)
    except ValueError:
        return True
    return False


def _blocks(row: Row, where: str, seen: set[int]) -> int:
    """Tokens of the leading blocks that an earlier row has, too."""
    ids = row.get("hash_ids")
    if ids is None:
        return 0
    if not isinstance(ids, list) or any(
        isinstance(token_block, bool) or not isinstance(token_block, int) for token_block in ids
    ):
        raise SpecError(f"{where}: hash_ids {ids!r}; expected a list of whole numbers"[:200])
    shared = next((place for place, block in enumerate(ids) if block not in seen), len(ids))
    seen.update(ids)
    return shared * (_BAILIAN_TOKENS if "chat_id" in row else BLOCK_TOKENS)


def _named(rows: Sequence[Row], shared: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Names of every prompt's leading blocks: its hash_ids, or what its prefix_id makes of its shared tokens."""
    prefixes: dict[str, int] = {}
    names: list[tuple[int, ...]] = []
    for row, tokens in zip(rows, shared, strict=True):
        prefix = str(row.get("prefix_id") or "")
        if not prefix:
            ids = row.get("hash_ids") or ()
            step = BLOCK_TOKENS // _BAILIAN_TOKENS if "chat_id" in row else 1  # the last of many names all before it
            names.append(tuple(ids[step - 1 :: step]))
            continue
        first = -_NAMED * (1 + prefixes.setdefault(prefix, len(prefixes)))
        names.append(tuple(range(first, first + min(tokens // BLOCK_TOKENS, _NAMED))))
    return tuple(names) if any(names) else ()


def _conversation(messages: Any, where: str) -> tuple[int, int]:
    """Tokens of the first question and its answer."""
    try:
        texts = [str(message["value"]) for message in messages[:2]]
        question, answer = texts
    except (TypeError, KeyError, ValueError):
        raise SpecError(f"{where}: expected conversations of at least two messages with from and value") from None
    return tuple(max(1, round(len(text) / CHARACTERS_A_TOKEN)) for text in (question, answer))  # type: ignore[return-value]
