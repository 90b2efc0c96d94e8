"""Runs in MLflow: a real server on loopback, the local store without one, a server that dies, the registry."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from predictor.errors import RequestError, TilecastError

mlflow = pytest.importorskip("mlflow", reason="tracking needs mlflow")

from test_train import made_up  # noqa: E402

from predictor import tracking  # noqa: E402
from predictor.cli.main import main  # noqa: E402
from predictor.data import dataset  # noqa: E402

# MLflow's own use of SQLAlchemy warns; our warnings stay errors.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:sqlalchemy", "ignore::DeprecationWarning:mlflow")


@functools.cache
def empty_store() -> bytes:
    """A new SQLite store of MLflow's: its migrations take two CPU seconds, so they run once, and for the tests of a new
    store."""
    with tempfile.TemporaryDirectory() as folder:
        uri = f"sqlite:///{folder}/store.db"
        mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri).search_experiments()
        return Path(folder, "store.db").read_bytes()


START_S = 300  # of a server that is up in five seconds on a quiet machine


class Server:
    """`mlflow server` on a free port of loopback, with a SQLite backend and a local artifact root."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "server.db").write_bytes(empty_store())
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        words = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self.folder / 'server.db'}",
            "--artifacts-destination", str(self.folder / "artifacts"),
        ]  # fmt: skip
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # eight processes that no test needs
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True, env=environment)
        until = time.monotonic() + START_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=20) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.2)
        self.kill()
        raise RuntimeError((self.folder / "server.log").read_text(encoding="utf-8"))

    def kill(self) -> None:
        """SIGKILL to it and its workers, where they run."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

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
    monkeypatch.delenv("TILECAST_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")  # a server that is busy is not one that is gone
    return tmp_path / "state"


@pytest.fixture
def estimators(tmp_path: Path) -> Path:
    folder = tmp_path / "my-set"
    folder.mkdir()
    (folder / "manifest.json").write_text(
        '{"schema_version": 2, "name": "my-set", "calibrated": [], "estimators": [], "gpus": ["p4"], "data": []}\n'
    )
    (folder / "README.md").write_text("# A card\n")
    return folder


def fill(run: tracking.TrackedRun, folder: Path) -> None:
    run.parameters({"seed": 0, "data": {"sha256": "abc", "file": "x.parquet"}})
    run.metrics({"rows": 210, "error": float("nan")})
    row = {"gpu": "p4", "operator": "linear", "n": 3, "mean_ape_pct": 4.5, "median_ape_pct": None}
    run.errors("heldout_gpus", [row])
    run.estimators(folder)
    run.dataset("x.parquet", "abc" * 20, "training")
    run.text("figures/errors.svg", "<svg/>")
    run.note("what came of it")


def check(found: Any, uri: str) -> None:
    assert found.info.status == "FINISHED"
    assert found.data.params["data.sha256"] == "abc"
    assert found.data.metrics["rows"] == 210
    assert found.data.metrics["heldout_gpus_mean_ape_pct/p4 linear"] == 4.5
    assert found.data.params["version.numpy"] == np.__version__
    assert [(i.dataset.name, i.dataset.digest[:6]) for i in found.inputs.dataset_inputs] == [("x.parquet", "abcabc")]
    assert found.data.tags["mlflow.note.content"] == "what came of it"
    assert "error" not in found.data.metrics
    assert found.data.tags["tilecast.kind"] == "train"
    names = {f.path for f in mlflow.MlflowClient(tracking_uri=uri).list_artifacts(found.info.run_id, "set")}
    assert names == {"set/README.md", "set/manifest.json"}
    figures = [f.path for f in mlflow.MlflowClient(tracking_uri=uri).list_artifacts(found.info.run_id, "figures")]
    assert figures == ["figures/errors.svg"]


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


@pytest.fixture
def store(state: Path) -> Path:
    """The user's own store, in which nothing is yet."""
    state.mkdir()
    (state / "mlflow.db").write_bytes(empty_store())
    return state


