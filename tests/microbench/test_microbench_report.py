"""The page of a collection says what is in it, for rows of a GPU, and is whole HTML."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from microbench_cases import CASE, row_of, softmax

from microbench import cli
from microbench.dataset import read
from microbench.report import page
from microbench.store import Store


class Whole(HTMLParser):
    """Every tag that is opened is closed, but for those that cannot be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.circles = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.circles += tag == "circle"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def out(tmp_path: Path) -> Path:
    store = Store(tmp_path, "h100-sxm", "torch", {"run": "one"})
    store.open(0.0)
    store.add_row(CASE, row_of(CASE, 0.01, sm_clock_hz=1.9e9, power_w=400.0, temperature_c=50.0,
                               throttle_reasons="power_cap", throttled_samples=3))  # fmt: skip
    long = replace(CASE, protocol="cuda_graph_sustained")
    later = "2026-01-01T00:10:00+00:00"
    store.add_row(long, row_of(long, 0.012, measured_at=later, sm_clock_hz=1.5e9, power_w=700.0))
    store.add_failure(softmax(4), {"kind": "illegal", "reason": "<b>no</b> kernel"}, "2026-01-01T00:00:00+00:00")
    store.finish({})
    store.close()
    return tmp_path


def test_the_page_says_what_was_measured(out: Path) -> None:
    text = page(read(out), "of a test")
    whole = Whole()
    whole.feed(text)
    assert whole.open == []
    assert whole.circles >= 2 * 2 + 1 + 2  # clock and power of two rows, temperature of one, the roofline
    for said in ("2 rows, 1 cases failed", "power_cap", "3 samples were thrown away", "illegal", "Roofline", "gemm"):
        assert said in text
    assert "&lt;b&gt;no&lt;/b&gt; kernel" in text and "<b>no" not in text  # what a library said is no markup
    assert "stroke-dasharray" in text  # the data sheet's lines


def test_the_command_writes_the_page(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(out), "--out", str(out / "sub" / "page.html")]) == 0
    assert capsys.readouterr().out.strip() == str(out / "sub" / "page.html")
    assert (out / "sub" / "page.html").read_text().startswith("<!doctype html>")
    assert cli.main(["report", str(out / "nosuch")]) == 2
