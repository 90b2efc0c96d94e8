"""What an engine's scheduler sees and says: requests that wait, prompts begun, requests that decode, pages of KV cache.

A scheduler is a class of one screen in its engine's folder, with the numbers of its release
(`predictor.engines.vintage.Scheduler`); `Engine.batching` gives it. All that decode take a step together, so a clock
counts their tokens: who begins at one reading ends at another, and what it holds follows from the clock. Lengths are in
tokens.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import field

import numpy as np
import numpy.typing as npt

from predictor.engines.vintage import NOBODY, Scheduler
from predictor.files.records import dataclass

#: Tokens of a block that requests name, by definition: those of Mooncake's traces.
BLOCK_TOKENS = 512


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way: ``prompt`` tokens to read before its next token, ``output`` tokens still to make then.

    ``shared``: leading tokens of the prompt that an earlier one has, too; ``computed``: those in the cache; ``held``:
    pages that it holds while the prompt is read, or all the time where they are set aside at once. ``blocks``: names of
    the prompt's leading blocks of `BLOCK_TOKENS`, those of one name alike; it holds the first ``lent`` of them together
    with others. ``began`` and ``ends``: readings of the clock at which it makes the first and the last of its tokens.
    """

    index: int
    prompt: int
    output: int
    shared: int = 0
    computed: int = 0
    held: int = 0
    began: int = 0
    ends: int = 0
    blocks: tuple[int, ...] = ()
    lent: int = 0

    @property
    def left(self) -> int:
        """Tokens of the prompt that are not computed."""
        return self.prompt - self.computed


