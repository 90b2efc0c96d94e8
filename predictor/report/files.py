"""Reports that are files: a page (`predictor.report.html`) and a trace (`predictor.report.trace`), written whole or not
at all."""

from __future__ import annotations

from predictor.files import outputs
from predictor.forecast.forecast import Forecast


def check_paths(html: str | None, trace: str | None) -> None:
    """RequestError, one line, for a path that no report can be written to; nothing is written."""
    taken: dict[str, str] = {}
    for flag, path in (("--html", html), ("--trace", trace)):
        if path is not None:
            outputs.place(flag, path, None, taken)


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
        outputs.write("--html", html, to_html(forecast, asked).encode("utf-8", errors="replace"))
    if trace is not None:
        from predictor.report.trace import to_trace

        outputs.write("--trace", trace, to_trace(forecast).encode("utf-8", errors="replace"))
