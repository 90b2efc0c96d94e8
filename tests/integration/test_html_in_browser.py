"""The page in headless Chromium: it opens, it is drawn, it can be used by hand, by keyboard and on a phone, it prints.

Needs playwright and axe-playwright-python (extra `test`), and a Chromium: $TILECAST_CHROMIUM, one on the path, or the
one that `playwright install chromium` brings.
"""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest
from chromium import PHONE, WIDE, Opened

from predictor.cli.main import main

RUNS = {
    "forward": ["--model", "gpt3", "--gpu", "h100"],
    "train": ["--model", "gpt2", "--gpu", "v100", "--mode", "train", "--batch", "4", "--micro-batch", "2"],
    "generate": [
        "--model", "llama-3.1-70b", "--gpu", "h100", "--tp", "4", "--mode", "generate", "--execution", "vllm",
        "--prompt-lens", "12,400,3000", "--output-len", "99",
    ],
    "experts": ["--model", "switch-base-16", "--gpu", "a100", "--seq-len", "128"],
}  # fmt: skip


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages, as addresses of files."""
    folder = tmp_path_factory.mktemp("pages")
    for name, words in RUNS.items():
        assert main(["predict", *words, "--html", str(folder / f"{name}.html")]) == 0
    return {name: (folder / f"{name}.html").as_uri() for name in RUNS}


@pytest.mark.parametrize("name", RUNS)
def test_opens_without_an_error_or_a_request(browser: Any, pages: dict[str, str], name: str) -> None:
    opened = Opened(browser, pages[name], viewport=WIDE)
    with opened as page:
        page.wait_for_load_state("networkidle")
        assert opened.errors == []
        assert opened.asked == [pages[name]]
        assert page.locator("h1").inner_text().count(" on ") == 1


def test_policy_stops_what_a_page_should_not_load(browser: Any, pages: dict[str, str]) -> None:
    """Had a mistake put a picture of another machine in, nobody would be asked for it."""
    with socket.create_server(("127.0.0.1", 0)) as server, Opened(browser, pages["forward"], viewport=WIDE) as page:
        server.settimeout(0.5)
        outcome = page.evaluate(
            "port => new Promise(done => { const i = new Image(); i.onerror = () => done('refused');"
            " i.onload = () => done('loaded'); i.src = `http://127.0.0.1:${port}/x.png`; document.body.append(i); })",
            server.getsockname()[1],
        )
        assert outcome == "refused"
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_charts_have_their_marks(browser: Any, pages: dict[str, str], name: str, size: dict[str, int]) -> None:
    with Opened(browser, pages[name], viewport=size) as page:
        charts = page.locator("svg.chart:visible")
        assert charts.count() == 3, "roofline, the run, one layer: each for this width alone"
        for i in range(charts.count()):
            boxes = charts.nth(i).locator(".mark").evaluate_all(
                "marks => marks.map(m => { const b = m.getBBox(); return [b.x, b.y, b.width, b.height]; })"
            )  # fmt: skip
            assert boxes
            view = [float(v) for v in charts.nth(i).get_attribute("viewBox").split()]
            for x, y, width, height in boxes:
                assert width > 0
                assert height > 0
                assert x >= -1
                assert y >= -1
                assert x + width <= view[2] + 1
                assert y + height <= view[3] + 1
            assert page.evaluate("() => document.querySelectorAll('svg text').length") > 10
        rows = int(re.findall(r"\d+", page.locator("section:has(#provenance) li").first.inner_text())[0])
        drawn = charts.first.locator(".mark").count()
        assert rows / 2 < drawn <= rows
        pieces = page.locator(".bars .piece")
        assert pieces.count() > 5
        widths = pieces.evaluate_all("pieces => pieces.map(p => p.getBoundingClientRect().width)")
        assert all(width > 0 for width in widths)
        assert page.locator(".stack .piece").count() >= 2


@pytest.mark.parametrize("name", RUNS)
def test_reads_on_a_phone(browser: Any, pages: dict[str, str], name: str) -> None:
    """Nothing sticks out of 360 px but inside what scrolls; letters of charts are 11 px or more."""
    with Opened(browser, pages[name], viewport=PHONE) as page:
        for details in page.locator("details").all():
            details.locator("summary").click()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
        wide = page.evaluate(
            "() => [...document.querySelectorAll('body *')]"
            ".filter(e => !e.closest('.scroll table, .skip, svg')"
            " && e.getBoundingClientRect().right > 361).map(e => e.outerHTML.slice(0, 80))"
        )
        assert wide == []
        heights = page.evaluate(
            "() => [...document.querySelectorAll('svg.chart')].filter(s => s.getBoundingClientRect().width)"
            ".map(s => 12 * s.getBoundingClientRect().width / s.viewBox.baseVal.width)"
        )
        assert min(heights) >= 11.0


@pytest.mark.parametrize(
    ("name", "scheme", "size"),
    [*((name, "light", WIDE) for name in RUNS), ("train", "dark", WIDE), ("generate", "dark", PHONE)],
)
def test_nothing_that_axe_finds(
    browser: Any, pages: dict[str, str], name: str, scheme: str, size: dict[str, int]
) -> None:
    """axe-core's rules: contrast, names, headings, tables, landmarks, the keyboard's reach of what scrolls."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    with Opened(browser, pages[name], viewport=size, color_scheme=scheme) as page:
        page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
        found = axe.Axe().run(page).response
        assert [(v["id"], v["nodes"][0]["html"]) for v in found["violations"]] == []
        passed = {rule["id"] for rule in found["passes"]}
        assert {"color-contrast", "document-title", "html-has-lang", "svg-img-alt", "heading-order"} <= passed