class Pages:
    """The KV cache: ``total`` pages of ``size`` tokens, of which ``free`` are nobody's.

    Those that decode grow by a token with every tick of the clock. Their place in a page, less the clock, stays what it
    is, so that the pages of many steps are counted at once.
    """

    def __init__(self, total: int, size: int) -> None:
        self.total, self.size, self.free = total, size, total
        self.places = [0] * size
        self.growing = 0  # sequences

    def count(self, tokens: int) -> int:
        """Pages of so many tokens."""
        return -(-tokens // self.size)

    def take(self, pages: int) -> None:
        """So many become somebody's; give them back with a number below 0."""
        if pages > self.free:
            raise ValueError(f"{pages} pages wanted, {self.free} of {self.total} free")
        self.free -= pages

    def follow(self, tokens: int, clock: int, sequences: int = 1) -> None:
        """So many sequences of ``tokens`` begin to grow (-1: one grows no more)."""
        self.places[(tokens - clock) % self.size] += sequences
        self.growing += sequences

    def grown(self, clock: int, ticks: int) -> int:
        """Pages taken in so many ticks from ``clock`` on: all that grow take one in as many as a page has tokens."""
        places, size = self.places, self.size
        if ticks == 1 < size:
            return places[-clock % size]
        rounds, rest = divmod(ticks, size)
        last = -clock % size  # of the places that take one in the remaining ticks, which come before it
        first = last + 1 - rest
        taken = sum(places[first : last + 1]) if first >= 0 else sum(places[: last + 1]) + sum(places[first:])
        return rounds * self.growing + taken

    def growth(self, clock: int, ticks: int) -> npt.NDArray[np.int64]:
        """Pages taken after each of ``ticks`` ticks from ``clock`` on, of shape (ticks,), not falling."""
        if self.size == 1:
            taken = np.full(ticks, self.places[0])
        else:
            taken = np.array(self.places)[-np.arange(clock, clock + ticks) % self.size]
        pages: npt.NDArray[np.int64] = np.cumsum(taken)
        return pages


@dataclass(slots=True)
class StepBatch:
    """What a step runs: so many tokens of each prompt of ``chunks``, and, with ``decodes``, all who decode.
    ``preempted`` gave way to it."""

    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    decodes: bool = False
    preempted: list[Sequence] = field(default_factory=list)


class Batching(ABC):
    """An engine's scheduler and what it looks at.

    ``waiting`` in the order of arrival, ``begun``: prompts computed in part, ``decoding``: by index, the oldest first.
    ``width``: tokens of the budget that a sequence takes in a decode step, drafts included. ``prefixes``: pages of a
    common beginning are shared. ``joins``: where all who wait fit into the budget, the free pages and the sequences of
    a step, the next one reads them all, beside all who decode.
    """

    joins = False

    def __init__(self, rules: Scheduler, pages: Pages, width: int = 1, prefixes: bool = False) -> None:
        self.rules, self.pages, self.width, self.prefixes = rules, pages, width, prefixes
        self.waiting: deque[Sequence] = deque()
        self.begun: list[Sequence] = []
        self.decoding: dict[int, Sequence] = {}
        self.clock = 0
        self.steps = 0  # of decoding, since somebody set it to 0
        self.ending = 0  # sum of `ends` of those who decode
        self.bases = 0  # sum of their lengths at clock 0
        self.squares = 0  # sum of the squares of these
        self.ends: list[tuple[int, int]] = []  # (end, index), the soonest first; those that left may still stand there
        self.sets_aside = rules.preemption == NOBODY  # pages for all that a request will write
        self._holders: dict[int, int] = {}  # sequences that hold a block, by its name
        self._block = BLOCK_TOKENS // pages.size if prefixes and BLOCK_TOKENS % pages.size == 0 else 0  # its pages

    @abstractmethod
    def batch(self) -> StepBatch:
        """The next step. Pages of its prompts are taken; there are enough for one tick of those who decode.

        Where this is `settled`, it is a step of all who decode, and nobody asks."""

    def patience(self) -> int:
        """Decode steps after which those who wait are looked at again, though nobody came or went."""
        return 2**30

    @property
    def settled(self) -> bool:
        """Whether there is nothing to choose: nobody waits, no prompt is begun, and those who decode have room."""
        if self.waiting or self.begun or not self.decoding:
            return False
        return self.sets_aside or self.pages.grown(self.clock, self.width) <= self.pages.free  # `spare` is not below 0

    @property
    def running(self) -> int:
        """Sequences that hold pages."""
        return len(self.begun) + len(self.decoding)

    @property
    def context(self) -> int:
        """Tokens in the cache of all that decode."""
        return self.context_at(self.clock)

    def context_at(self, clock: int) -> int:
        """The same at a reading of the clock."""
        return self.bases + len(self.decoding) * clock

    @property
    def spread(self) -> float:
        """Standard deviation of the lengths of those who decode, in tokens; no tick changes it."""
        n = len(self.decoding)
        return math.sqrt(n * self.squares - self.bases * self.bases) / n if n else 0.0

    @property
    def spare(self) -> int:
        """Free pages beyond those of the next tick."""
        if self.sets_aside or not self.decoding:
            return self.pages.free
        return self.pages.free - self.pages.grown(self.clock, self.width)

    def length(self, sequence: Sequence) -> int:
        """Tokens in the cache of one that decodes."""
        return sequence.prompt + self.clock - sequence.began

    def soonest(self) -> Sequence | None:
        """The next of those who decode to be done."""
        while self.ends:
            end, index = self.ends[0]
            sequence = self.decoding.get(index)
            if sequence is not None and sequence.ends == end:
                return sequence
            heapq.heappop(self.ends)
        return None

    def due(self) -> Sequence | None:
        """One of those who decode that is done by now."""
        if not self.ends or self.ends[0][0] > self.clock:
            return None
        sequence = self.soonest()
        return sequence if sequence is not None and sequence.ends <= self.clock else None

    def cached(self, sequence: Sequence) -> int:
        """Tokens of a waiting prompt that the cache has: whole pages, and at least one token is left to compute."""
        shared = min(sequence.shared, sequence.prompt - 1) if self.prefixes else 0
        return shared // self.pages.size * self.pages.size

    def wants(self, sequence: Sequence, tokens: int) -> int:
        """Pages that are to be taken so that ``tokens`` more of a prompt can be computed."""
        shared, free = (0, 0) if sequence.held else self._lendable(sequence)
        held = sequence.held + shared * self._block - free
        if self.sets_aside:
            return self.pages.count(sequence.prompt + sequence.output - 1) - held
        start = sequence.computed or self.cached(sequence)
        return self.pages.count(start + tokens) - held

    def _lendable(self, sequence: Sequence) -> tuple[int, int]:
        """Leading blocks of a waiting prompt that the cache has, and pages of those that nobody holds."""
        count = min(self.cached(sequence) // BLOCK_TOKENS, len(sequence.blocks)) if self._block else 0
        return count, self._block * sum(block not in self._holders for block in sequence.blocks[:count])

    def _give_back(self, sequence: Sequence, pages: int) -> None:
        """Of so many ``pages`` of a sequence, those that it held alone."""
        self.pages.take(sequence.lent * self._block - pages)
        for block in sequence.blocks[: sequence.lent]:
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]
                self.pages.take(-self._block)
        sequence.lent = 0

    def admit(self, tokens: int) -> tuple[Sequence, int]:
        """Take the first of those who wait, with ``tokens`` of its prompt beyond what the cache has."""
        sequence = self.waiting.popleft()
        sequence.lent, free = self._lendable(sequence)
        self.pages.take(free)
        sequence.held = sequence.lent * self._block
        for block in sequence.blocks[: sequence.lent]:
            self._holders[block] = self._holders.get(block, 0) + 1
        sequence.computed = self.cached(sequence)
        self.begun.append(sequence)
        return self.extend(sequence, tokens)

    def extend(self, sequence: Sequence, tokens: int) -> tuple[Sequence, int]:
        """Compute ``tokens`` more of a prompt that was begun."""
        more = self.wants(sequence, tokens)
        self.pages.take(more)
        sequence.held += more
        sequence.computed += tokens
        return sequence, tokens

    def finish_prompt(self, sequence: Sequence) -> bool:
        """Its prompt is in the cache and its first token made; whether it decodes on."""
        self.begun.remove(sequence)
        if sequence.output == 1:
            self._give_back(sequence, sequence.held)
            return False
        self._lend(sequence)
        sequence.began, sequence.ends = self.clock, self.clock + sequence.output - 1
        self.decoding[sequence.index] = sequence
        self.ending += sequence.ends
        base = sequence.prompt - sequence.began
        self.bases += base
        self.squares += base * base
        heapq.heappush(self.ends, (sequence.ends, sequence.index))
        if not self.sets_aside:
            self.pages.follow(sequence.prompt, self.clock)
        return True

    def _lend(self, sequence: Sequence) -> None:
        """The blocks that it computed itself are for others from now on, up to the first that another did, too."""
        last = min(sequence.prompt // BLOCK_TOKENS, len(sequence.blocks)) if self._block else 0
        for block in sequence.blocks[sequence.lent : last]:
            if block in self._holders:
                break
            self._holders[block] = 1
            sequence.lent += 1

    def leave(self, sequence: Sequence) -> None:
        """One that decodes is done, or gives way."""
        del self.decoding[sequence.index]
        self.ending -= sequence.ends
        base = sequence.prompt - sequence.began
        self.bases -= base
        self.squares -= base * base
        tokens = self.length(sequence)
        self._give_back(sequence, sequence.held if self.sets_aside else self.pages.count(tokens))
        if not self.sets_aside:
            self.pages.follow(tokens, self.clock, -1)

    def tick(self, tokens: int) -> None:
        """All who decode made so many tokens; their pages are taken."""
        if not self.sets_aside and tokens:
            self.pages.take(self.pages.grown(self.clock, tokens))
        self.clock += tokens

    def give_way(self, sequence: Sequence, batch: StepBatch) -> None:
        """``sequence`` loses its pages to ``batch`` and waits in front, to be computed again
        with the tokens it made."""
        batch.preempted.append(sequence)
        if sequence.index in self.decoding:
            self.leave(sequence)
            sequence.prompt, sequence.output = self.length(sequence) + 1, sequence.ends - self.clock
        else:
            self.begun.remove(sequence)
            self._give_back(sequence, sequence.held)
        sequence.computed = sequence.held = sequence.shared = 0
        sequence.blocks = ()
        self.waiting.appendleft(sequence)

    def make_room(self, batch: StepBatch) -> None:
        """The last to be admitted give way until those who decode can."""
        while self.spare < 0:
            self.give_way(self.begun[-1] if self.begun else next(reversed(self.decoding.values())), batch)
