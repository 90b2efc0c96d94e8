"""What fuzzed inputs are put to: the command line, and the call of Python, in this process."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import predictor
from predictor.cli.main import main
from predictor.errors import SpecError
from predictor.models.built import hub
from tests.fuzzing.case import Case
from tests.fuzzing.oracle import Fault, check_figures, read_answer


def _nothing_there(_: Any, repository: str) -> Path:
    raise SpecError(f"model {repository!r}: no hub is asked while inputs are made up")


def run_words(words: list[str]) -> str | None:
    """The words of `tilecast`: None for an answer, else its one line. Fault for what is neither.

    A model called org/name is asked of a hub by design, so this one request is not made. Any other goes on, for the
    oracle to see: setting HF_HUB_OFFLINE would also hide what a file makes transformers ask for.
    """
    out, err = io.StringIO(), io.StringIO()
    no_hub = mock.patch.object(hub, "_download", _nothing_there)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), no_hub:
        before, sys.stdin = sys.stdin, io.StringIO()
        try:
            status = main(words)
        except SystemExit as end:  # --help and --version of argparse
            if end.code not in (0, None):
                raise Fault(f"left with {end.code!r}: {err.getvalue()[:300]!r}") from None
            return None
        finally:
            sys.stdin = before
    said = err.getvalue()
    if status == 0:
        if "--json" in words and out.getvalue().strip():
            read_answer(out.getvalue())
        elif not out.getvalue().strip():
            raise Fault("an answer without a word")
        if "Traceback" in said:
            raise Fault(f"a traceback beside an answer: {said[-500:]!r}")
        return None
    lines = said.splitlines()
    if status not in (1, 2) or not lines or not lines[-1].startswith("error: ") or "Traceback" in said:
        raise Fault(f"status {status}, {said[-500:]!r}")
    if any(not line.isprintable() for line in lines):
        raise Fault(f"characters that a terminal obeys: {said!r}")
    if len(lines) > 1 and status == 2:
        raise Fault(f"several lines: {said!r}")
    return lines[-1]


def ask_words(case: Case) -> str | None:
    """`run_words` of a case whose ``ask`` is a list of words."""
    return run_words(case.ask)


def ask_python(case: Case) -> str | None:
    """`predictor.predict` with the arguments in ``ask``."""
    answer = predictor.predict(**case.ask)
    figures = {
        "latency_s": answer.latency_s, "interval_s": list(answer.interval_s or ()), "phases_s": dict(answer.phases_s),
        "gpu_busy_s": answer.gpu_busy_s, "cpu_busy_s": answer.cpu_busy_s, "between_s": dict(answer.between_s),
        "flops": answer.flops, "tokens_per_s": answer.tokens_per_s,
    }  # fmt: skip
    check_figures(figures)
    return None
