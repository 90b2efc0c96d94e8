"""`tilecast ui` as a process that people try to break: many connections, slow ones, no texts, a killed page."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from predictor.models.built.load import CONFIGS

pytest.importorskip("starlette", reason="starlette is not installed (extra 'ui')")
pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra 'ui')")

ROOT = Path(__file__).resolve().parents[2]
STATE = {"model": "gpt2", "gpu": ["t4"]}
SERVE = {"serve.num_gpus": "1", "serve.isl": "64", "serve.osl": "8", "serve.ttft": "5s", "serve.tpot": "1s"}


def _children(process: int) -> set[int]:
    """The processes that a process started; none where the system has no /proc."""
    if not Path("/proc/self/stat").is_file():
        return set()
    found = {
        int(entry.name): int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and (entry / "stat").is_file()
    }
    return {child for child, parent in found.items() if parent == process}


def _lives(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextlib.contextmanager
def page(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A page of its own that works in ``folder``, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "predictor", "ui", "--port", "0", *words], stdout=subprocess.PIPE, text=True, cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline().split(":")[2].split("/")[0])
    finally:
        children = _children(process.pid)
        process.terminate()
        process.wait(30)
        until = time.monotonic() + 10
        while any(map(_lives, children)) and time.monotonic() < until:
            threading.Event().wait(0.05)
        assert not [child for child in children if _lives(child)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    with page(folder, "--artifacts", "roofline") as (_, found):
        assert send(found, "POST", "/api/answer", STATE)[0] == 200  # its processes are up
        yield found


def send(port: int, method: str, path: str, body: object = None, **headers: str) -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    try:
        link.request(method, path, data, {"Content-Type": "application/json", **headers})
        answer = link.getresponse()
        return answer.status, answer.read().decode()
    finally:
        link.close()


def errors(port: int, path: str = "/api/answer", **state: object) -> list[dict[str, str]]:
    status, text = send(port, "POST", path, STATE | state)
    assert status == 200, text
    found: list[dict[str, str]] = json.loads(text)["errors"]
    return found


def raw(port: int, sent: bytes) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", port), timeout=30)
    link.sendall(sent)
    return link


def all_of(link: socket.socket) -> bytes:
    """What comes until the other end closes."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while part := link.recv(65536):
            said += part
    link.close()
    return said


HEAD = b"POST /api/answer HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
SLOW: dict[str, Callable[[int], bytes]] = {
    "nothing": lambda _: b"",
    "half a head": lambda port: HEAD % port,
    "half a body": lambda port: HEAD % port + b"Content-Length: 100\r\n\r\n{",
    "no last chunk": lambda port: HEAD % port + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}   \r\n",
    "a second head": lambda port: b"GET /ui.css HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port + HEAD % port,
}


@pytest.fixture(scope="module")
def slow(port: int) -> dict[str, tuple[socket.socket, float]]:
    """Connections that stop half-way, since the first test began."""
    return {name: (raw(port, of(port)), time.monotonic()) for name, of in SLOW.items()}


# ---------------------------------------------------------------------------------------------------- words and texts


def test_no_word_is_an_option_or_a_file(port: int, slow: object, folder: Path) -> None:
    (folder / "there.yaml").write_text("h100: secret\n", encoding="utf-8")
    (folder / "llama-3.1-8b").mkdir()
    before = sorted(folder.iterdir())
    told = [
        errors(port, "/api/serve", **SERVE, **{f"serve.{word}": text})
        for word, text in (
            ("min_gpus", f"--out={folder}/new.csv"), ("min_gpus", "yes --out=new.csv"), ("routing", "/etc/shadow"),
            ("routing", "there.yaml"), ("system", str(folder / "there.yaml")), ("price", "there.yaml"),
            ("price", f"{folder}/there.yaml=3"), ("out", "new.csv"), ("artifacts", str(folder)), ("force", "yes"),
        )
    ]  # fmt: skip
    told += [errors(port, **{word: "there.yaml"}) for word in ("routing", "system", "gpu_set", "software")]
    told += [errors(port, gpu=[board]) for board in ("there.yaml", str(folder / "there.yaml"))]
    told += [errors(port, model=name) for name in ("there.yaml", str(folder), "evil.py:build", "traced:gpt2")]
    assert all(len(found) == 1 and found[0]["field"] for found in told), told
    assert not any("secret" in str(found) or "No such" in str(found) for found in told), told
    assert errors(port, model="llama-3.1-8b") == []  # the catalogue's, not the folder of that name
    assert sorted(folder.iterdir()) == before


