"""How the process of a command ends."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAD = """
import atexit, os, sys
from predictor.files.commands import whole_process

class Kept:
    def __del__(self):
        os.write(1, b" taken apart")

def run():
    global kept
    kept = Kept()
    atexit.register(lambda: print(" handler", end=""))
    print("answer", end="")
    print("remark", end="", file=sys.stderr)
"""


def ends(last: str, stdout: int = subprocess.PIPE) -> tuple[int, str, str]:
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, "-c", f"{HEAD}    {last}\nwhole_process(run)"], stdout=stdout,
                          stderr=subprocess.PIPE, text=True, env=usual)  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("status", [0, 2, 130])
def test_a_process_ends_with_the_status_of_its_command_after_exit_handlers(status: int) -> None:
    assert ends(f"return {status}") == (status, "answer handler", "remark")


def test_what_a_command_raises_ends_the_process_as_ever() -> None:
    assert ends("sys.exit(3)") == (3, "answer handler taken apart", "remark")
    status, said, error = ends("raise LookupError('broken')")
    assert status == 1 and "LookupError: broken" in error and said.startswith("answer handler")


def test_a_child_of_the_process_ends_by_itself() -> None:
    """A process that was split off has the handlers, too, and a status of its own."""
    split = "child = os.fork()\n    if not child: sys.exit(7)\n    return "
    assert ends(f"{split}os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])")[0] == 7


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that takes nothing")  # noqa: PTH110
def test_an_answer_that_nobody_can_keep_is_no_success() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        lost = ends("return 0", full.fileno())
        known = ends("return 5", full.fileno())
    assert (lost[0], lost[2]) == (1, "remarkerror: No space left on device\n")
    assert (known[0], known[2]) == (5, "remark")
