"""Regular expressions that a file brings, matched in time linear in the text: no expression makes a forecast hang.

`re` tries one way after the other, which takes for ever for some expressions, `(a|a)*b` among them. `Pattern` follows
all ways at once (Thompson, Regular expression search algorithm, CACM 11:6, 1968). Its sets of places are kept, so that
a character that came before costs one look-up.

What is read: literals, `.`, `[...]`, `\\d` and its kin, `\\.`, groups `(...)`, `(?:...)` and `(?P<name>...)`, `|`, the
repeats `*`, `+`, `?`, `{m}`, `{m,}`, `{,n}` and `{m,n}` (a `?` behind one changes nothing here), `^` and `$`.
Expressions that look around, refer back or set a flag are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from predictor.errors import SpecError, UnsupportedError

#: Characters of an expression, groups within each other, and places of its automaton: what names of modules need, ten
#: times over. Chosen by hand, not from data.
LONGEST, DEEPEST, MOST_PLACES = 1_000, 30, 1_000
#: Sets and characters that are kept: chosen by hand, not from data.
_KEPT = 10_000

#: What builds the places of a part before those that come behind it: (place behind) -> first place of the part.
_Part = Callable[[int], int]
#: Escapes of one character; what else is a letter or a digit behind a backslash refers back or looks around.
_ESCAPES = "dDsSwWnrtfv"
#: "{2}", "{2,}", "{,3}", "{2,3}", "{,}"; other braces stand for themselves.
_COUNTED = re.compile(r"\{(?=[\d,])(\d{0,4})(,?)(\d{0,4})\}", re.ASCII)


class Pattern:
    """An expression. SpecError for what is none, UnsupportedError for what is not read; both are one line."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise UnsupportedError(f"{text[:80]!r}... has {len(text):,} characters; expected at most {LONGEST:,}")
        self.text = text
        self._fits: list[Callable[[str], object] | None] = []  # of a place: whether a character passes it
        self._on: list[tuple[int, ...]] = []  # of a place: those that it leads to
        self._only: list[str] = []  # of a place: "", or the end of the text that it asks for, "^" or "$"
        end = self._place()
        self._end = end
        reader = _PatternReader(self, text)
        begin = reader.read()(end)
        self._begin = self._closed((begin,), first=True)
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def match(self, text: str) -> bool:
        """Whether the text begins with what is meant, as `re.match` says."""
        now = self._begin
        for character in text:
            if self._end in now:
                return True
            if not now:
                return False
            key = (now, character)
            after = self._known.get(key)
            if after is None:
                passed = (q for p in now if (fits := self._fits[p]) and fits(character) for q in self._on[p])
                after = self._closed(tuple(passed))
                if len(self._known) >= _KEPT:
                    self._known.clear()
                self._known[key] = after
            now = after
        return self._end in self._closed(tuple(now), first=not text, last=True)

    def _place(self, fits: Callable[[str], object] | None = None, on: tuple[int, ...] = (), only: str = "") -> int:
        if len(self._on) >= MOST_PLACES:
            raise UnsupportedError(
                f"{self.text[:80]!r} is more than {MOST_PLACES:,} places once its repeats are counted"
            )
        self._fits.append(fits)
        self._on.append(on)
        self._only.append(only)
        return len(self._on) - 1

    def _closed(self, places: tuple[int, ...], first: bool = False, last: bool = False) -> frozenset[int]:
        """The places that are reached from these without a character; ``first``, ``last``: at an end of the text."""
        reached, left = set(places), list(places)
        while left:
            place = left.pop()
            only = self._only[place]
            if self._fits[place] is None and (not only or (only == "^" and first) or (only == "$" and last)):
                new = [p for p in self._on[place] if p not in reached]
                reached.update(new)
                left += new
        return frozenset(reached)