BODIES: list[tuple[bytes, int]] = [
    (b'{"model": "\\ud800", "gpu": ["t4"]}', 400), (b'{"model": "gpt2", "gpu": ["\\udfff"]}', 400),
    (b'{"model": "gpt2", "gpu": ["t4"], "batch": "\\u0000"}', 400), (b'{"\\ud800": "1"}', 400),
    (b'{"model": "gpt2", "gpu": ["t4"], "config": "\\ud800"}', 400), (b'{"model": "\xff"}', 400),
    (b'{"model": "\xed\xa0\x80"}', 400), (b'{"model": "a", "model": "b"}', 400), (b"", 400), (b"{} {}", 400),
    (b'{"batch": 1' + b"0" * 9_000 + b"}", 400), (b"\xef\xbb\xbf{}", 200), (b'{"batch": ' + b"[" * 200_000, 400),
    *((json.dumps(STATE | {name: value}).encode(), 400) for name in ("model", "batch", "dtype", "config", "plan.only")
      for value in ("x" * 900_000,)),
    (json.dumps(STATE | {"gpu": ["x" * 900_000]}).encode(), 400), (json.dumps({"x" * 900_000: "1"}).encode(), 400),
    (json.dumps({f"{n}": "1" for n in range(40_000)}).encode(), 200), (b"[]", 200), (b"1e999", 200), (b"NaN", 200),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(BODIES)))
def test_what_is_no_text_is_one_line(place: int, port: int) -> None:
    body, expected = BODIES[place]
    status, text = send(port, "POST", "/api/answer", body)
    assert status == expected, text[:300]
    (error,) = json.loads(text)["errors"]
    assert "\n" not in error["line"] and len(error["line"]) < 2_000


def test_what_a_file_escapes_is_no_fault_of_the_server(port: int) -> None:
    """Half of a character that JSON or YAML writes as an escape within an upload."""
    config = json.loads((CONFIGS / "gpt2.json").read_text(encoding="utf-8"))
    for made in (config | {"model_type": "\ud800"}, config | {"\ud800": 1}, config | {"model_type": "\0"}):
        assert send(port, "POST", "/api/answer", {"config": json.dumps(made), "gpu": ["t4"]})[0] in (200, 400)
    board = 'id: "a\\uD800"\nname: "\\0"\nsm_count: 4\n'
    assert send(port, "POST", "/api/answer", STATE | {"gpu": [board]})[0] == 200
    nested = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    assert errors(port, gpu=[f"a: &a [x, x]\n{nested}"])[0]["field"] == "gpu.0"


