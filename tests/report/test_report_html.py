"""The page of a forecast: what it says, what it escapes, what it asks for; and the files of page and trace."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup
from report_runs import RUNS, Words, forecast, of, slices

from predictor.cli.main import main
from predictor.forecast.forecast import Forecast
from predictor.forecast.sensitivity import sensitivities
from predictor.hardware.what_if import vary
from predictor.report.detail import layers, points
from predictor.report.drawing import legend_of, tag, text, ticks
from predictor.report.html import Asked, command, to_html
from predictor.report.html_sections import faster
from predictor.report.pages import POLICY, TEMPLATES, table
from predictor.report.wording import given, seconds, share


@pytest.fixture(params=RUNS)
def found(request: pytest.FixtureRequest) -> Forecast:
    return forecast(request.param)


# ---------------------------------------------------------------------------------------- what would change the answer


def test_bandwidth_alone_makes_a_roofline_of_memory_faster() -> None:
    """Decode of one sequence without estimators is memory alone: a tenth more bandwidth, a tenth faster."""
    words: Words = {"mode": "decode", "execution": "cuda_graph", "artifacts": "roofline", "kernel_gap": 0}
    changes = sensitivities(of("llama-3.1-8b", "h100", **words))
    said = [f"{change.what}: {faster(change)}" for change in changes]
    assert said[0] == "10 % more memory bandwidth: 10.0 % faster"
    assert said[1] == "10 % more FLOP/s: no change"
    assert len(said) == 3, "a captured graph has no launches to make cheaper"
    assert changes[2].speed is not None
    assert 1.8 < changes[2].speed < 2.0, "weights are read once for two sequences"


def test_launches_count_where_the_cpu_is_slower() -> None:
    found = of("gpt2", "h100", seq_len=16)
    assert found.prediction.launch_bound
    by_name = {c.what: c.speed for c in sensitivities(found)}
    assert by_name["half the launch overhead"] == pytest.approx(2.0, rel=0.05)
    assert by_name["10 % more FLOP/s"] == pytest.approx(1.0, abs=0.01)


def test_a_change_without_a_forecast_says_why() -> None:
    change = sensitivities(of("gpt2", "h100", seq_len=1, batch=10**7))[-1]
    assert change.speed is None
    assert "--batch 20000000" in faster(change)


def test_more_peak_changes_peaks_alone() -> None:
    gpu = forecast("forward").run.gpu
    more = vary(gpu, "peak_flops", 1.1)
    assert more.peak_flops("fp16") == pytest.approx(1.1 * gpu.peak_flops("fp16"))
    assert (more.sm_count, more.boost_clock_hz) == (gpu.sm_count, gpu.boost_clock_hz)


# --------------------------------------------------------------------------------------------------------- the page


class Page(HTMLParser):
    """Reads a page, and fails where an element is not closed or closed twice."""

    VOID = frozenset(("meta", "br", "circle", "rect", "line", "path", "polygon"))

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.data: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.data.append(data)

    def having(self, word: str) -> list[dict[str, str | None]]:
        """Elements of a class."""
        return [attrs for _, attrs in self.elements if word in (attrs.get("class") or "").split()]


def test_page_is_sound(found: Forecast) -> None:
    page = Page(to_html(found))
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for _, attrs in page.elements:
        if (attrs.get("href") or "").startswith("#"):
            assert (attrs["href"] or "")[1:] in ids
        if "aria-labelledby" in attrs:
            assert attrs["aria-labelledby"] in ids
    headings = [int(name[1]) for name, _ in page.elements if re.fullmatch("h[1-6]", name)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(headings)), headings
    assert {"html", "head", "title", "main", "nav", "table"} <= {name for name, _ in page.elements}
    assert page.elements[0][1]["lang"] == "en"


def test_page_asks_for_nothing(found: Forecast) -> None:
    """No address in it but those of namespaces, nothing that loads; the policy forbids what a mistake would bring."""
    page = to_html(found)
    assert POLICY.startswith("default-src 'none'")
    for name, attrs in Page(page).elements:
        assert "src" not in attrs
        assert name not in ("link", "img", "iframe", "object", "base", "form")
        assert not (attrs.get("href") or "#").strip("#").count(":"), attrs
        assert not [key for key in attrs if key.startswith("on")]
    assert "url(" not in page
    assert "@import" not in page


def test_page_holds_the_figures(found: Forecast) -> None:
    answer, page = found.prediction, Page(to_html(found))
    drawn = [p for p in points(found) if p.flops > 0]
    labels = [attrs["aria-label"] or "" for attrs in page.having("mark")]
    assert sum("FLOP a byte" in label for label in labels) == 2 * len(drawn), "on wide and on narrow screens"
    for kind in ("CPU, ", "GPU, "):
        if kind == "GPU, " or answer.cpu_busy_s:
            assert any(label.startswith(kind) for label in labels)
    assert len(page.having("stack")) == len(page.having("capacity")) == 1
    said = "".join(page.data)
    for row in answer.breakdown:
        assert row.op in said
    for note in answer.notes:
        assert note in said


def test_interval_is_drawn_where_there_is_one() -> None:
    from copy import copy
    from dataclasses import replace

    found = copy(forecast("decode"))
    answer = found.prediction
    found.prediction = replace(answer, interval_s=None)
    without = Page(to_html(found))
    assert not without.having("range")
    found.prediction = replace(answer, interval_s=(answer.latency_s * 0.9, answer.latency_s * 1.2))
    known = Page(to_html(found))
    low, width = re.findall(r"([\d.]+)%", known.having("range")[0]["style"] or "")[:2]
    point = re.findall(r"left:([\d.]+)%", known.having("point")[0]["style"] or "")[0]
    assert 0 < float(low) < float(point) < float(width) < 100


def test_head_says_what_was_asked(found: Forecast) -> None:
    """Dtype, execution and the number of GPUs stand at the top, not in the provenance alone."""
    page, answer = to_html(found), found.prediction
    (line,) = re.findall(r'<p class="run">(.*?)</p>', page)
    work = answer.workload
    assert line.startswith("1 GPU," if work.parallelism.tp == 1 else f"{work.parallelism.tp} GPUs of ")
    for word in (f"mode {work.mode}", f"dtype {work.dtype}", f"execution {work.execution}"):
        assert word in line


def test_no_bar_and_no_share_is_a_naked_zero(found: Forecast) -> None:
    """What is small is said to be small, and every block has a bar."""
    page = Page(to_html(found))
    assert not [text for text in page.data if text == "0.0%" or text.endswith(", 0.0%")]
    blocks = sum(layer.total_s > 0 for layer in layers(found))
    assert len(page.having("piece")) >= min(blocks, 24) + len(found.prediction.breakdown)


def test_numbers_read_well() -> None:
    assert (seconds(0.0129), seconds(0.013), seconds(0.00099999)) == ("12.9 ms", "13.0 ms", "1.00 ms")
    assert (share(0.5), share(1e-5), share(0.0)) == ("50.0%", "<0.1%", "0.0%")
    assert given(6e-6) == "6 us"


def test_page_is_the_same_twice() -> None:
    model, gpu, words = RUNS["train"]
    assert to_html(forecast("train")) == to_html(of(model, gpu, **words))


HOSTILE = "</title><script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;\x07"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Names come from files: a model's folder, a GPU's YAML with its sources."""
    folder = tmp_path / "<b onclick='x'>"
    folder.mkdir()
    config = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 100, "n_positions": 64}
    (folder / "config.json").write_text(json.dumps(config | {"_name_or_path": HOSTILE}), encoding="utf-8")
    source = Path(__file__).parents[2] / "examples" / "hypothetical-gpu.yaml"
    board = tmp_path / "gpu.yaml"
    text_of = source.read_text(encoding="utf-8")
    shown = "".join(c for c in HOSTILE if c.isprintable())  # control characters are refused in a GPU's file
    board.write_text(re.sub(r"(?m)^name:.*$", lambda _: f"name: {json.dumps(shown)}", text_of), encoding="utf-8")
    model = str(folder / "config.json")
    page = to_html(of(model, str(board), seq_len=32), Asked(model, str(board), HOSTILE, HOSTILE))
    clean = Page(to_html(of("gpt2", "h100", seq_len=32)))
    read = Page(page)
    assert {name for name, _ in read.elements} == {name for name, _ in clean.elements}
    assert [name for name, _ in read.elements].count("script") == 1
    assert not [attrs for _, attrs in read.elements if any(key.startswith("on") for key in attrs)]
    assert "\x07" not in page


