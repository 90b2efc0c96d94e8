"""`tilecast ui` as a process, over HTTP and in a real browser."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from chromium import PHONE, WIDE, Opened

from predictor.cli.main import main
from predictor.hardware.gpu import load_gpu
from predictor.models.built.load import CONFIGS
from predictor.ui.boards import as_yaml

pytest.importorskip("starlette", reason="starlette is not installed (extra 'ui')")
pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra 'ui')")

ROOT = Path(__file__).resolve().parents[2]
GPT2 = (CONFIGS / "gpt2.json").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "predictor", "ui", "--port", "0"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().split(":")[2].split("/")[0])
    finally:
        process.terminate()
        assert process.wait(30) is not None


@pytest.fixture(scope="module")
def address(port: int) -> str:
    return f"http://127.0.0.1:{port}/"


def send(port: int, method: str, path: str, body: object = None, **headers: str) -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    named = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    try:
        link.request(method, path, data, named)
        answer = link.getresponse()
        return answer.status, answer.read().decode()
    finally:
        link.close()


def quick(port: int, **state: object) -> dict[str, Any]:
    status, text = send(port, "POST", "/api/answer", {"model": "gpt2", "gpu": ["t4"], **state})
    assert status == 200
    found: dict[str, Any] = json.loads(text)
    return found


# ----------------------------------------------------------------------------------------------------------- over HTTP


def test_answers_nobody_but_its_own_page(port: int) -> None:
    state = {"model": "gpt2", "gpu": ["t4"]}
    assert send(port, "POST", "/api/answer", state)[0] == 200
    assert send(port, "POST", "/api/answer", state, Origin=f"http://localhost:{port}")[0] == 200
    assert send(port, "POST", "/api/answer", state, Origin="http://evil.example")[0] == 403
    assert send(port, "POST", "/api/answer", state, Origin="null")[0] == 403
    assert send(port, "GET", "/", Host="evil.example")[0] == 421
    assert send(port, "GET", "/", Host=f"evil.example:{port}")[0] == 421
    assert send(port, "GET", "/", Host=f"localhost:{port}")[0] == 200
    assert send(port, "POST", "/api/answer", b"model=gpt2", Content_Type="text/plain")[0] == 415
    assert send(port, "POST", "/api/answer", b"{")[0] == 400
    assert send(port, "POST", "/api/answer", b"[" * 100_000)[0] == 400
    assert send(port, "POST", "/api/answer", b'"' + b"x" * 1_100_000 + b'"')[0] == 413
    assert send(port, "GET", "/api/answer")[0] == 405
    assert send(port, "GET", "/../../etc/passwd")[0] == 404


def test_listens_on_loopback_alone(port: int) -> None:
    listening = Path("/proc/net/tcp")
    if not listening.is_file():
        pytest.skip("no /proc/net/tcp on this system")
    of = [line.split() for line in listening.read_text().splitlines()[1:]]
    found = [local for _, local, _, state, *_ in of if local.endswith(f":{port:04X}") and state == "0A"]
    assert found == [f"0100007F:{port:04X}"]


def test_a_taken_port_is_one_line(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--port", str(port)]) == 2
    said = capfd.readouterr().err
    assert said.startswith(f"error: --port {port}:")
    assert said.count("\n") == 1


def test_a_wrong_set_is_one_line_before_anything_is_served(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--port", str(port), "--artifacts", "nope"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: ") and "nope" in said and "--port" not in said
    assert said.count("\n") == 1


def test_one_wrong_board_leaves_the_others(port: int) -> None:
    found = quick(port, gpu=["h100", "t4"], dtype="bf16", model="gpt2")
    assert [error["field"] for error in found["errors"]] == ["dtype"]
    assert "t4 has no bf16" in found["errors"][0]["line"]
    assert "h100-sxm" in found["said"]
    assert "t4" not in found["said"]


SAME = {
    "plain": {"model": "llama-3.1-8b", "gpu": ["h100"], "mode": "decode", "batch": "16", "execution": "vllm"},
    "pasted": {"config": GPT2, "gpu": ["l4"], "mode": "prefill", "dtype": "fp16", "prompt_lens": "3,40,100"},
    "sliders": {"model": "gpt2", "gpu": ["h100", "a100 memory_bandwidth=1.5 sm_count=1.1"], "shown": "1"},
    "yaml": {"model": "gpt2", "gpu": [as_yaml(load_gpu("v100-sxm-16gb"))], "mode": "train", "batch": "8"},
}


@pytest.mark.parametrize("name", SAME)
def test_what_the_page_gives_away_gives_the_same_answer(port: int, name: str, tmp_path: Path) -> None:
    """The command line and the Python, run beside the files of the page, say the page's JSON to the bit."""
    state: dict[str, Any] = SAME[name]
    found = quick(port, **{"model": "", **state})
    status, text = send(port, "POST", "/api/json", state)
    assert status == 200
    given = json.loads(text)
    given = given[int(state["shown"])] if isinstance(given, list) else given
    for file, content in found["files"].items():
        (tmp_path / file).write_text(content, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def ran(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    typed = shlex.split(found["command"])
    printed = json.loads(ran(sys.executable, "-m", "predictor", *typed, "--json"))
    unlike = {key for key in printed if printed[key] != given[key]}
    assert unlike <= {"model"}, "a config.json takes its folder's name"
    assert float(ran(sys.executable, "-c", found["python"])) == given["latency_ms"]


def test_ten_users_at_once(port: int) -> None:
    """Each gets the answer to its own question."""
    wrong: list[str] = []

    def user(number: int) -> None:
        for step in range(4):
            found = quick(port, batch=str(1 + number), seq_len=str(16 * (1 + step)), gpu=["t4", "l4"])
            if f"--batch {1 + number} " not in found["command"] + " " and number:
                wrong.append(found["command"])

    users = [threading.Thread(target=user, args=(number,)) for number in range(10)]
    for one in users:
        one.start()
    for one in users:
        one.join(120)
    assert not wrong
    assert not any(one.is_alive() for one in users)


# -------------------------------------------------------------------------------------------------------- in a browser


def settled(page: Any, count: int) -> None:
    """Waits until the page has drawn ``count`` answers in all."""
    page.wait_for_function("count => Number(document.documentElement.dataset.settled || 0) >= count", arg=count)


def drawn(page: Any) -> int:
    return int(page.evaluate("() => Number(document.documentElement.dataset.settled || 0)"))


class Page(Opened):
    """The page once its first answer is drawn. Its policy forbids eval, which waiting needs."""

    def __init__(self, browser: Any, address: str, **words: Any) -> None:
        super().__init__(browser, address, **({"viewport": WIDE, "bypass_csp": True} | words))
        settled(self.page, 1)


def test_a_newcomer_types_and_shares(browser: Any, address: str) -> None:
    opened = Page(browser, address)
    with opened as page:
        first = page.locator("#details .answer strong").inner_text()
        before = drawn(page)
        page.select_option("#w-mode", "decode")
        page.fill("#w-batch", "64")
        page.wait_for_function("() => document.getElementById('command').textContent.includes('--batch 64')")
        settled(page, before + 1)
        page.wait_for_function(
            "old => document.querySelector('#details .answer strong').textContent !== old", arg=first
        )
        assert "--mode decode" in page.locator("#command").inner_text()
        assert not page.locator("#w-output_len").is_visible(), "decode makes one token"
        assert page.locator("#w-context_len").is_visible()
        told = page.locator("#quick").inner_text()
        link = page.url
        assert "batch=64" in link
        assert opened.errors == []
        assert all(asked.startswith(address) or asked.startswith("data:") for asked in opened.asked)
    with Page(browser, link) as page:
        assert page.locator("#quick").inner_text() == told
        assert page.input_value("#w-batch") == "64"


def test_policy_is_kept(browser: Any, address: str) -> None:
    """Without leave to pass it by: the page breaks none of its own rules, and a foreign picture is not loaded."""
    opened = Opened(browser, address, viewport=WIDE)
    with opened as page:
        page.wait_for_selector("html[data-settled]")
        assert opened.errors == []
        outcome = page.evaluate(
            "() => new Promise(done => { const i = new Image(); i.onerror = () => done('refused');"
            " i.onload = () => done('loaded'); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i); })"
        )
        assert outcome == "refused"


def test_boards_are_added_slid_pasted_and_removed(browser: Any, address: str) -> None:
    with Page(browser, f"{address}#model=gpt2&gpu=h100") as page:
        page.click("#add")
        page.locator(".board .gpu").nth(1).fill("a100")
        page.wait_for_function("() => document.querySelectorAll('#quick tbody tr').length === 2")
        page.locator(".what-if summary").nth(1).click()
        slider = page.locator(".board").nth(1).locator("input[data-parameter=memory_bandwidth]")
        slider.focus()
        for _ in range(20):
            page.keyboard.press("ArrowRight")
        assert page.locator(".board .gpu").nth(1).input_value() == "a100 memory_bandwidth=2"
        page.wait_for_function("() => document.getElementById('quick').textContent.includes('memory_bandwidth=2')")
        page.locator("button.show").nth(1).click()
        page.wait_for_function("() => document.getElementById('command').textContent.includes('board.yaml')")
        assert "shown=1" in page.url
        page.locator(".paste summary").nth(0).click()
        page.locator("textarea.yaml").nth(0).fill(as_yaml(load_gpu("l4")))
        page.wait_for_function("() => document.getElementById('quick').textContent.includes('l4')")
        page.locator("button.remove").nth(0).click()
        page.wait_for_function("() => document.querySelectorAll('#quick tbody tr').length === 1")
        assert "gpu=a100" in page.url


def test_every_text_field_says_what_is_wrong_beside_it(browser: Any, address: str) -> None:
    """Nonsense in each field in turn: one line beside it and the field marked; right again, the line is gone."""
    with Page(browser, f"{address}#model=gpt2&gpu=h100&execution=vllm&mode=generate&output_len=4") as page:
        page.locator("#rest summary").click()
        names = page.eval_on_selector_all(
            "#form [name]", "all => all.filter(e => e.offsetParent && e.tagName !== 'SELECT').map(e => e.name)"
        )
        assert {"model", "batch", "prompt_lens", "memory_fraction"} <= set(names)
        page.locator("summary:has-text('or paste its config.json')").click()
        for name in [*names, "config"]:
            control = page.locator(f"#w-{name}")
            was = control.input_value()
            before = drawn(page)
            control.fill("%nonsense%")
            settled(page, before + 1)
            page.wait_for_function("() => document.querySelector('.error:not(:empty)')")
            beside = page.locator(f"#error-{name}").inner_text()
            assert beside, f"{name}: {page.locator('#error-').inner_text()}"
            assert control.get_attribute("aria-invalid") == "true"
            assert "\n" not in beside.strip()
            before = drawn(page)
            control.fill(was)
            page.wait_for_function("() => !document.querySelector('.error:not(:empty)')")
        gpu = page.locator(".board .gpu")
        gpu.fill("hopper9")
        page.wait_for_function("() => document.querySelector('.board .error').textContent.includes('unknown GPU')")


def test_a_link_that_says_a_word_twice_or_none_is_said(browser: Any, address: str) -> None:
    with Page(browser, f"{address}#model=gpt2&gpu=h100&batch=2&batch=3&bacth=4") as page:
        assert "the link says bacth, which is no word" in page.locator("#error-").inner_text()
        assert "the link says batch twice; the first is taken" in page.locator("#error-batch").inner_text()
        assert page.input_value("#w-batch") == "2"
        page.fill("#w-batch", "5")
        page.wait_for_function("() => !document.querySelector('.error:not(:empty)')")


def test_a_search_runs_and_another_is_cancelled(browser: Any, address: str) -> None:
    """Wrong words stand beside their fields; a plan is drawn; a cancelled search ends."""
    plan = "plan.num_gpus=2&plan.global_batch=4&plan.only=tp%3D1&plan.seq_len=256&plan.top=50"
    opened = Page(browser, f"{address}#model=gpt2&gpu=a100&{plan}")
    with opened as page:
        search = page.locator(".search[data-kind=plan]")
        count = page.locator("[id='w-plan.num_gpus']")
        count.fill("two")
        search.locator(".start").click()
        page.wait_for_function("() => document.getElementById('error-plan.num_gpus').textContent")
        count.fill("2")
        search.locator(".start").click()
        page.wait_for_function(
            "() => document.querySelector('.search[data-kind=plan] .state').textContent.startsWith('Done')"
        )
        assert search.locator("tbody tr").count() >= 1
        assert search.locator("svg.chart:visible .mark").count() >= 1
        assert "plan.num_gpus=2" in page.url
        count.fill("1024")
        page.locator("[id='w-plan.global_batch']").fill("1024")
        page.locator("[id='w-plan.only']").fill("")
        page.fill("#w-model", "gpt3")
        search.locator(".start").click()
        page.wait_for_function("() => !document.querySelector('.search[data-kind=plan] .cancel').disabled")
        search.locator(".cancel").click()
        page.wait_for_function(
            "() => document.querySelector('.search[data-kind=plan] .state').textContent.startsWith('Cancelled')"
        )
        assert opened.errors == []


def test_a_serving_search_is_drawn(port: int) -> None:
    state = {
        "model": "qwen3-0.6b", "gpu": ["l4"], "serve.num_gpus": "1", "serve.isl": "64", "serve.osl": "8",
        "serve.ttft": "5s", "serve.tpot": "1s", "serve.simulate": "0", "serve.execution": "vllm",
        "serve.max_batch": "8",
    }  # fmt: skip
    status, text = send(port, "POST", "/api/serve", state)
    assert status == 200
    key = json.loads(text)["key"]
    found: dict[str, Any] = {"state": "running"}
    while found["state"] == "running":
        threading.Event().wait(0.2)
        found = json.loads(send(port, "GET", f"/api/search/{key}")[1])
    assert found["state"] == "done", found
    assert "tokens/s a GPU" in found["html"]
    assert found["command"].startswith("tilecast serve plan --model qwen3-0.6b")
    assert send(port, "GET", "/api/search/nonesuch")[0] == 404


def png_size(data: bytes) -> tuple[int, int, int]:
    """Width, height and how many bytes of the picture differ from its first."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    at, parts = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        parts += data[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    pixels = zlib.decompress(parts)
    return width, height, sum(1 for byte in pixels[::97] if byte not in (0, 255))


def test_downloads(browser: Any, address: str, tmp_path: Path) -> None:
    state = f"config={quote(GPT2)}&gpu=h100+clock%3D0.5&mode=prefill"
    with Page(browser, f"{address}#{state}", accept_downloads=True) as page:
        page.wait_for_selector("#details .answer")
        with page.expect_download() as waiting:
            page.click("#get-json")
        waiting.value.save_as(tmp_path / "answer.json")
        answer = json.loads((tmp_path / "answer.json").read_text())
        assert answer["mode"] == "prefill"
        with page.expect_download() as waiting:
            page.click("#get-png")
        waiting.value.save_as(tmp_path / "answer.png")
        width, height, painted = png_size((tmp_path / "answer.png").read_bytes())
        assert width == 1920
        assert height > 800
        assert painted > 1000, "the charts are on it"
        names = []
        page.on("download", lambda download: names.append(download.suggested_filename))
        page.click("#get-files")
        page.wait_for_timeout(1000)
        assert sorted(names) == ["board.yaml", "config.json"]


@pytest.mark.parametrize("width", [360, 800, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_that_axe_finds_and_nothing_sticks_out(
    browser: Any,
    address: str,
    width: int,
    scheme: str,
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    size = {"width": width, "height": 900}
    with Page(browser, f"{address}#model=gpt2&gpu=h100&gpu=t4", viewport=size, color_scheme=scheme) as page:
        page.wait_for_selector("#details .answer")
        page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        found = axe.Axe().run(page).response
        assert [(v["id"], v["nodes"][0]["html"]) for v in found["violations"]] == []


def test_by_keyboard_alone(browser: Any, address: str) -> None:
    """Tab reaches every control of the form in order; a mode is chosen, a board added and shown without a mouse."""
    with Page(browser, f"{address}#model=gpt2&gpu=h100&gpu=t4", viewport=PHONE) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.textContent") == "Skip to the answer"
        wanted = page.eval_on_selector_all(
            "#form input, #form select, #form button, #form textarea, #form summary",
            "all => all.filter(e => e.checkVisibility() && !e.closest('details:not([open]) > :not(summary)')).length",
        )
        seen = 0
        for _ in range(wanted):
            page.keyboard.press("Tab")
            seen += page.evaluate("() => !!document.activeElement.closest('#form')")
        assert seen == wanted
        page.locator("#w-mode").focus()
        page.keyboard.type("prefill")
        page.wait_for_function("() => document.getElementById('command').textContent.includes('--mode prefill')")
        page.locator("button.show").nth(1).focus()
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.getElementById('command').textContent.includes('--gpu t4')")
        assert page.evaluate("() => document.activeElement.className") == "show", "focus stays where it was"
