"""Events of a trace file, one after the other: Chrome's trace format in JSON, plain or packed by gzip.

A trace of some seconds has gigabytes, and comes from anywhere. So it is never in memory whole: a piece of text is, and
the event that is read. What is larger, deeper or longer than any profiler writes is refused in one line.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from predictor.errors import SpecError
from predictor.files.read import check_plain

#: Bytes of the file, and characters that it may unpack to: guards against one that takes hours, by hand. A trace of
#: 2 GB is read in about a minute.
LARGEST_FILE, LARGEST_UNPACKED = 4 * 2**30, 16 * 2**30
#: Characters of one event, or of a value beside the events: guards against one that memory cannot hold, by hand. The
#: longest that were seen, names of kernels made of templates, have some ten thousand.
LARGEST_VALUE = 4 * 2**20
#: Bytes that are read at a time: chosen by hand, not from data.
_PIECE = 2**20
EXPECTED = "a trace of PyTorch's profiler, Chrome's trace format in .json or .json.gz"
_SPACE = re.compile(r"[ \t\r\n]*")
_PACKED = b"\x1f\x8b"  # source: RFC 1952, section 2.3.1
_LIST = "traceEvents"


class TraceFile:
    """The events of a file, by iteration; ``head`` has what stands beside them, once they were read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.head: dict[str, Any] = {}
        self._decoder = json.JSONDecoder(parse_constant=lambda word: None)  # NaN of an occupancy says nothing
        self._text, self._at, self._read, self._ended = "", 0, 0, False
        self._into_text = codecs.getincrementaldecoder("utf-8")("replace")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every event. SpecError, one line, for what is no trace, or is broken, or too large."""
        check_plain(self.path, EXPECTED, LARGEST_FILE)
        try:
            with self.path.open("rb") as file:
                packed = file.read(2) == _PACKED
            with gzip.open(self.path, "rb") if packed else self.path.open("rb") as stream:
                yield from self._top(cast(IO[bytes], stream))
        except (EOFError, zlib.error, OSError) as error:
            self._refuse(f"cannot be unpacked or read ({' '.join(str(error).split())[:80] or 'it ends too early'})")

    def _top(self, file: IO[bytes]) -> Iterator[dict[str, Any]]:
        first = self._next(file)
        if first == "\ufeff":
            self._at += 1
            first = self._next(file)
        if first == "[":
            yield from self._events(file)
        elif first == "{":
            yield from self._members(file)
        else:
            self._refuse(f"begins with {first[:1]!r}" if first else "is empty")
        if self._next(file):
            self._refuse("goes on after its end")

    def _members(self, file: IO[bytes]) -> Iterator[dict[str, Any]]:
        self._at += 1
        seen: set[str] = set()
        while self._next(file) != "}":
            key = self._value(file)
            if not isinstance(key, str) or self._next(file) != ":":
                self._refuse("is not JSON")
            if key in seen or len(seen) > LARGEST_VALUE // 1024:
                self._refuse(f"has {key[:40]!r} twice" if key in seen else "has too many members")
            seen.add(key)
            self._at += 1
            if key == _LIST:
                if self._next(file) != "[":
                    self._refuse(f"has {_LIST!r} that is no list")
                yield from self._events(file)
            else:
                self._next(file)
                value = self._value(file)
                if key in ("deviceProperties", "distributedInfo", "metadata", "traceName"):
                    self.head[key] = value
            self._comma(file, "}")
        self._at += 1
        if _LIST not in seen:
            self._refuse(f"has no {_LIST!r}")

    def _events(self, file: IO[bytes]) -> Iterator[dict[str, Any]]:
        self._at += 1
        while self._next(file) != "]":
            event = self._value(file)
            if not isinstance(event, dict):
                self._refuse(f"has an event that is no object but {str(event)[:40]!r}")
            yield event
            self._comma(file, "]")
        self._at += 1

    def _comma(self, file: IO[bytes], end: str) -> None:
        after = self._next(file)
        if after == ",":
            self._at += 1
            if self._next(file) != end:
                return
        if after != end:
            self._refuse("ends too early" if not after else "is not JSON")

    def _next(self, file: IO[bytes]) -> str:
        """The next character that is no space, "" at the end; it is not taken."""
        blank = 0
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            blank += match.end() - self._at
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if blank > LARGEST_VALUE:
                self._refuse(f"has more than {LARGEST_VALUE:,} spaces in a row")
            if not self._more(file):
                return ""

    def _more(self, file: IO[bytes]) -> bool:
        """Whether there was more to read."""
        if self._ended:
            return False
        data = file.read(_PIECE)
        self._ended = not data
        text = self._into_text.decode(data, final=not data)
        self._read += len(text)
        if self._read > LARGEST_UNPACKED:
            self._refuse(f"unpacks to more than {LARGEST_UNPACKED:,} characters")
        self._text = self._text[self._at :] + text
        self._at = 0
        return not self._ended or bool(text)

    def _value(self, file: IO[bytes]) -> Any:
        """The JSON value that begins here."""
        needed = 0
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                reason = error.msg
            except RecursionError:
                self._refuse("is nested too deeply")
            except ValueError as error:
                self._refuse(f"has a value that cannot be read ({str(error)[:60]})")
            else:
                if end < len(self._text) or self._ended:  # else a number may go on
                    if end - self._at > LARGEST_VALUE:
                        self._refuse(f"has a value of more than {LARGEST_VALUE:,} characters")
                    self._at = end
                    return value
                reason = ""
            # It may only end in what was not read yet. Twice as much is asked for each time, so that a long value is
            # looked at a few times, not once a piece.
            rest = len(self._text) - self._at
            if rest > LARGEST_VALUE:
                self._refuse(f"has a value of more than {LARGEST_VALUE:,} characters, or is not JSON")
            needed = max(2 * needed, rest + 1)
            if not self._more(file) and reason:
                self._refuse(f"ends too early, or is not JSON ({reason})")
            while len(self._text) < needed and self._more(file):
                pass

    def _refuse(self, reason: str) -> NoReturn:
        raise SpecError(f"cannot read {self.path}: {reason}; expected {EXPECTED}")
