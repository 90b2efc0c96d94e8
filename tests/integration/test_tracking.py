"""Runs in MLflow: a real server on loopback, the local store without one, a server that dies, the registry."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from predictor.errors import RequestError, TilecastError

mlflow = pytest.importorskip("mlflow", reason="tracking needs mlflow")

from test_train import made_up  # noqa: E402

from predictor.cli import main  # noqa: E402
from predictor.training import dataset, tracking  # noqa: E402

# MLflow's own use of SQLAlchemy warns; our warnings stay errors.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:sqlalchemy", "ignore::DeprecationWarning:mlflow")


class Server:
    """`mlflow server` on a free port of loopback, with a SQLite backend and a local artifact root."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        words = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self.folder / 'server.db'}",
            "--artifacts-destination", str(self.folder / "artifacts"),
        ]  # fmt: skip
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        for _ in range(300):
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError((self.folder / "server.log").read_text(encoding="utf-8"))

    def kill(self) -> None:
        """SIGKILL to it and its workers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def client(self) -> Any:
        """A client of its own, to read back with."""
        return mlflow.MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    def runs(self) -> list[Any]:
        """Every run of the experiment."""
        experiment = self.client().get_experiment_by_name(tracking.EXPERIMENT)
        return [] if experiment is None else list(self.client().search_runs([experiment.experiment_id]))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("mlflow"))
    yield made
    made.kill()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILECAST_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("TILECAST_TRACKING_URI", raising=False)
    return tmp_path / "state"


@pytest.fixture
def estimators(tmp_path: Path) -> Path:
    folder = tmp_path / "my-set"
    folder.mkdir()
    (folder / "manifest.json").write_text(
        '{"schema_version": 1, "name": "my-set", "estimators": [], "gpus": ["p4"], "data": []}\n'
    )
    (folder / "README.md").write_text("# A card\n")
    return folder


def fill(run: tracking.Run, folder: Path) -> None:
    run.parameters({"seed": 0, "data": {"sha256": "abc", "file": "x.parquet"}})
    run.metrics({"rows": 210, "error": float("nan")})
    row = {"gpu": "p4", "operator": "linear", "n": 3, "mean_ape_pct": 4.5, "median_ape_pct": None}
    run.errors("heldout_gpus", [row])
    run.estimators(folder)


def check(found: Any, uri: str) -> None:
    assert found.info.status == "FINISHED"
    assert found.data.params["data.sha256"] == "abc"
    assert found.data.metrics["rows"] == 210
    assert found.data.metrics["heldout_gpus/p4/linear/mean_ape_pct"] == 4.5
    assert "error" not in found.data.metrics
    assert found.data.tags["tilecast.kind"] == "train"
    names = {f.path for f in mlflow.MlflowClient(tracking_uri=uri).list_artifacts(found.info.run_id, "set")}
    assert names == {"set/README.md", "set/manifest.json"}


def test_a_run_on_a_server_reads_back(server: Server, estimators: Path) -> None:
    said: list[str] = []
    before = {r.info.run_id for r in server.runs()}
    with tracking.run("train", server.uri, said.append) as run:
        (live,) = [r for r in server.runs() if r.info.run_id not in before]
        assert live.info.status == "RUNNING"
        fill(run, estimators)
    check(server.client().get_run(live.info.run_id), server.uri)
    assert any(live.info.run_id in line for line in said)
    assert tracking.pending() == []


def test_the_default_is_a_sqlite_file_of_the_user(state: Path, estimators: Path) -> None:
    with tracking.run("train", None, lambda text: None) as run:
        fill(run, estimators)
    uri = f"sqlite:///{state / 'mlflow.db'}"
    assert tracking.resolve_uri(None) == uri
    check(mlflow.MlflowClient(tracking_uri=uri).get_run(run.record.run_id), uri)


def test_a_failed_command_is_a_failed_run(state: Path) -> None:
    with pytest.raises(ValueError, match="no rows"), tracking.run("train", None, lambda text: None) as run:
        raise ValueError("no rows are left")
    found = mlflow.MlflowClient(tracking_uri=tracking.resolve_uri(None)).get_run(run.record.run_id)
    assert found.info.status == "FAILED"
    assert found.data.tags["error"] == "no rows are left"


def test_a_server_that_dies_in_mid_run_costs_nothing(tmp_path: Path, estimators: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    dying = Server(folder)
    try:
        said: list[str] = []
        with tracking.run("train", dying.uri, said.append) as run:
            run_id = run.record.run_id
            dying.kill()
            fill(run, estimators)
        assert any("kept" in line and "runs push" in line for line in said)
        ((_, kept),) = tracking.pending()
        assert kept.run_id == run_id
        assert tracking.push_pending(None, said.append) == 1  # still dead: still kept
        dying.start()
        assert tracking.push_pending(None, said.append) == 0
        check(dying.client().get_run(run_id), dying.uri)
        assert tracking.pending() == []
    finally:
        dying.kill()


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(TilecastError, match="cannot be reached"), tracking.run("train", "http://127.0.0.1:9", print):
        pytest.fail("the work started")


def test_off_tracks_nothing(state: Path) -> None:
    with tracking.run("train", tracking.OFF, print) as run:
        run.metrics({"rows": 1})
    assert not state.exists()


def test_registered_sets_come_back(server: Server, estimators: Path) -> None:
    for _ in range(2):
        with tracking.run("train", server.uri, lambda text: None) as run:
            run.estimators(estimators)
            run.register("my-set", "staging")
    for name in ("models:/my-set/2", "models:/my-set@staging"):
        got = tracking.fetch(name, server.uri)
        assert (got / "manifest.json").read_text() == (estimators / "manifest.json").read_text()
    version = server.client().get_model_version("my-set", "2")
    assert version.tags["stage"] == "staging"
    with pytest.raises(RequestError, match="no estimators at 'models:/my-set/9'"):
        tracking.fetch("models:/my-set/9", server.uri)
    with pytest.raises(RequestError, match="expected models:/NAME/VERSION"):
        tracking.fetch("models:/my-set", server.uri)


def test_verbs_are_runs_and_a_registered_set_answers(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Train and register, evaluate and predict with the registered set, by command, on rows made up here."""
    rows, out, table = tmp_path / "rows.parquet", tmp_path / "made-up", tmp_path / "scored.parquet"
    dataset.write(made_up(), rows)
    monkeypatch.setenv("TILECAST_TRACKING_URI", server.uri)
    words = ["train", "--data", str(rows), "--holdout", "0.2", "--no-intervals", "--out", str(out)]
    assert main([*words, "--register", "made-up", "--stage", "staging"]) == 0
    name = "models:/made-up@staging"
    assert main(["evaluate", "kernels", str(rows), "--artifacts", name, "--out", str(table)]) == 0
    capsys.readouterr()
    forecast = ["predict", "--model", "gpt2", "--gpu", "h100", "--dtype", "bf16", "--json"]
    answers = []
    for artifacts in (name, str(out)):
        assert main([*forecast, "--artifacts", artifacts]) == 0
        answers.append(json.loads(capsys.readouterr().out)["latency_ms"])
    assert answers[0] == answers[1]
    trained, evaluated = (
        next(r for r in server.runs() if r.data.tags["tilecast.kind"] == kind) for kind in ("train", "evaluate")
    )
    assert trained.data.params["data_0.sha256"]
    assert trained.data.metrics["fitted_rows.gemm"] < 1200
    assert "heldout_shapes/h100-sxm/gemm/bf16/vllm/median_ape_pct" in trained.data.metrics
    assert evaluated.data.metrics["n"] == 1200
    assert [f.path for f in server.client().list_artifacts(evaluated.info.run_id)] == ["scored.parquet"]
    assert main(["predict", "--model", "gpt2", "--gpu", "h100", "--artifacts", "models:/made-up/7"]) == 2
