"""Runs on a store of MLflow: where it is, a run created on it, filled and closed."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from predictor.files.read import user_folder
from predictor.tracking.record import Record

OFF = "off"
EXPERIMENT = "tilecast"
SET_FOLDER = "set"  # where a run's artifacts hold the estimators
#: Source: mlflow/utils/validation.py, which has both.
BATCH = 100  # parameters (and 1000 metrics) that one request takes
LONGEST_DIGEST = 36  # characters of a data set's digest that MLflow takes


def state_folder() -> Path:
    """Where this user's runs are kept: $TILECAST_STATE, else below $XDG_STATE_HOME, else below ~/.local/state."""
    folder = os.environ.get("TILECAST_STATE")
    if folder:
        return Path(folder)
    return user_folder("XDG_STATE_HOME", ".local", "state") / "tilecast"


def resolve_uri(uri: str | None) -> str:
    """The store to use (see the package)."""
    chosen = os.environ.get("TILECAST_TRACKING_URI")
    if chosen == OFF:
        chosen = None
    return uri or chosen or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{state_folder() / 'mlflow.db'}"


def is_off(uri: str | None) -> bool:
    """Whether nothing is tracked: by the word of the command, or by the environment's."""
    return (uri or os.environ.get("TILECAST_TRACKING_URI")) == OFF


def installed() -> bool:
    """Whether MLflow can be imported, without importing it."""
    return importlib.util.find_spec("mlflow") is not None


def address(record: Record) -> str:
    """Where a person finds the run: its page on a server, else the store."""
    if not record.uri.startswith(("http://", "https://")):
        return record.uri
    return f"{record.uri.rstrip('/')}/#/experiments/{record.experiment}/runs/{record.run_id}"


def push(record: Record) -> None:
    """Fill the run on its store (a new one where the store has lost it) and close it. Raises what MLflow raises."""
    client = client_of(record.uri)
    entities: Any = importlib.import_module("mlflow.entities")
    if not record.run_id or not _alive(client, record.run_id):
        record.run_id = create(client, record)
    stamp = record.ended_ms
    metrics = [entities.Metric(k, v, stamp, 0) for k, v in record.metrics.items()]
    parameters = [entities.Param(k, v) for k, v in record.parameters.items()]
    for start in range(0, len(parameters), BATCH):
        client.log_batch(record.run_id, params=parameters[start : start + BATCH])
    for start in range(0, len(metrics), 10 * BATCH):
        client.log_batch(record.run_id, metrics=metrics[start : start + 10 * BATCH])
    client.log_batch(record.run_id, tags=[entities.RunTag(k, v) for k, v in record.tags.items()])
    if record.datasets:
        client.log_inputs(record.run_id, [_input(entities, each) for each in record.datasets])
    if record.folder:
        client.log_artifacts(record.run_id, record.folder, SET_FOLDER)
    for path in record.files:
        client.log_artifact(record.run_id, path)
    for name, content in record.texts.items():
        client.log_text(record.run_id, content, name)
    if record.register and record.status == "FINISHED":
        _register(client, record)
    client.set_terminated(record.run_id, record.status, record.ended_ms)


def _input(entities: Any, dataset: dict[str, str]) -> Any:
    made = entities.Dataset(dataset["name"], dataset["digest"][:LONGEST_DIGEST], "local", dataset["source"])
    return entities.DatasetInput(made, [entities.InputTag("mlflow.data.context", dataset["context"])])


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


def client_of(uri: str) -> Any:
    """A client of the store; its local folders are made. Impatient with servers: two tries of five seconds. MLflow's
    own log and progress bars are silent: errors come as exceptions."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # where our JSON goes
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    mlflow: Any = sys.modules.get("mlflow") or importlib.import_module("mlflow")
    for name in ("mlflow", "alembic"):  # after the import, which sets levels of its own
        logging.getLogger(name).setLevel(logging.ERROR)
    return mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)


def create(client: Any, record: Record) -> str:
    experiment_there = client.get_experiment_by_name(EXPERIMENT)
    if experiment_there is None:
        place = None
        if record.uri.startswith("sqlite:///"):
            place = (Path(record.uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()
        kind = {"mlflow.experimentKind": "custom_model_development"}  # else the page takes it for generative AI
        experiment = client.create_experiment(EXPERIMENT, artifact_location=place, tags=kind)
    else:
        experiment = experiment_there.experiment_id
    record.experiment = str(experiment)
    made = client.create_run(
        experiment, start_time=record.started_ms, tags=record.tags, run_name=record.name or record.kind
    )
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


def now() -> int:
    return int(time.time() * 1e3)


def first_line(error: BaseException) -> str:
    """What went wrong, in a line."""
    lines = str(error).strip().splitlines()
    if "HTTPConnectionPool" in str(error) or "Connection refused" in str(error):
        return "no server answers at this address"
    return lines[0][:200] if lines else type(error).__name__