def test_an_expression_that_takes_re_for_ever(port: int) -> None:
    """It killed the page for good; a link was enough."""
    config = json.loads((CONFIGS / "llama-3.1-8b.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "fp8", "ignore": ["re:(m|mo|o|d|e|l|.|[a-z])*#"]}
    assert errors(port, model="", config=json.dumps(config), gpu=["h100"]) == []  # or `send` gives up after a minute


@pytest.mark.parametrize("path", ["/%ED%A0%80", "/api/search/%00", "/api/search/%FF", "/" + "x" * 5_000])
def test_a_path_that_is_no_text(path: str, port: int) -> None:
    assert send(port, "GET", path)[0] == 400


ODD: list[tuple[bytes, bytes]] = [
    (b"GET / HTTP/1.0\r\n\r\n", b"421"), (b"GET / HTTP/1.1\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1:PORT\r\n\r\n", b"400"),
    (b"POST /api/answer HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}", b"400"),
    (b"POST /api/answer HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: -1\r\n\r\n{}", b"400"),
    (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nX: " + b"x" * 200_000, b"4"), (b"\x16\x03\x01\0\0", b"400"),
    (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n", b"200"),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(ODD)))
def test_requests_that_are_none(place: int, port: int) -> None:
    sent, expected = ODD[place]
    link = raw(port, sent.replace(b"PORT", b"%d" % port))
    status = link.recv(4096).split(b" ")[1]
    link.close()
    assert status.startswith(expected)


def test_requests_behind_each_other_are_answered_in_turn(port: int) -> None:
    one = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%s\r\n"
    link = raw(port, one % (b"/ui.css", port, b"") * 20 + one % (b"/nothing", port, b"Connection: close\r\n"))
    said = all_of(link)
    assert said.count(b"HTTP/1.1 200") == 20 and said.count(b"HTTP/1.1 404") == 1


# ------------------------------------------------------------------------------------------------------ many and slow


def _files(most: int) -> None:
    resource = pytest.importorskip("resource", reason="this system has no limit of open files to raise")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (-1, resource.RLIM_INFINITY) and hard < most:
        pytest.skip(f"this system lets a process open {hard} files; the test takes {most}")
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def test_many_requests_and_idle_connections_at_once(port: int) -> None:
    """1,000 connections that say nothing or stop half-way, and 500 requests at once: who asks is answered before most
    of these, by a picture of the page and by a forecast, and all 500 are answered."""
    _files(2_500)
    idle = [raw(port, b"" if n % 2 else HEAD % port) for n in range(1_000)]
    body = [json.dumps(STATE | {"batch": str(1 + n % 100)}).encode() for n in range(500)]
    head = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n%s"
    many = [raw(port, head % (port, len(one), one)) for one in body]
    asked, took = time.monotonic(), []
    for path, sent in (("/", None), ("/api/answer", STATE | {"batch": "777"}), ("/ui.js", None)):
        began = time.monotonic()
        assert send(port, "POST" if sent else "GET", path, sent)[0] == 200
        took.append(time.monotonic() - began)
    said = [all_of(link) for link in many]
    everyone = time.monotonic() - asked
    for link in idle:
        link.close()
    assert all(answer.startswith(b"HTTP/1.1 200") and b"gpt2" in answer for answer in said)
    assert max(took) < everyone * 2 / 3, (took, everyone)  # they did not wait in line, whatever else runs here


def test_a_connection_that_stops_half_way_is_closed(port: int, slow: dict[str, tuple[socket.socket, float]]) -> None:
    for name, (link, began) in slow.items():
        link.settimeout(60)
        said = all_of(link)
        assert time.monotonic() - began < 60.0, name
        assert b" 500 " not in said
    assert send(port, "GET", "/")[0] == 200


def test_nothing_outlives_a_killed_page(tmp_path: Path) -> None:
    """A search and the processes that answer end with it, and leave nothing behind."""
    if not Path("/proc/self/stat").is_file():
        pytest.skip("no /proc on this system")
    plan = {"model": "gpt3", "gpu": ["h100"], "plan.num_gpus": "1024", "plan.global_batch": "1024"}
    with page(tmp_path, "--artifacts", "roofline") as (process, port):
        assert send(port, "POST", "/api/answer", STATE)[0] == 200
        before = _children(process.pid)
        key = json.loads(send(port, "POST", "/api/plan", plan)[1])["key"]
        (searching,) = _children(process.pid) - before
        send(port, "DELETE", f"/api/search/{key}")
        while (state := json.loads(send(port, "GET", f"/api/search/{key}")[1])["state"]) == "running":
            threading.Event().wait(0.05)
        assert state == "cancelled" and not _lives(searching)
        found: dict[str, Any] = json.loads(send(port, "POST", "/api/plan", plan)[1])
        assert found["errors"] == []
        children = _children(process.pid)
        assert len(children) >= 3, "two that answer, or one on one core, the search, and their helper"
        process.kill()
        process.wait(20)
        until = time.monotonic() + 10
        while any(map(_lives, children)) and time.monotonic() < until:
            threading.Event().wait(0.05)
        assert not [child for child in children if _lives(child)]
    assert list(tmp_path.iterdir()) == []
