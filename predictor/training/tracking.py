"""Runs in MLflow: parameters, data hashes, errors, figures, the artifact and its card. The one module that imports it.

A run is opened on the store before the work starts and filled when the work is done. Whatever happens to the store in
between (a server that dies, a full disk), the work goes on: the run is then kept in a folder of this machine, and
`tilecast runs push` sends it later. Nothing that Tilecast computes depends on MLflow.

    uri "off"                no tracking
    uri None                 $TILECAST_TRACKING_URI ("off", too), $MLFLOW_TRACKING_URI, else a SQLite file of this user:
                             no server needed
    uri http://, sqlite:///  that store
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from predictor import __version__
from predictor.errors import RequestError, TilecastError
from predictor.files import atomic_write, read_json

OFF = "off"
EXPERIMENT = "tilecast"
SET_FOLDER = "set"  # where a run's artifacts hold the estimators
LONGEST_VALUE = 6000  # characters of a parameter that MLflow takes
BATCH = 100  # parameters (and 1000 metrics) that one request takes
PENDING = "run.json"


def state_folder() -> Path:
    """Where this user's runs are kept: $TILECAST_STATE, else below $XDG_STATE_HOME, else below ~/.local/state."""
    own = os.environ.get("TILECAST_STATE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tilecast"


def resolve_uri(uri: str | None) -> str:
    """The store to use (see the module)."""
    own = os.environ.get("TILECAST_TRACKING_URI")
    if own == OFF:
        own = None
    return uri or own or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{state_folder() / 'mlflow.db'}"


def installed() -> bool:
    """Whether MLflow can be imported, without importing it."""
    return importlib.util.find_spec("mlflow") is not None


@dataclass(slots=True)
class Record:
    """All that a run holds. ``folder`` is copied whole below `SET_FOLDER`; ``files`` lie beside it."""

    kind: str
    uri: str
    run_id: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    status: str = "RUNNING"
    parameters: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    files: list[str] = field(default_factory=list)
    register: str = ""
    stage: str = ""


class Run:
    """What a command fills while it works. Every method is cheap and raises nothing of MLflow's."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def parameters(self, values: Mapping[str, Any]) -> None:
        """Settings of the run; nested mappings become "a.b"."""
        for key, value in flat(values).items():
            self.record.parameters[_name(key)] = str(value)[:LONGEST_VALUE]

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Numbers of the run; what is no finite number is left out."""
        for key, value in flat(values).items():
            if isinstance(value, (int, float)) and abs(float(value)) < float("inf"):
                self.record.metrics[_name(key)] = float(value)

    def errors(self, group: str, rows: list[dict[str, Any]]) -> None:
        """Error tables as metrics: one a figure and group, named group/gpu/operator/dtype/framework/figure."""
        for row in rows:
            place = [
                str(row[k]) for k in ("gpu", "operator", "op", "mode", "dtype", "execution", "framework") if k in row
            ]
            figures = {
                k: row[k] for k in ("n", "mean_ape_pct", "median_ape_pct", "p90_ape_pct", "mean_signed_pct") if k in row
            }
            self.metrics({"/".join([group, *place, k]): v for k, v in figures.items() if v is not None})

    def estimators(self, folder: Path) -> None:
        """A folder of estimators, its card among them; the hashes of its data become parameters."""
        self.record.folder = str(folder.resolve())
        manifest = read_json(folder / "manifest.json")
        for number, source in enumerate(manifest.get("data", ())):
            self.parameters({f"data_{number}": source})
        self.parameters({"gpus": ",".join(manifest.get("gpus", ())), "set": manifest.get("name", "")})

    def file(self, path: Path) -> None:
        """One more file: a figure, a table."""
        self.record.files.append(str(path.resolve()))

    def register(self, name: str, stage: str) -> None:
        """Enter the folder of estimators into the model registry as a new version of ``name``, in ``stage``."""
        self.record.register, self.record.stage = name, stage


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as "a.b" keys."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _name(text: str) -> str:
    """A key that MLflow takes: letters, digits, _ - . / and spaces, at most 250 of them."""
    return "".join(c if c.isalnum() or c in "_-./ " else "_" for c in text)[:250]


@contextmanager
def run(kind: str, uri: str | None, say: Callable[[str], None], insist: bool = False) -> Iterator[Run]:
    """A run of one command. ``say`` takes the lines that a person should read.

    Where the user named a ``uri`` (or with ``insist``), raises TilecastError before the work starts if MLflow is
    missing or the store does not answer; by default a store that cannot be opened costs a line and no more.
    """
    record = Record(kind, "", started_ms=_now(), tags={"tilecast.version": __version__, "tilecast.kind": kind})
    insist = insist or uri is not None
    uri = uri or os.environ.get("TILECAST_TRACKING_URI")
    if uri == OFF or not (insist or installed()):
        yield Run(record)
        return
    if not installed():
        raise TilecastError("--tracking-uri needs mlflow, which is not installed: pip install 'tilecast[train]'")
    record.uri = resolve_uri(uri)
    record.tags["mlflow.source.git.commit"] = git_commit()
    open_run(record, insist, say)
    try:
        yield Run(record)
    except BaseException as error:
        record.status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        record.tags["error"] = " ".join(str(error).split())[:500]
        close_run(record, say)
        raise
    record.status = "FINISHED"
    close_run(record, say)


def open_run(record: Record, insist: bool, say: Callable[[str], None]) -> None:
    """Create the run on its store; TilecastError where that fails and ``insist``, else a line."""
    try:
        client = _client(record.uri)
        record.run_id = _create(client, record)
    except TilecastError:
        raise
    except Exception as error:  # MLflow raises many kinds, requests and SQLAlchemy more
        reason = f"MLflow at {record.uri} cannot be reached: {_first(error)}"
        if insist:
            raise TilecastError(f"--tracking-uri: {reason}") from None
        say(f"{reason}; the run will be kept in {state_folder()}")


def close_run(record: Record, say: Callable[[str], None]) -> None:
    """Send the whole run; keep it on this machine where the store does not take it."""
    record.ended_ms = _now()
    try:
        push(record)
        say(f"run {record.run_id} in MLflow: {record.uri}")
    except Exception as error:
        try:
            kept = keep(record)
        except OSError as full:
            say(f"MLflow at {record.uri} failed ({_first(error)}), and the run cannot be kept: {full.strerror}")
            return
        say(
            f"MLflow at {record.uri} failed ({_first(error)}); the run is kept in {kept}: send it, `tilecast runs push`"
        )


def push(record: Record) -> None:
    """Fill the run on its store (a new one where the store has lost it) and close it. Raises what MLflow raises."""
    client = _client(record.uri)
    entities: Any = importlib.import_module("mlflow.entities")
    if not record.run_id or not _alive(client, record.run_id):
        record.run_id = _create(client, record)
    stamp = record.ended_ms
    metrics = [entities.Metric(k, v, stamp, 0) for k, v in record.metrics.items()]
    parameters = [entities.Param(k, v) for k, v in record.parameters.items()]
    for start in range(0, len(parameters), BATCH):
        client.log_batch(record.run_id, params=parameters[start : start + BATCH])
    for start in range(0, len(metrics), 10 * BATCH):
        client.log_batch(record.run_id, metrics=metrics[start : start + 10 * BATCH])
    client.log_batch(record.run_id, tags=[entities.RunTag(k, v) for k, v in record.tags.items()])
    if record.folder:
        client.log_artifacts(record.run_id, record.folder, SET_FOLDER)
    for path in record.files:
        client.log_artifact(record.run_id, path)
    if record.register and record.status == "FINISHED":
        _register(client, record)
    client.set_terminated(record.run_id, record.status, record.ended_ms)


def _register(client: Any, record: Record) -> None:
    """A new version in the registry; its stage is a tag and, as MLflow 3 wants it, an alias."""
    exceptions: Any = importlib.import_module("mlflow.exceptions")
    try:
        client.create_registered_model(record.register, description="Estimators of Tilecast")
    except exceptions.MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    source = f"{client.get_run(record.run_id).info.artifact_uri}/{SET_FOLDER}"
    version = client.create_model_version(record.register, source, run_id=record.run_id, tags={"stage": record.stage})
    client.set_registered_model_alias(record.register, record.stage, version.version)


def _client(uri: str) -> Any:
    """A client of the store; its local folders are made. Impatient with servers: two tries of five seconds."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    logging = importlib.import_module("logging")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    mlflow: Any = importlib.import_module("mlflow")
    return mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)


def _create(client: Any, record: Record) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        place = None
        if record.uri.startswith("sqlite:///"):
            place = (Path(record.uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()
        experiment = client.create_experiment(EXPERIMENT, artifact_location=place)
    else:
        experiment = found.experiment_id
    made = client.create_run(experiment, start_time=record.started_ms, tags=record.tags, run_name=record.kind)
    return str(made.info.run_id)


def _alive(client: Any, run_id: str) -> bool:
    exceptions: Any = importlib.import_module("mlflow.exceptions")
    try:
        client.get_run(run_id)
    except exceptions.MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    return True


# ------------------------------------------------------------------------------------------ runs kept on this machine


def keep(record: Record) -> Path:
    """Copy a run and its artifacts into a folder of their own, whole or not at all; that folder."""
    home = state_folder() / "pending"
    home.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=home, prefix=".new."))
    try:
        kept = Record(**asdict(record))
        if record.folder:
            shutil.copytree(record.folder, temporary / SET_FOLDER)
            kept.folder = SET_FOLDER
        kept.files = []
        for path in map(Path, record.files):
            shutil.copy2(path, temporary / path.name)
            kept.files.append(path.name)
        atomic_write(temporary / PENDING, (json.dumps(asdict(kept), indent=1) + "\n").encode())
        place = home / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(record.started_ms / 1e3))}-{temporary.name[5:]}"
        temporary.rename(place)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return place


def pending() -> list[tuple[Path, Record]]:
    """Runs kept on this machine, the oldest first."""
    found = []
    for path in sorted((state_folder() / "pending").glob(f"[!.]*/{PENDING}")):
        record = Record(**read_json(path))
        record.folder = str(path.parent / record.folder) if record.folder else ""
        record.files = [str(path.parent / name) for name in record.files]
        found.append((path.parent, record))
    return found


def push_pending(uri: str | None, say: Callable[[str], None]) -> int:
    """Send every kept run, to ``uri`` or to where it was meant to go; how many are left. A sent run is removed here."""
    left = 0
    for place, record in pending():
        record.uri = uri or record.uri
        try:
            push(record)
        except Exception as error:
            say(f"{place.name}: MLflow at {record.uri} failed ({_first(error)}); kept")
            left += 1
            continue
        shutil.rmtree(place)
        say(f"{place.name}: sent as run {record.run_id} to {record.uri}")
    return left


# ------------------------------------------------------------------------------------------ the registry


def fetch(name: str, uri: str | None = None) -> Path:
    """The folder of a registered set, ``models:/NAME/VERSION`` or ``models:/NAME@STAGE``; a version is fetched once.

    Raises RequestError where the registry has no such set, TilecastError where it cannot be read.
    """
    model, version, stage = parse_name(name)
    store = resolve_uri(uri)
    if not installed():
        raise TilecastError(f"{name} needs mlflow, which is not installed: pip install 'tilecast[train]'")
    exceptions: Any = importlib.import_module("mlflow.exceptions")
    try:
        client = _client(store)
        found = client.get_model_version_by_alias(model, stage) if stage else client.get_model_version(model, version)
        digest = importlib.import_module("hashlib").sha256(f"{store} {found.run_id}".encode()).hexdigest()[:12]
        place = state_folder() / "models" / f"{model}-{found.version}-{digest}"
        if not (place / "manifest.json").is_file():
            _download(client, found, place)
    except exceptions.MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise RequestError(f"no estimators at {name!r}: {_first(error)} ({store})") from None
        raise TilecastError(f"{name} cannot be fetched from {store}: {_first(error)}") from None
    except OSError as error:
        raise TilecastError(f"{name} cannot be fetched from {store}: {_first(error)}") from None
    return place


def parse_name(name: str) -> tuple[str, str, str]:
    """(model, version, stage) of ``models:/NAME/VERSION`` or ``models:/NAME@STAGE``; RequestError otherwise."""
    rest = name.removeprefix("models:/")
    model, at, stage = rest.partition("@")
    if at and model and stage and "/" not in rest:
        return model, "", stage
    model, _, version = rest.partition("/")
    if not model or not version.isdigit():
        raise RequestError(f"--artifacts {name!r}: expected models:/NAME/VERSION or models:/NAME@STAGE")
    return model, version, ""


def _download(client: Any, version: Any, place: Path) -> None:
    artifacts: Any = importlib.import_module("mlflow.artifacts")
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=place.parent, prefix=".new."))
    try:
        got = Path(
            artifacts.download_artifacts(
                run_id=version.run_id,
                artifact_path=SET_FOLDER,
                dst_path=str(temporary),
                tracking_uri=client.tracking_uri,
            )
        )
        got.rename(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def git_commit() -> str:
    """Commit of the checkout that runs, with "+changes" where files differ from it; "" outside a checkout."""
    root = Path(__file__).resolve().parents[2]

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False, timeout=10)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "HEAD") if (root / ".git").exists() else ""
        return commit + ("+changes" if commit and git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _now() -> int:
    return int(time.time() * 1e3)


def _first(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