def test_a_failed_command_is_a_failed_run(store: Path) -> None:
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
    capsys.readouterr()
    assert main(["evaluate", "kernels", str(rows), "--artifacts", name, "--out", str(table), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["n"] == 1200, "nothing of MLflow's is on stdout"
    (page,) = re.findall(r"in MLflow: (http\S+)", said.err)
    assert page.startswith(f"{server.uri}/#/experiments/")
    forecast = ["predict", "--model", "gpt2", "--gpu", "h100", "--dtype", "bf16", "--json"]
    answers = []
    for artifacts in (name, str(out)):
        assert main([*forecast, "--artifacts", artifacts]) == 0
        answers.append(json.loads(capsys.readouterr().out)["latency_ms"])
    assert answers[0] == answers[1]
    page = tmp_path / "page.html"
    assert main([*forecast, "--artifacts", name, "--html", str(page)]) == 0
    assert name in page.read_text(encoding="utf-8"), "the command that makes it again, as it was typed"
    capsys.readouterr()
    trained, evaluated = (
        next(r for r in server.runs() if r.data.tags["tilecast.kind"] == kind) for kind in ("train", "evaluate")
    )
    assert trained.data.params["data_0.sha256"]
    assert trained.data.metrics["fitted_rows.gemm"] < 1200
    assert "heldout_shapes_median_ape_pct/h100-sxm gemm bf16 vllm" in trained.data.metrics
    assert "| all | gemm | bf16 |" in trained.data.tags["mlflow.note.content"]
    assert trained.info.run_name == "train made-up"
    assert trained.data.tags["mlflow.source.name"] == "tilecast train"
    figures = {f.path for f in server.client().list_artifacts(trained.info.run_id, "figures")}
    assert figures == {"figures/heldout_shapes_errors.svg"}
    assert evaluated.data.metrics["n"] == 1200
    assert evaluated.data.params["artifacts"] == name
    assert evaluated.data.params["set"] == "made-up"
    found = {f.path for f in server.client().list_artifacts(evaluated.info.run_id)}
    assert found == {"scored.parquet", "figures"}
    assert main(["predict", "--model", "gpt2", "--gpu", "h100", "--artifacts", "models:/made-up/7"]) == 2


def test_a_new_store_says_nothing_of_its_own(estimators: Path, tmp_path: Path) -> None:
    """A process of its own, as MLflow sets its log up once: our line on stderr, and no other."""
    code = (
        "import sys; from pathlib import Path; from predictor import tracking;"
        "say = lambda text: print(text, file=sys.stderr)\n"
        "with tracking.run('train', None, say) as run:\n"
        f"    run.estimators(Path({str(estimators)!r})); run.register('made-up', 'staging')\n"
        "tracking.fetch('models:/made-up@staging')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert line.startswith("run ")
    assert f"in MLflow: sqlite:///{tmp_path / 'state' / 'mlflow.db'}" in line
    assert done.stdout == ""


def test_a_collection_is_a_run_without_being_asked(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="extra 'torch'")
    from microbench_runs import collect_words, microbench, quick_sweeps, with_ceilings

    place = {"TILECAST_TRACKING_URI": "", "TILECAST_STATE": str(store)}
    mine = with_ceilings(tmp_path / "mine")
    microbench(*collect_words(mine, quick_sweeps(tmp_path / "sweeps"), "--max-cases", 3), **place)
    client = mlflow.MlflowClient(tracking_uri=tracking.resolve_uri(None))
    (found,) = client.search_runs([client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id])
    assert found.info.run_name == "collect mine"
    assert found.info.status == "FINISHED"
    assert found.data.metrics["new_rows"] >= 3
    assert found.data.params["device"] == "cpu"
    assert any(key.endswith("packages.torch") for key in found.data.params)


def test_register_needs_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILECAST_TRACKING_URI", "off")
    assert main(["train", "--data", "x.parquet", "--out", str(tmp_path / "set"), "--register", "lab"]) == 2


def test_an_address_that_is_none_is_the_users_mistake() -> None:
    with pytest.raises(RequestError, match="no such address"), tracking.run("train", "nosuch://there", print):
        pytest.fail("the work started")


def test_many_places_are_cut_and_counted() -> None:
    run = tracking.TrackedRun(tracking.Record("evaluate", ""))
    run.errors("kernels", [{"gpu": f"g{i}", "n": 1, "median_ape_pct": 1.0} for i in range(305)])
    assert run.record.parameters == {"kernels_places_not_logged": "5"}
    assert len(run.record.metrics) == 600


def test_figures_are_sound() -> None:
    import xml.etree.ElementTree as ElementTree

    from predictor.tracking.figures import error_bars, scatter

    rows = [
        {"gpu": "t4 <b>", "operator": "gemm", "n": 5, "median_ape_pct": 4.0, "p90_ape_pct": 8.0},
        {"gpu": "l4", "operator": "gemm", "n": 5, "median_ape_pct": 2.0, "p90_ape_pct": 3.0},
        {"gpu": "none", "operator": "gemm", "n": 0, "median_ape_pct": None},
    ]
    bars = [e for e in ElementTree.fromstring(error_bars("errors", rows)).iter() if e.tag.endswith("rect")][1:]
    first, second = (float(bar.get("width", "")) for bar in bars)
    assert first == pytest.approx(2 * second, rel=0.01), "the longest first, as long as they are large"
    points = ElementTree.fromstring(scatter("all", [1.0, 10.0, 0.0], [1.0, 20.0, 5.0]))
    (one, two) = [e for e in points.iter() if e.tag.endswith("circle")]
    assert float(one.get("cx", "")) < float(two.get("cx", ""))
    assert float(one.get("cy", "")) > float(two.get("cy", "")), "up is more"
    ElementTree.fromstring(scatter("none", [], []))
    ElementTree.fromstring(error_bars("none", []))
