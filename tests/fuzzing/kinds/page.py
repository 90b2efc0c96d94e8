"""Requests of the page (`tilecast ui`) by ASGI: states with odd words, boards and configs; odd bodies, headers, paths.

The page reads no file that a request names: the case's folder has files under the names that requests ask for, and
reading one is a failure.
"""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from tests.fuzzing.case import Case
from tests.fuzzing.changes import ODD
from tests.fuzzing.kinds import configs, gpus
from tests.fuzzing.oracle import Fault, not_a_line, read_answer

NEEDS = ("starlette",)
BLIND = True
PORT = 8765
#: Files that must not be read, whatever a request says.
PLANTED = {"secret.yaml": b"id: secret\n", "secret.json": b'{"model_type": "gpt2"}', "secret.csv": b"a,b\n1,2\n"}
_NAMES = (*PLANTED, "./secret.yaml", "../secret.yaml", "/etc/passwd", "file.py:build", "hf:.", "secret.pt2")
_NUMBER = st.sampled_from(("1", "2", "8", "0", "-1", "1e9", "999999999999", "x", "", " 4 ", "٣", "0.5", "nan"))


@cache
def served() -> Any:
    """The application, whose questions are answered in this process (its own processes are out of sight here), and
    without its searches (each is a process with a command line, fuzzed as `command_lines`); the names of its words."""
    from predictor.request.options import OPTIONS
    from predictor.ui import server
    from predictor.ui.desk import Desk, Reply
    from predictor.ui.fields import fields_of

    class Here(Desk):
        async def ask(self, name: str, body: bytes) -> Reply:
            return self.work((name, body))

    fields = fields_of(OPTIONS.values())
    with mock.patch.object(server, "Desk", Here):
        return server.application(PORT, fields, ()), [field.name for field in fields]


def _board(draw: st.DrawFn) -> Any:
    what = draw(st.integers(0, 9))
    if what < 4:
        return draw(st.sampled_from(("h100", "t4", "mi300x", "a100 memory_bandwidth=1.5", "h100 power_limit=500W")))
    if what < 6:
        return gpus.text_of(draw, gpus.boards()).decode("utf-8", "replace")
    if what < 8:
        name = draw(st.sampled_from(("h100", "v100", "nope", "")))
        values = draw(st.lists(st.sampled_from(("sm_count", "clock", "l2", "memory_bandwidth", "x", "")), max_size=3))
        return " ".join([name, *(f"{word}={draw(gpus.QUANTITY)}" for word in values)])
    return draw(st.sampled_from(_NAMES)) if what == 8 else draw(ODD)


@st.composite
def states(draw: st.DrawFn) -> Any:
    """What the page sends, or nearly so."""
    names = served()[1]
    state: dict[str, Any] = {"gpu": [_board(draw) for _ in range(draw(st.sampled_from((1, 1, 1, 1, 2, 2, 3, 6, 7))))]}
    if draw(st.integers(0, 3)):
        state["model"] = draw(
            st.sampled_from(("gpt2", "llama-3.2-1b", "t5-small", "bert-base") * 4 + ("nope", *_NAMES))
        )
    else:
        state["config"] = draw(configs.cases()).files["config.json"].decode("utf-8", "replace")
    state["mode"] = draw(st.sampled_from((*configs.MODES, "nope")))
    for name in draw(st.lists(st.sampled_from(names), max_size=draw(st.sampled_from((0, 1, 1, 2, 4))))):
        words = st.sampled_from(
            ("on", "off", "bf16", "fp8", "eager", "vllm", "sglang", "zero3", "full", "dgx-h100", *_NAMES)
        )
        state[name] = draw(_NUMBER | words | st.text(max_size=5))
    if not draw(st.integers(0, 5)):
        state[draw(st.sampled_from((*state, "nobody", "plan.num_gpus", "shown", "gpu")))] = draw(ODD)
    return state


@st.composite
def cases(draw: st.DrawFn) -> Case:
    path = draw(st.sampled_from(("/api/answer", "/api/json", "/api/details")))
    if draw(st.integers(0, 9)) == 7:
        path = draw(
            st.sampled_from(("/", "/ui.js", "/api/search/x", "/../../etc/passwd", "/api/plan", "//", "/api/answer/"))
        )
    body = json.dumps(draw(states()))
    what = draw(st.integers(0, 19))
    if what == 7:
        body = draw(
            st.sampled_from(("[" * 50_000, "{", "", "null", "[]", "1e999", '"\\ud800"', '{"gpu": ["\\ud800"]}'))
        )
    elif what == 8:
        body = "x" * 1_100_000
    method = "GET" if path in ("/", "/ui.js") else "POST"
    if draw(st.integers(0, 9)) == 7:
        method = draw(st.sampled_from(("GET", "PUT", "DELETE", "OPTIONS")))
    headers = {"host": f"127.0.0.1:{PORT}", "content-type": "application/json"}
    if draw(st.integers(0, 9)) == 7:
        name = draw(st.sampled_from(("host", "origin", "content-type", "content-length")))
        headers[name] = draw(
            st.sampled_from(("evil.example", "", "null", "text/plain", "é", "http://127.0.0.1:8765", "-1"))
        )
    return Case("page", PLANTED, {"path": path, "method": method, "headers": headers, "body": body})


async def _sent(asked: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    parts: list[dict[str, Any]] = []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": asked["method"], "scheme": "http",
        "path": asked["path"], "raw_path": asked["path"].encode(), "query_string": b"", "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in asked["headers"].items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", PORT),
    }  # fmt: skip
    told = False

    async def receive() -> dict[str, Any]:
        nonlocal told
        if told:
            return {"type": "http.disconnect"}
        told = True
        return {"type": "http.request", "body": asked["body"].encode("utf-8", "surrogatepass"), "more_body": False}

    async def send(message: Any) -> None:
        parts.append(dict(message))

    await served()[0](scope, receive, send)
    start = next(part for part in parts if part["type"] == "http.response.start")
    named = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], named, b"".join(part.get("body", b"") for part in parts)


def ask(case: Case) -> str | None:
    served()
    status, headers, body = asyncio.run(_sent(case.ask))
    if status >= 500:
        raise Fault(f"status {status}: {body[:300]!r}")
    if status != 200:
        if len(body) > 2000:
            raise Fault(f"status {status} with {len(body)} bytes")
        return body.decode("utf-8").strip() or f"status {status}"
    if headers.get("content-type") != "application/json":
        return None
    found = read_answer(body.decode("utf-8"))
    lines = [error["line"] for error in found.get("errors", [])] if isinstance(found, dict) else []
    for line in lines:
        if not_a_line(line) or not line.isprintable():
            raise Fault(f"not one line: {line!r}")
    return lines[0] if lines and not found.get("said") else None
