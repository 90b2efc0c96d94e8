"""Reports that are files: a page (`predictor.report.html`) and a trace (`predictor.report.trace`), written whole or not
at all."""

from __future__ import annotations

from pathlib import Path

from predictor.errors import RequestError
from predictor.files import atomic_write
from predictor.forecast import Forecast


def check_paths(html: str | None, trace: str | None) -> None:
    """RequestError, one line, for a path that no report can be written to; nothing is written."""
    for name, path in (("--html", html), ("--trace", trace)):
        if path is None:
            continue
        if not path or path.endswith(("/", "\\")) or "\0" in path:
            raise RequestError(f"{name} {path!r}: expected the name of a file")
        try:
            taken = Path(path).exists() and not (Path(path).is_file() and _replaceable(path))
        except OSError as error:
            raise _unwritable(name, path, error) from None
        if taken:  # a folder, or a device such as /dev/null, which must not be replaced by a file
            raise RequestError(f"{name} {path!r}: is there, and not a plain file; expected a file to write")
    if html is not None and trace is not None and Path(html).absolute() == Path(trace).absolute():
        raise RequestError(f"--trace {trace!r}: is the file of --html, too; expected another one")


def _replaceable(path: str) -> bool:
    """Whether a new file may stand in a path's place: /dev/stdout reads as a plain file where that is one."""
    place = Path(path).absolute()
    return place.parts[1:2] not in (("dev",), ("proc",)) or place.parts[2:3] == ("shm",)


def write_reports(
    forecast: Forecast, model: str | None = None, gpu: str | None = None, artifacts: str | None = None,
    system: str | None = None, *, html: str | None = None, trace: str | None = None,
) -> None:  # fmt: skip
    """Write the page and the trace of a forecast where they are asked for.

    ``model``, ``gpu``, ``artifacts``, ``system``: the words of the command line that makes it again, which the page
    shows (None: the catalogue's names). RequestError, one line, for a path that cannot be written.
    """
    check_paths(html, trace)
    if html is not None:
        from predictor.report.html import Asked, to_html

        asked = Asked(model or forecast.run.config.name, gpu or forecast.run.gpu.id, artifacts, system)
        _write("--html", html, to_html(forecast, asked))
    if trace is not None:
        from predictor.report.trace import to_trace

        _write("--trace", trace, to_trace(forecast))


def _write(name: str, path: str, content: str) -> None:
    try:
        atomic_write(Path(path), content.encode("utf-8", errors="replace"))
    except OSError as error:
        raise _unwritable(name, path, error) from None


def _unwritable(name: str, path: str, error: OSError) -> RequestError:
    reason = error.strerror or type(error).__name__
    return RequestError(f"{name} {path!r}: cannot be written ({reason}); expected a file in a folder that can be")
