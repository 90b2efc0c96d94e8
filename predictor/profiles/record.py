"""Runs a script of a job under PyTorch's profiler, and writes its trace."""

from __future__ import annotations

import runpy
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from predictor.errors import RequestError
from predictor.files.extras import require
from predictor.files.outputs import OutputKind, guarded, unwritable
from predictor.files.read import check_plain


def _is_trace(path: Path) -> bool:
    from predictor.profiles.events import TraceFile

    try:
        return isinstance(next(iter(TraceFile(path)), None), dict)
    except RequestError:
        return False


RECORDED = OutputKind("a trace of a profiler", _is_trace)


def record(script: str, words: Sequence[str], out: str, modules: bool = False) -> None:
    """Runs the Python file ``script`` with ``words`` as its arguments, and writes its trace to ``out``, .json or
    .json.gz: shapes and memory, with ``modules`` the stacks that tell modules (the host is slower with them).

    RequestError, one line, where the script is not there or raises, or ``out`` cannot be written.
    """
    path = Path(script)
    if path.suffix != ".py":
        raise RequestError(f"{script}: expected a Python script, FILE.py")
    check_plain(path, "a Python script")
    if not out.endswith((".json", ".json.gz")):
        raise RequestError(f"--out {out}: expected a file that ends in .json or .json.gz")
    torch: Any = require("torch")
    profiler: Any = require("torch.profiler")
    kinds = [profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(profiler.ProfilerActivity.CUDA)
    before = sys.argv, list(sys.path)
    sys.argv = [script, *words]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with profiler.profile(
            activities=kinds, record_shapes=True, profile_memory=True, with_stack=modules, with_modules=modules
        ) as recorded:
            try:
                runpy.run_path(script, run_name="__main__")
            except SystemExit as end:
                if end.code not in (None, 0):
                    raise RequestError(
                        f"{script}: left with status {end.code}; expected one that runs through"
                    ) from None
            except Exception as error:
                said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                raise RequestError(f"{script}: raised {said}; expected a script that runs through") from None
            if len(kinds) > 1:
                torch.cuda.synchronize()
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
    target = guarded("--out", Path(out))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / ("trace.json.gz" if out.endswith(".gz") else "trace.json")
            recorded.export_chrome_trace(str(made))
            made.replace(target)
    except OSError as error:
        raise unwritable("--out", out, error) from None
