"""org/name fetched from a hub: a server on loopback speaks the hub's protocol, and everything that can go wrong is one
line."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from predictor import predict
from predictor.errors import RequestError, SpecError
from predictor.models.built import hub, load_config
from predictor.models.built.load import CONFIGS
from predictor.models.forms import model_of

pytest.importorskip("huggingface_hub", reason="the hub extra is not installed")
constants = importlib.import_module("huggingface_hub.constants")

COMMIT = "a" * 40
SMALL = json.loads((CONFIGS / "qwen3-0.6b.json").read_text(encoding="utf-8"))


class Hub(ThreadingHTTPServer):
    """``files``: path below a repository -> what it answers: a body, or (status, error code of the hub)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes | tuple[int, str]] = {}
        self.asked: list[str] = []
        self.released = threading.Event()
        self.sizes: dict[str, int] = {}


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, body: bool) -> None:
        name = self.path.lstrip("/").replace("/resolve/main", "").replace(f"/resolve/{COMMIT}", "")
        self.server.asked.append(f"{self.command} {name}")
        said = self.server.files.get(name, (404, "EntryNotFound"))
        if said == (200, "slow"):
            self.server.released.wait(20)
            return
        if isinstance(said, tuple):
            self.send_response(said[0])
            self.send_header("X-Error-Code", said[1])
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", f'"{hash(said)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(self.server.sizes.get(name, len(said))))
        self.end_headers()
        if body:
            self.wfile.write(said)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, which huggingface_hub of this process asks, with a cache of its own."""
    running = Hub()
    threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://127.0.0.1:{running.server_address[1]}"
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield running
    running.released.set()
    running.shutdown()
    running.server_close()


def refused(name: str) -> str:
    with pytest.raises(RequestError) as caught:
        load_config(name)
    assert "\n" not in str(caught.value) and repr(name) in str(caught.value)
    return str(caught.value)


def test_a_config_is_fetched_once_and_forecast_as_a_file_is(server: Hub, tmp_path: Path) -> None:
    server.files["some-org/Model-1B/config.json"] = json.dumps(SMALL).encode()
    config = load_config("some-org/Model-1B")
    assert config.name == "Model-1B" and config.layers == 28 and config.checkpoint is None
    asked = list(server.asked)
    assert {line.split("/")[-1] for line in asked} == {"config.json", "hf_quant_config.json"}  # no weight, no code
    load_config("some-org/Model-1B")
    assert server.asked == asked  # the cache answers, of what is not there, too
    words: dict[str, Any] = {"mode": "decode", "batch": 4, "context_len": 512}
    path = tmp_path / "Model-1B.json"
    path.write_text(json.dumps(SMALL), encoding="utf-8")
    answer = predict("some-org/Model-1B", "h100", **words)
    assert answer.latency_s == predict(path, "h100", **words).latency_s and answer.model == "Model-1B"
    server.shutdown()
    assert model_of("some-org/Model-1B").name == "Model-1B"  # the hub is gone


def test_the_formats_of_a_checkpoint_come_along(server: Hub) -> None:
    server.files["org/m-FP8/config.json"] = json.dumps(SMALL).encode()
    said = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    server.files["org/m-FP8/hf_quant_config.json"] = json.dumps(said).encode()
    checkpoint = load_config("org/m-FP8").checkpoint
    assert checkpoint is not None and (checkpoint.scheme, checkpoint.kv) == ("fp8_static", "fp8")


def test_what_a_hub_refuses_is_a_line_that_says_what_to_do(server: Hub) -> None:
    server.files["meta-llama/Secret/config.json"] = (403, "GatedRepo")
    line = refused("meta-llama/Secret")
    assert "is gated: accept its terms at http://127.0.0.1" in line and "hf auth login" in line and "HF_TOKEN" in line
    server.files["org/nothing/config.json"] = (404, "RepoNotFound")
    assert "no such repository at http://127.0.0.1" in refused("org/nothing")
    assert "/org/weights has no config.json" in refused("org/weights")
    server.files["org/broken/config.json"] = (500, "")
    assert "cannot be fetched from http://127.0.0.1" in refused("org/broken")
    server.files["meta-llama/Llama-3.1-9B/config.json"] = (404, "RepoNotFound")
    assert "nearest of the catalogue: meta-llama/Llama-3.1-8B" in refused("meta-llama/Llama-3.1-9B")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>sign in</html>", "not valid JSON"), (b"\xff\xfe\x00", "UTF-16"), (b"[1]", "expected a JSON object"),
        (b'{"model_type": "llama", "hidden_size": -4}', "expected an integer of at least 1"),
        (b'{"hidden_size": 64}', "missing 'model_type'"), (b"", "not valid JSON"),
    ],
)  # fmt: skip
def test_garbage_goes_through_the_checks_of_files(server: Hub, body: bytes, said: str) -> None:
    server.files["org/garbage/config.json"] = body
    with pytest.raises(SpecError, match=said) as caught:
        load_config("org/garbage")
    assert "\n" not in str(caught.value)


def test_code_of_a_repository_is_never_asked_for(server: Hub) -> None:
    mapped = {**SMALL, "auto_map": {"AutoConfig": "configuration_evil.Evil", "AutoModelForCausalLM": "modeling_evil.E"}}
    server.files["org/evil/config.json"] = json.dumps(mapped).encode()
    server.files["org/evil/configuration_evil.py"] = b"raise SystemExit('ran')"
    assert load_config("org/evil").layers == 28
    assert not [line for line in server.asked if line.endswith(".py")]


def test_a_file_that_is_too_large_is_not_fetched(server: Hub) -> None:
    server.files["org/huge/config.json"], server.sizes["org/huge/config.json"] = b"{}", 10**12
    assert "1,000,000,000,000 bytes, at most" in refused("org/huge")
    assert [line.split()[0] for line in server.asked] == ["HEAD"]


def test_a_slow_hub_and_one_that_is_gone_are_one_line(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["org/slow/config.json"] = (200, "slow")
    monkeypatch.setattr(hub, "MOST_SECONDS", 0.3)
    assert "did not send its config.json within 0.3 seconds" in refused("org/slow")
    monkeypatch.setattr(hub, "MOST_SECONDS", 5.0)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert "cannot be fetched from http://127.0.0.1:1" in refused("org/gone")


def test_offline_reads_the_cache_and_asks_nobody(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["org/kept/config.json"] = json.dumps(SMALL).encode()
    load_config("org/kept")
    asked = list(server.asked)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load_config("org/kept").layers == 28
    assert "HF_HUB_OFFLINE forbids to fetch it" in refused("org/other")
    assert server.asked == asked


def test_without_the_extra_the_line_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'tilecast[hub]'" in refused("org/name")


def test_paths_and_odd_names_are_not_asked_for(server: Hub) -> None:
    for text in ("folder/config.json", "a/b/c", "../x/y", "org/na me", "org/name.yaml", "-o/x", "org/..", "http://x/y"):
        with pytest.raises(RequestError):
            load_config(text)
    assert server.asked == []


def test_a_command_fetches_by_the_environment_alone(server: Hub, tmp_path: Path) -> None:
    server.files["org/m/config.json"] = json.dumps(SMALL).encode()
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", "import sys; from predictor.cli.main import main; sys.exit(main())"]
    done = subprocess.run([*command, "models", "org/m"], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and done.stderr == "" and "28" in done.stdout
    offline = {**environment, "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:1"}
    done = subprocess.run([*command, "models", "org/m"], capture_output=True, text=True, env=offline, check=False)
    assert done.returncode == 0 and done.stderr == ""