def test_text_is_escaped_once() -> None:
    assert text("<a & b>") == "&lt;a &amp; b&gt;"
    assert text(Markup("<a>")) == "<a>"
    assert tag("p", "<", title='"', class_="x") == '<p title="&#34;" class="x">&lt;</p>'
    assert tag("p", tag("b", "1 < 2")) == "<p><b>1 &lt; 2</b></p>"
    assert "<td>&lt;i&gt;�</td>" in table("t", (("a", False), ("b", False)), [("x", "<i>\x07")])
    assert "<td><i>y</i></td>" in table("t", (("a", False), ("b", False)), [("x", Markup("<i>y</i>"))])


def test_command_of_the_page_makes_the_forecast_again(
    found: Forecast, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    answer = found.prediction
    model, gpu, words = RUNS[request.node.callspec.params["found"]]
    typed = shlex.split(command(answer, Asked(model, gpu, words.get("artifacts"))))  # type: ignore[arg-type]
    assert main([*typed, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["latency_ms"] == pytest.approx(answer.latency_ms, rel=1e-12)


@pytest.mark.parametrize("words", [
    {"pp": 2, "tp": 2, "sp": True, "recompute": "full"}, {"pp": 2, "vpp": 2, "recompute": "full:2-of-12"},
    {"dp": 4, "shard": "zero3", "micro_batch": 1}, {"tp": 2, "sp": True, "tp_overlap": True, "micro_batch": 2},
    {"cp": 2, "cp_comm": "all_to_all", "lora": 8}, {"pp": 4, "stage_layers": "2,4,4,2"}, {"mean_len": 100},
    {"dp": 2, "dp_overlap": "off", "schedule": "", "offload_layers": 2},
])  # fmt: skip
def test_command_of_a_step_makes_it_again(words: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    given = {"mode": "train", "batch": 8, "seq_len": 256, "execution": "megatron", "artifacts": "roofline"} | words
    answer = of("gpt2", "h100", **given).prediction
    typed = shlex.split(command(answer, Asked("gpt2", "h100", "roofline")))
    assert main([*typed, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["latency_ms"] == pytest.approx(answer.latency_ms, rel=1e-12)


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    bright, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_colours_have_contrast() -> None:
    """WCAG 2.2 AA: 4.5 for text, 3 for marks, in light, in dark, on paper."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    schemes = [dict(re.findall(r"--(\w+): (#\w{6})", body)) for body in re.findall(r":root \{(.*?)\}", style, re.S)]
    assert len(schemes) == 3
    assert schemes[0] == schemes[2], "paper has the light colours"
    for colours in schemes:
        for ink in ("text", "quiet", "accent"):
            assert contrast(colours[ink], colours["page"]) >= 4.5, ink
            assert contrast(colours[ink], colours["soft"]) >= 4.5, ink
        assert contrast(colours["warn"], colours["warnsoft"]) >= 4.5
        for i in range(8):
            assert contrast(colours[f"c{i}"], colours["page"]) >= 3.0, i


def test_small_pieces() -> None:
    assert ticks(0.0, 1.0) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0.0, 26.4) == pytest.approx([0, 10, 20]) or len(ticks(0.0, 26.4)) in range(4, 9)
    assert legend_of(["a", "b"]) == [(0, "a"), (1, "b")]
    assert legend_of(list("abcdefghij"))[-1] == (7, "other: h, i, j")


# --------------------------------------------------------------------------------------------------------- the files


def test_both_files_beside_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, trace = tmp_path / "new" / "a page.html", tmp_path / "trace.json"
    words = ["predict", "--model", "gpt2", "--gpu", "h100", "--json", "--html", str(page), "--trace", str(trace)]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "gpt2"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert slices(trace.read_text(encoding="utf-8"))
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["a page.html", "trace.json"]


@pytest.mark.parametrize("flag", ["--html", "--trace"])
def test_a_path_that_cannot_be_written(flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("kept", encoding="utf-8")
    pipe = "/dev/null"
    for path in (str(tmp_path), str(file / "below"), pipe, "", f"{tmp_path}/new/", str(tmp_path / ("x" * 300))):
        assert main(["predict", "--model", "gpt2", "--gpu", "h100", flag, path]) == 2, path
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"error: {flag} ")
        assert captured.err.count("\n") == 1
    assert file.read_text(encoding="utf-8") == "kept"
    assert not Path(pipe).is_file()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_one_file_for_two_reports_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "x")
    assert main(["predict", "--model", "gpt2", "--gpu", "h100", "--html", path, "--trace", path]) == 2
    assert "--trace" in capsys.readouterr().err
    assert not Path(path).exists()


def test_a_plain_forecast_does_none_of_this() -> None:
    code = (
        "import sys; from predictor.cli.main import main;"
        " main(['predict', '--model', 'gpt2', '--gpu', 'h100', '--json']);"
        "late = ('predictor.report.detail', 'predictor.simulate.kernel_times', 'predictor.report.html', 'jinja2');"
        "print([m for m in late if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
