"""`tilecast runs`: runs that MLflow did not take, kept on this machine; `runs push` sends them."""

from __future__ import annotations

import argparse
import json
import time

EXAMPLES = """examples:
  tilecast runs
  tilecast runs push --tracking-uri http://mlflow.lab:5000
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `runs`."""
    parser.epilog = EXAMPLES
    parser.add_argument("what", nargs="?", choices=("list", "push"), default="list", help="list (default) or push")
    parser.add_argument(
        "--tracking-uri", metavar="URI", help="push: store to send to (default: where each was meant to go)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """List or send; status 1 where a run could not be sent."""
    from predictor import tracking
    from predictor.cli.tracked import say

    left = tracking.push_pending(arguments.tracking_uri, say) if arguments.what == "push" else 0
    kept = tracking.pending()
    if arguments.json:
        rows = [{"folder": str(p), "kind": r.kind, "status": r.status, "tracking_uri": r.uri} for p, r in kept]
        print(json.dumps({"kept": rows}, indent=2))
        return 1 if left else 0
    from predictor.files.terminal import screen
    from predictor.report import table

    console = screen()
    if not kept:
        store = tracking.resolve_uri(None)
        table.say(console, f"no runs are kept here; your own store: mlflow ui --backend-store-uri {store}")
    for place, record in kept:
        date = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.started_ms / 1e3))
        table.say(console, f"{record.kind:10} {record.status:9} for {record.uri}  ({place})", f"{date}  ")
    return 1 if left else 0
