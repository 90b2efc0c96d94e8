"""A run of one command: opened before the work, filled and closed after it, kept where its store does not take it."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from predictor.errors import RequestError, TilecastError
from predictor.tracking.kept import keep
from predictor.tracking.record import Record, TrackedRun, git_commit, versions
from predictor.tracking.store import (
    address,
    client_of,
    create,
    first_line,
    installed,
    is_off,
    now,
    push,
    resolve_uri,
    state_folder,
)  # fmt: skip


@contextmanager
def run(
    kind: str, uri: str | None, say: Callable[[str], None], insist: bool = False, of: str = ""
) -> Iterator[TrackedRun]:
    """A run of one command, named "``kind`` ``of``". ``say`` takes the lines that a person should read.

    Where the user named a ``uri`` (or with ``insist``), raises before the work starts: TilecastError if MLflow is
    missing or the store does not answer, RequestError for what is no address. By default a store that cannot be opened
    costs a line and no more.
    """
    record = Record(kind, "", " ".join(filter(None, (kind, of))), started_ms=now())
    insist = insist or uri is not None
    if is_off(uri) or not (insist or installed()):
        yield TrackedRun(record)
        return
    if not installed():
        raise TilecastError("--tracking-uri needs mlflow, which is not installed: pip install 'tilecast[train]'")
    try:
        record.uri = resolve_uri(uri)
    except RequestError as error:  # no home, and nobody named a store
        if insist:
            raise
        say(f"this run is not tracked: {error}")
        yield TrackedRun(record)
        return
    record.tags |= _tags(kind)
    filled = TrackedRun(record)
    open_run(record, insist, say)
    try:
        yield filled
    except BaseException as error:
        record.status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        record.tags["error"] = " ".join(str(error).split())[:500] or type(error).__name__
        close_run(record, say)
        raise
    record.status = "FINISHED"
    close_run(record, say)


def _tags(kind: str) -> dict[str, str]:
    """What MLflow's page shows of a run's origin."""
    tags = {"tilecast.kind": kind, "mlflow.source.type": "LOCAL", "mlflow.source.git.commit": git_commit()}
    tags["mlflow.source.name"] = f"microbench {kind}" if kind == "collect" else f"tilecast {kind}"
    with suppress(KeyError, OSError, ImportError):  # a user without a name
        tags["mlflow.user"] = getpass.getuser()
    return {name: value for name, value in tags.items() if value}


def open_run(record: Record, insist: bool, say: Callable[[str], None]) -> None:
    """Create the run on its store; an error where that fails and ``insist``, else a line."""
    try:
        record.run_id = create(client_of(record.uri), record)
    except TilecastError:
        raise
    except Exception as error:  # MLflow raises many kinds, requests and SQLAlchemy more
        first = first_line(error)
        if insist and ("URI" in type(error).__name__ or "scheme" in first.lower()):
            raise RequestError(f"--tracking-uri {record.uri}: MLflow knows no such address: {first}") from None
        reason = f"MLflow at {record.uri} cannot be reached: {first}"
        if insist:
            raise TilecastError(f"--tracking-uri: {reason}") from None
        with suppress(RequestError):  # `close_run` says that it cannot be kept
            reason += f"; the run will be kept in {state_folder()}"
        say(reason)


def close_run(record: Record, say: Callable[[str], None]) -> None:
    """Send the whole run; keep it on this machine where the store does not take it."""
    record.ended_ms = now()
    TrackedRun(record).parameters({"version": versions()})  # the last ones: a reader looks for settings first
    try:
        push(record)
        say(f"run {record.run_id} in MLflow: {address(record)}")
    except Exception as error:
        failed = f"MLflow at {record.uri} failed ({first_line(error)})"
        try:
            kept = keep(record)
        except (OSError, RequestError) as full:
            say(f"{failed}, and the run cannot be kept: {getattr(full, 'strerror', None) or full}")
            return
        say(f"{failed}; the run is kept in {kept}: send it, `tilecast runs push`")
