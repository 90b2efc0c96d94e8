"""The page's markup: a form with a field a word, and room for the answer."""

from __future__ import annotations

from collections.abc import Sequence

from predictor import __version__
from predictor.hardware.gpu import all_names
from predictor.hardware.what_if import PARAMETERS
from predictor.models.built.load import aliases, catalogue
from predictor.report.html_elements import Html, join, tag
from predictor.ui.fields import Field
from predictor.ui.searches import Kind

#: What the page opens with, where the link says nothing.
MODEL, BOARDS = "llama-3.1-8b", ("h100", "a100")


def document(fields: Sequence[Field], kinds: Sequence[Kind]) -> Html:
    """The whole page."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", "Tilecast: how long will it take?"),
        tag("link", rel="stylesheet", href="/ui.css"),
        tag("link", rel="icon", href="data:,"),
    )
    main = tag(
        "main",
        tag("div", _form(fields), class_="ask"),
        tag(
            "div",
            tag("p", "", id="error-", class_="error", role="alert"),
            tag("p", "", id="said", class_="unseen", role="status"),
            tag("section", tag("h2", "Side by side", id="side"), tag("div", id="quick"), aria_labelledby="side"),
            tag("div", id="details"),
            *(_search(kind) for kind in kinds),
            _same(),
            class_="told",
        ),
        id="main",
    )
    body = tag(
        "body",
        tag("a", "Skip to the answer", href="#side", class_="skip"),
        tag(
            "header",
            tag("h1", "How long will it take?"),
            tag("p", f"Tilecast {__version__}: forecasts as you type. Nobody runs anything.", class_="quiet"),
        ),
        main,
        _lists(),
        tag("template", _board(), id="board"),
        tag("script", src="/ui.js"),
    )
    return Html(f"<!doctype html>\n{tag('html', head, body, lang='en')}\n")


def _form(fields: Sequence[Field]) -> Html:
    first = [field for field in fields if field.common]
    rest = [field for field in fields if not field.common]
    return tag(
        "form",
        tag(
            "fieldset", tag("legend", "Model"),
            _text("model", "model", "a name of the catalogue", value=MODEL, list="models"),
            tag("details", tag("summary", "or paste its config.json"), _area("config", "config.json", "")),
        ),
        tag(
            "fieldset", tag("legend", "GPUs"), tag("div", id="boards", data_boards=" ".join(BOARDS)),
            tag("button", "Add a board", type="button", id="add"),
            tag("p", "", id="error-gpu", class_="error", role="alert"),
        ),
        tag("fieldset", tag("legend", "The run"), *(_field(field) for field in first)),
        tag(
            "details", tag("summary", "Every other word"),
            tag("fieldset", tag("legend", "Words"), *(_field(field) for field in rest)), id="rest",
        ),
        id="form", autocomplete="off", novalidate="",
    )  # fmt: skip


def _field(field: Field) -> Html:
    modes = " ".join(field.modes) or None
    if field.choices:
        options = [
            tag("option", choice or "default", value=choice, selected="" if choice == field.default else None)
            for choice in field.choices
        ]
        control = tag("select", *options, **_control(field.name, field.default))
    else:
        number = field.whole or field.real
        words = _control(field.name, field.default)
        control = tag(
            "input", type="text", value=field.default, placeholder="default", inputmode="decimal" if number else None,
            spellcheck="false", **words,
        )  # fmt: skip
    return _row(field.name, field.label, field.help, control, modes)


def _control(name: str, default: str = "") -> dict[str, str]:
    return {
        "id": f"w-{name}", "name": name, "data_default": default,
        "aria_describedby": f"help-{name} error-{name}",
    }  # fmt: skip


def _row(name: str, label: str, words: str, control: Html, modes: str | None = None) -> Html:
    return tag(
        "div", tag("label", label, for_=f"w-{name}"), control, tag("p", words, id=f"help-{name}", class_="help"),
        tag("p", "", id=f"error-{name}", class_="error", role="alert"), class_="row", data_modes=modes,
    )  # fmt: skip


def _text(name: str, label: str, words: str, **more: str) -> Html:
    control = tag("input", type="text", spellcheck="false", **_control(name), **more)
    return _row(name, label, words, control)


def _area(name: str, label: str, words: str) -> Html:
    return _row(name, label, words, tag("textarea", rows="6", spellcheck="false", **_control(name)))


def _search(kind: Kind) -> Html:
    """One search: its words, a button, and room for what it found. Model and board are those of the form."""
    rows = []
    for field in kind.fields:
        words = _control(field.name, field.default) | {"data_search": field.name}
        del words["name"]  # it is no word of the run
        if field.choices:
            options = [tag("option", choice, value=choice) for choice in field.choices]
            control = tag("select", *options, **words)
        else:
            control = tag("input", type="text", value=field.default, placeholder="default", spellcheck="false", **words)
        rows.append(_row(field.name, field.label, field.help, control))
    key = kind.name
    return tag(
        "section",
        tag("h2", kind.title, id=f"search-{key}"),
        tag(
            "details", tag("summary", f"tilecast {' '.join(kind.verb)}: search"),
            tag("div", *rows, class_="words"),
            tag(
                "p", tag("button", "Search", type="button", class_="start"),
                tag("button", "Cancel", type="button", class_="cancel", disabled=""), class_="buttons",
            ),
            tag("p", "", id=f"error-{key}.", class_="error", role="alert"),
            tag("progress", hidden="", aria_label=f"{kind.title}: searching"),
            tag("p", "", class_="state", role="status"),
            tag("div", class_="found"),
        ),
        class_="search", data_kind=key, aria_labelledby=f"search-{key}",
    )  # fmt: skip


def _board() -> Html:
    """One board of the form; the script numbers what it copies."""
    sliders = [
        tag(
            "div", tag("label", name.replace("_", " ")),
            tag("input", type="range", min="-2", max="2", step="0.05", value="0", data_parameter=name),
            tag("output", "x 1"), class_="slider",
        )
        for name in PARAMETERS
    ]  # fmt: skip
    return tag(
        "div",
        tag(
            "div", tag("label", "GPU"), tag("input", type="text", class_="gpu", list="gpus", spellcheck="false"),
            tag("button", "Remove", type="button", class_="remove"), class_="line",
        ),
        tag("p", "", class_="error", role="alert"),
        tag("details", tag("summary", "a board that does not exist"), *sliders, class_="what-if"),
        tag(
            "details", tag("summary", "paste a YAML file"),
            tag("label", "YAML of one GPU"), tag("textarea", rows="6", spellcheck="false", class_="yaml"),
            class_="paste",
        ),
        class_="board",
    )  # fmt: skip


def _same() -> Html:
    """What gives the same answer elsewhere."""
    kinds = (("link", "Copy the link"), ("json", "JSON"), ("png", "PNG"), ("files", "Pasted files"))
    buttons = [tag("button", name, type="button", id=f"get-{key}", disabled="") for key, name in kinds]
    return tag(
        "section",
        tag("h2", "The same answer elsewhere", id="same"),
        tag("p", *buttons, class_="buttons"),
        tag("h3", "Command line"),
        tag("pre", tag("code", "", id="command"), tabindex="0", aria_label="Command that gives this answer"),
        tag("h3", "Python"),
        tag("pre", tag("code", "", id="python"), tabindex="0", aria_label="Python that gives this answer"),
        aria_labelledby="same",
    )


def _lists() -> Html:
    """Names that fields complete."""
    models = sorted({*catalogue(), *aliases()})
    listed = (("models", models), ("gpus", all_names()))
    return join(tag("datalist", *(tag("option", value=name) for name in names), id=key) for key, names in listed)
