"""What the page is answered: boards side by side, one of them taken apart, and the files that give the same answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from predictor.errors import RequestError, TilecastError, one_line
from predictor.files.records import dataclass
from predictor.forecast.forecast import Forecast, forecast
from predictor.forecast.sensitivity import sensitivities
from predictor.report.detail import points
from predictor.report.html_roofline import roofline_section
from predictor.report.html_sections import bound_words, changes_section, classes_section, headline, memory_section
from predictor.report.html_waterfall import side_by_side, waterfall_section
from predictor.report.json_report import to_dict
from predictor.report.pages import render, table
from predictor.report.throughput import throughput
from predictor.report.wording import gib_of, seconds, span
from predictor.ui.boards import PASTED, Board
from predictor.ui.fields import Field
from predictor.ui.state import (
    CONFIG,
    FieldError,
    State,
    blamed,
    boards_of,
    command_of,
    python_of,
    request_of,
    shown_board,
    write_link,
)

#: Characters of a board that nobody knows which the table shows: chosen by hand, not from data.
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Answered:
    """One board: its forecast, or what is wrong; ``board`` None where ``asked`` names none."""

    asked: str
    board: Board | None
    forecast: Forecast | None
    error: FieldError | None = None

    @property
    def label(self) -> str:
        """What the page calls it."""
        return self.asked.partition("\n")[0][:_SHOWN] if self.board is None else self.board.label


def answered(state: State, fields: Sequence[Field], artifacts: str | None) -> list[Answered]:
    """The forecast of every board; one that is wrong has its line, and the others answer all the same.

    Raises FieldError for what is wrong whatever the board is.
    """
    every: list[Answered] = []
    for asked, board in zip(state.gpus, boards_of(state), strict=True):
        place = len(every)
        if isinstance(board, FieldError):
            every.append(Answered(asked, None, None, board))
            continue
        try:
            every.append(Answered(asked, board, forecast(request_of(state, board, fields, artifacts).run())))
        except RequestError as error:
            every.append(Answered(asked, board, None, blamed(error, fields, place)))
        except TilecastError as error:
            every.append(Answered(asked, board, None, FieldError("", str(error))))
    return every


def _errors(answers: Sequence[Answered]) -> list[dict[str, str]]:
    """Each line once, beside the field that it is about."""
    lines: dict[tuple[str, str], None] = {}
    for place, answer in enumerate(answers):
        if answer.error is not None:
            field = answer.error.field or (f"gpu.{place}" if len(answers) > 1 else "")
            lines[field, one_line(str(answer.error))] = None
    return [{"field": field, "line": line} for field, line in lines]


def quick(state: State, fields: Sequence[Field], artifacts: str | None) -> dict[str, Any]:
    """The boards side by side: markup, and the link, command and Python of the board that is shown."""
    try:
        answers = answered(state, fields, artifacts)
    except FieldError as error:
        return {"errors": [{"field": error.field, "line": one_line(str(error))}]}
    done = [(each.label, each.forecast.brief) for each in answers if each.forecast is not None]
    answer: dict[str, Any] = {"errors": _errors(answers), "link": write_link(state)}
    if not done:
        return answer
    shown = answers[state.shown].forecast
    place = state.shown if answers[state.shown].board else next(i for i, each in enumerate(answers) if each.forecast)
    answer |= {
        "command": command_of(state, place, artifacts),
        "python": python_of(state, fields, place, artifacts),
        "files": files(state, answers[place].board),
        "said": "; ".join(f"{label}: {seconds(prediction.latency_s)}" for label, prediction in done),
        "title": f"{done[0][1].model}: {', '.join(label for label, _ in done)}",
        "html": side_by_side(done) + _table(answers, state.shown),
        "shown": shown is not None,
    }
    return answer


def files(state: State, board: Board | None) -> dict[str, str]:
    """The files that the command line names: what was pasted, and boards that sliders made."""
    texts = {CONFIG: state.config} if state.config else {}
    return texts | ({PASTED: board.text} if board and board.text else {})


_HEADS = (
    ("board", False), ("below", False), ("time", True), ("80 % interval", True), ("throughput", True),
    ("memory", True), ("bound by", False),
)  # fmt: skip


def _table(answers: Sequence[Answered], shown: int) -> str:
    rows = []
    for place, each in enumerate(answers):
        if each.forecast is None:
            rows.append((each.label, "-", "-", "-", "-", "-", one_line(str(each.error))))
            continue
        answer = each.forecast.brief
        interval = "-" if answer.interval_s is None else span(*answer.interval_s)
        memory = gib_of(answer.memory.total, answer.memory.capacity)
        chosen = place == shown
        choose = render("choose.html", place=place, chosen=chosen, label=each.label)
        time, made = seconds(answer.latency_s), throughput(answer)
        rows.append((each.label, choose, time, interval, made, memory, bound_words(answer)))
    return table("Boards side by side", _HEADS, rows)


def detailed(state: State, fields: Sequence[Field], artifacts: str | None) -> dict[str, Any]:
    """The board that is shown, taken apart: the sections of the report."""
    try:
        shown = _shown(state, fields, artifacts)
    except RequestError as error:
        wrong = blamed(error, fields, state.shown)
        return {"errors": [{"field": wrong.field, "line": one_line(str(wrong))}]}
    answer, run = shown.prediction, shown.run
    totals: dict[str, float] = {}
    for row in answer.breakdown:
        totals[row.op] = totals.get(row.op, 0.0) + row.latency_s
    classes = sorted(totals, key=lambda name: -totals[name])
    notes = render("lines.html", lead="", lines=answer.notes) if answer.notes else Markup()
    sections = (
        headline(answer), notes, waterfall_section(answer), classes_section(answer, classes),
        roofline_section(points(shown), run.gpu), memory_section(answer), changes_section(sensitivities(shown)),
    )  # fmt: skip
    return {"errors": [], "html": Markup("").join(sections)}


def _shown(state: State, fields: Sequence[Field], artifacts: str | None) -> Forecast:
    board = shown_board(state)
    return forecast(request_of(state, board, fields, artifacts).run())


def as_json(state: State, fields: Sequence[Field], artifacts: str | None) -> str:
    """The answers as `predict --json` prints them: one object, or a list of one a board."""
    answers = answered(state, fields, artifacts)
    wrong = next((each.error for each in answers if each.error is not None), None)
    if wrong is not None:
        raise wrong
    objects = [to_dict(each.forecast.prediction) for each in answers if each.forecast is not None]
    return json.dumps(objects[0] if len(objects) == 1 else objects, indent=2, allow_nan=False) + "\n"