class _PatternReader:
    """Reads the text of a pattern from left to right, and builds it from its end."""

    def __init__(self, pattern: Pattern, text: str) -> None:
        self.pattern, self.text, self.at, self.depth = pattern, text, 0, 0

    def read(self) -> _Part:
        part = self.either()
        if self.at < len(self.text):
            raise self.wrong("a ) that closes nothing")
        return part

    def wrong(self, why: str) -> SpecError:
        return SpecError(f"{self.text[:80]!r} is no regular expression: {why}")

    def unread(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.text[:80]!r} has {what}; expected literals, ., classes, groups, |, repeats, ^ and $ alone"
        )

    def next(self, *signs: str) -> str:
        """Passes the sign that stands next, of these; "" where none does."""
        sign = next((sign for sign in signs if self.text.startswith(sign, self.at)), "")
        self.at += len(sign)
        return sign

    def either(self) -> _Part:
        """Parts between "|"."""
        parts = [self.row()]
        while self.next("|"):
            parts.append(self.row())
        place = self.pattern._place
        return parts[0] if len(parts) == 1 else lambda then: place(on=tuple(part(then) for part in parts))

    def row(self) -> _Part:
        """Parts that follow each other."""
        parts: list[_Part] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            anchored = self.text[self.at] in "^$"
            before, part = self.at + 1, self.repeated(self.single())
            if anchored and self.at > before:
                raise self.wrong("an end of the text that repeats")
            parts.append(part)

        def build(then: int) -> int:
            for part in reversed(parts):
                then = part(then)
            return then

        return build

    def single(self) -> _Part:
        place = self.pattern._place
        if self.next("("):
            return self.group()
        if sign := self.next("^", "$"):
            return lambda then: place(on=(then,), only=sign)
        if self.next("*", "+", "?") or _COUNTED.match(self.text, self.at):
            raise self.wrong("nothing to repeat")
        fits = self.character()
        return lambda then: place(fits, (then,))

    def group(self) -> _Part:
        if self.next("?") and not self.next(":"):
            named = re.match(r"P<[A-Za-z_]\w{0,99}>", self.text[self.at :], re.ASCII)
            if named is None:
                raise self.unread(f"'(?{self.text[self.at : self.at + 2]}'")
            self.at += named.end()
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.unread(f"more than {DEEPEST} groups within each other")
        part = self.either()
        if not self.next(")"):
            raise self.wrong("a ( that nothing closes")
        self.depth -= 1
        return part

    def character(self) -> Callable[[str], object]:
        """What passes one character; `re` reads it, which has no choice to make there."""
        start = self.at
        self.at += 1
        if self.text[start] == "\\":
            self.at += 1
            escaped = self.text[start + 1 : self.at]
            if escaped.isalnum() and escaped not in _ESCAPES:
                raise self.unread(f"'\\{escaped}'")
        elif self.text[start] == "[":
            self.next("^")
            self.next("]")  # the first stands for itself
            while self.at < len(self.text) and self.text[self.at] != "]":
                self.at += 1 + (self.text[self.at] == "\\")
            self.at += 1
        elif self.text[start] != ".":
            return self.text[start].__eq__
        try:
            return re.compile(self.text[start : self.at]).fullmatch
        except (re.error, OverflowError) as error:
            raise self.wrong(str(error)) from None

    def repeated(self, part: _Part) -> _Part:
        """``part`` with the repeats behind it."""
        counted = _COUNTED.match(self.text, self.at)
        if sign := self.next("*", "+", "?"):
            least, most = (1 if sign == "+" else 0), (1 if sign == "?" else None)
        elif counted:
            self.at = counted.end()
            least = int(counted[1] or 0)
            most = least if not counted[2] else int(counted[3]) if counted[3] else None
            if most is not None and most < least:
                raise self.wrong(f"{counted[0]} ends before it begins")
        else:
            return part
        if self.next("+"):
            raise self.unread("a repeat that gives nothing back")
        self.next("?")
        if self.text[self.at : self.at + 1] in tuple("*+?") or _COUNTED.match(self.text, self.at):
            raise self.wrong("a repeat of a repeat without a group")
        return self.times(part, least, most)

    def times(self, part: _Part, least: int, most: int | None) -> _Part:
        place, on = self.pattern._place, self.pattern._on

        def build(then: int) -> int:
            if most is None:
                loop = place()
                on[loop] = (part(loop), then)
                then = loop
            else:
                after = then
                for _ in range(most - least):
                    then = place(on=(part(then), after))
            for _ in range(least):
                then = part(then)
            return then

        return build
