"""Cases of a kind, one after the other in this process; as a program, the worker of `tools/fuzz`.

    python -m tests.fuzzing.run KIND SEED SECONDS CASES FOLDER

prints a line of JSON for each case: its verdict, what tells a failure apart, seconds, bytes, and for a failure the
case. Before a case is asked it stands in FOLDER/current.json, for whoever finds this process dead.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzzing.case import Case
from tests.fuzzing.kinds import kind, load
from tests.fuzzing.oracle import FAILED, Limits, Outcome, guard, judge

#: Cases that hypothesis makes at a time; the next ones have another seed.
ROUND = 1000
#: Address space beyond what a worker has when it begins: an allocation larger than that is refused, not waited for.
ROOM = 6 * 2**30


def generated(name: str, number: int, count: int, use: Callable[[Case], None], repeatable: bool = False) -> None:
    """``use`` for ``count`` cases of a kind, those of seed ``number`` (``repeatable``: the same ones every time)."""

    def each(case: Case) -> None:
        use(case)

    given_ = given(kind(name).cases())(each)
    asked = settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate], derandomize=repeatable,
        suppress_health_check=list(HealthCheck),
    )(given_)  # fmt: skip
    (asked if repeatable else seed(number)(asked))()


def ask(case: Case, folder: Path, limits: Limits | None = None) -> Outcome:
    """One case, in ``folder``, which is made anew; caches, state and temporary files lie in it, too."""
    module = kind(case.kind)
    if not _is_new(folder):
        shutil.rmtree(folder, ignore_errors=True)
        (folder / ".tmp").mkdir(parents=True)
    case.write(folder)
    kept = {name: os.environ.get(name) for name in ("TILECAST_CACHE", "TILECAST_STATE", "TILECAST_TRACKING_URI")}
    os.environ |= {"TILECAST_CACHE": f"{folder}/.cache", "TILECAST_STATE": f"{folder}/.state"}
    os.environ["TILECAST_TRACKING_URI"] = "off"
    before, tempfile.tempdir = tempfile.tempdir, str(folder / ".tmp")
    try:
        return judge(case, module.ask, folder, limits, blind=getattr(module, "BLIND", False))
    finally:
        tempfile.tempdir = before
        for name, value in kept.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def _is_new(folder: Path) -> bool:
    """Whether the last case left its folder as it was made."""
    try:
        return [entry.name for entry in os.scandir(folder)] == [".tmp"] and not any(os.scandir(folder / ".tmp"))
    except OSError:
        return False


class _Over(Exception):
    """The time is over."""


def main(words: list[str]) -> int:
    """The worker."""
    name, number, seconds, count, home = words[0], int(words[1]), float(words[2]), int(words[3]), Path(words[4])
    sys.dont_write_bytecode = True
    load(name)
    guard()
    print(json.dumps({"begins": name}), flush=True)
    until = time.monotonic() + seconds  # loading a library is no case
    first = True

    def use(case: Case) -> None:
        nonlocal first, count
        if count <= 0 or time.monotonic() > until:
            raise _Over
        count -= 1
        (home / "current.json").write_text(case.to_json(), encoding="utf-8")
        outcome = ask(case, home / "case")
        line = {"verdict": outcome.verdict, "where": outcome.where, "seconds": outcome.seconds, "peak": outcome.peak}
        if outcome.verdict == FAILED:
            line |= {"said": outcome.said, "case": case.to_json()}
        print(json.dumps(line), flush=True)
        if first:  # what the kind needs is loaded now
            first = False
            pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
            if pages:
                most = pages * resource.getpagesize() + ROOM
                resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

    try:
        while True:
            generated(name, number, ROUND, use)
            number += 1
    except _Over:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