def focused(page: Any) -> str:
    return str(page.evaluate("() => document.activeElement.getAttribute('aria-label') || ''"))


def test_keyboard_reaches_every_mark(browser: Any, pages: dict[str, str]) -> None:
    with Opened(browser, pages["train"], viewport=WIDE) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.textContent") == "Skip to the answer"
        marks = page.locator("svg.chart:visible").first.locator(".mark")
        labels = [marks.nth(i).get_attribute("aria-label") for i in range(marks.count())]
        assert [marks.nth(i).get_attribute("tabindex") for i in range(marks.count())] == [
            "0",
            *["-1"] * (len(labels) - 1),
        ]
        stops = 0
        while focused(page) != labels[0]:
            page.keyboard.press("Tab")
            stops += 1
            assert stops < 40, "a chart is one stop, not one a mark"
        readout = page.locator("section:has(#roofline) .readout")
        for label in labels[1:]:
            assert readout.inner_text()
            page.keyboard.press("ArrowRight")
            assert focused(page) == label
            assert readout.inner_text() == label
        page.keyboard.press("ArrowRight")
        assert focused(page) == labels[-1], "the last one stays"
        page.keyboard.press("Home")
        assert focused(page) == labels[0]
        page.keyboard.press("Tab")
        assert focused(page) not in labels
        page.locator("summary").first.focus()
        page.keyboard.press("Enter")
        assert page.locator("details").first.get_attribute("open") is not None


def test_focus_is_seen(browser: Any, pages: dict[str, str]) -> None:
    with Opened(browser, pages["train"], viewport=WIDE) as page:
        mark = page.locator("svg.chart:visible .mark").first
        before = mark.locator(":not(title)").evaluate("e => getComputedStyle(e).strokeWidth")
        mark.focus()
        assert mark.locator(":not(title)").evaluate("e => getComputedStyle(e).strokeWidth") != before
        link = page.locator("nav a").first
        page.keyboard.press("Tab")
        link.focus()
        assert link.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"


def test_works_without_script(browser: Any, pages: dict[str, str]) -> None:
    with Opened(browser, pages["train"], viewport=WIDE, java_script_enabled=False) as page:
        marks = page.locator("svg.chart:visible .mark")
        assert marks.count() > 20
        assert marks.last.get_attribute("tabindex") == "0"
        assert page.locator("table:visible").count() >= 6


@pytest.mark.parametrize("name", RUNS)
def test_prints(browser: Any, pages: dict[str, str], name: str) -> None:
    """On paper: dark letters on white whatever the screen has, no links to click, charts and tables whole."""
    with Opened(browser, pages[name], viewport=WIDE, color_scheme="dark") as page:
        page.emulate_media(media="print")
        assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.locator("nav").is_visible()
        assert not page.locator("summary").first.is_visible()
        assert page.locator("svg.chart:visible").count() == 3
        page.set_viewport_size({"width": 700, "height": 1000})  # A4 less its margins
        inner = page.locator(".scroll:visible").evaluate_all("all => all.map(e => e.scrollWidth - e.clientWidth)")
        assert max(inner) <= 1, "no column is cut off"
        printed = page.pdf(format="A4")
        assert printed.startswith(b"%PDF")
        assert 4 <= len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) <= 16
