"""The model registry: sets of estimators by name and version or stage, fetched once and then read from this machine."""

from __future__ import annotations

import hashlib
import importlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

from predictor.errors import RequestError, TilecastError
from predictor.tracking.store import SET_FOLDER, client_of, first_line, installed, resolve_uri, state_folder


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
        client = client_of(store)
        registered = (
            client.get_model_version_by_alias(model, stage) if stage else client.get_model_version(model, version)
        )
        digest = hashlib.sha256(f"{store} {registered.run_id}".encode()).hexdigest()[:12]
        place = state_folder() / "models" / f"{model}-{registered.version}-{digest}"
        if not (place / "manifest.json").is_file():
            _download(client, registered, place)
    except exceptions.MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise RequestError(f"no estimators at {name!r}: {first_line(error)} ({store})") from None
        raise TilecastError(f"{name} cannot be fetched from {store}: {first_line(error)}") from None
    except OSError as error:
        raise TilecastError(f"{name} cannot be fetched from {store}: {first_line(error)}") from None
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
