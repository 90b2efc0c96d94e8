"""Runs in MLflow: parameters, data hashes, versions, errors, figures, the artifact and its card.

A run is opened on the store before the work starts and filled when the work is done. Whatever happens to the store in
between (a server that dies, a full disk), the work goes on: the run is then kept in a folder of this machine, and
`tilecast runs push` sends it later. Nothing that Tilecast computes depends on MLflow.

    uri "off"                no tracking
    uri None                 $TILECAST_TRACKING_URI ("off", too), $MLFLOW_TRACKING_URI, else a SQLite file of this user:
                             no server needed
    uri http://, sqlite:///  that store

`record` holds what a run says, `lifecycle` opens and closes it, `store` sends it, `kept` keeps what a store did not
take, `registry` fetches sets of estimators, `figures` draws. `store` and `registry` alone import MLflow, and only where
a run is tracked.
"""

from predictor.tracking.kept import keep, pending, push_pending
from predictor.tracking.lifecycle import run
from predictor.tracking.record import Record, TrackedRun, flat
from predictor.tracking.registry import fetch, parse_name
from predictor.tracking.store import EXPERIMENT, OFF, SET_FOLDER, installed, is_off, resolve_uri, state_folder

__all__ = [
    "EXPERIMENT", "OFF", "SET_FOLDER", "Record", "TrackedRun", "fetch", "flat", "installed", "is_off", "keep",
    "parse_name", "pending", "push_pending", "resolve_uri", "run", "state_folder",
]  # fmt: skip
