"""`microbench collectives`: what torchrun starts on every GPU of several nodes: collectives over all of them.

The first rank says what is measured, and writes; the others follow. A rank that dies ends the group, as torchrun has
it: the case it was at is noted (`pending.json`), and the same command goes on behind it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from microbench import arguments as words
from microbench import collectives, environment, management, sweep
from microbench.capability import target_of
from microbench.case import Case
from microbench.collect import visible
from microbench.lane import now
from microbench.storage import write_atomic
from microbench.store import Store
from microbench.supervisor import WorkerError
from predictor.errors import RequestError
from predictor.files.commands import check_working_folder

PENDING = "pending.json"
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: Of each case, seconds of samples at most, and least samples: chosen by hand, not from data.
_SETTINGS = {"case_s": 0.4, "min_samples": 10}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `collectives`."""
    parser.epilog = (
        "example, on each of two nodes: torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d"
        " --rdzv-endpoint HOST:29500 -m microbench collectives --out datasets --budget 10min"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="NCCL over GPUs (default), or gloo")
    parser.add_argument("--budget", type=words.seconds, metavar="TIME", help="stop after it (default: all is done)")
    parser.add_argument("--max-cases", type=int, metavar="N", help="this many cases at most")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the data set; the first rank writes it")
    parser.add_argument("--wait", type=words.seconds, default=0.0, metavar="TIME", help="for another writer to end")
    parser.add_argument("--sweeps", type=Path, default=sweep.SWEEPS, metavar="DIR", help="sweep files of your own")


def run(arguments: argparse.Namespace) -> int:
    """Measure as one of the ranks; status 2 where torchrun did not start it."""
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise RequestError(f"collectives: no {missing[0]} in the environment: torchrun starts it (see --help)")
    check_working_folder()
    sweep.check_names(("collective",), arguments.sweeps)
    words.check_below_folder(arguments.out)
    node = _own_device(arguments.device)
    from microbench.devices import open_device
    from microbench.ranks import RankMeasurer

    device = open_device(arguments.device, 1)
    measurer = RankMeasurer(device, _SETTINGS)
    control = measurer.control
    links = _links(arguments.device, node, control.ranks, control.ranks_per_node)
    if len(set(control.every((links.link, links.ranks_per_node)))) > 1:
        raise RequestError("collectives: the nodes differ in their links or in how many GPUs take part")
    if control.rank == 0:
        return _lead(arguments, device, measurer, links)
    try:
        while (document := control.said(None)) is not None and "case" in document:
            _answer(measurer, document)
    except RuntimeError as error:  # gloo's word for it
        raise WorkerError(f"collectives: the first rank is gone: {str(error).splitlines()[0][:120]}") from None
    return 0


def _own_device(kind: str) -> list[str]:
    """Leaves this process the device of its local rank; the entries of its node's ranks. RequestError for too few."""
    entries, local = list(visible(kind)), int(os.environ["LOCAL_WORLD_SIZE"])
    if kind == "cpu":
        return []
    if len(entries) < local:
        many = len(entries)
        raise RequestError(f"collectives: {local} ranks on a node of {many} GPUs: expected --nproc-per-node {many}")
    os.environ["CUDA_VISIBLE_DEVICES"] = entries[int(os.environ["LOCAL_RANK"])]
    return entries[:local]


def _links(kind: str, node: list[str], ranks: int, local: int) -> collectives.Links:
    """What joins the ranks; processes without GPUs have no word for it, and their rows are no GPU's."""
    name, bandwidth = collectives.network()
    within = (
        "pcie"
        if kind == "cpu" or local == 1
        else management.joined_by([management.entry_board(entry) for entry in node])
    )
    if not within:
        raise RequestError("collectives: the driver does not say how the boards are joined")
    if ranks == local:
        return collectives.Links(within, local)
    return collectives.Links(within, local, name or "unknown", bandwidth if kind == "cuda" else 0.0)


def _lead(arguments: argparse.Namespace, device: Any, measurer: Any, links: collectives.Links) -> int:
    """The first rank: case after case, every row on the disk before the next begins."""
    until = None if arguments.budget is None else time.monotonic() + arguments.budget
    facts, about = json.loads(json.dumps([device.facts(), device.environment()]))  # plain text, as of a worker
    control = measurer.control
    run = {
        "run": uuid.uuid4().hex[:12], "started": now(), "settings": {**_SETTINGS, "budget_s": arguments.budget},
        "device": {key: value for key, value in facts.items() if key != "pid"}, "environment": about,
        "machine": environment.machine(), "packages": environment.versions(), "ranks": control.ranks,
        "ranks_per_node": control.ranks_per_node, "network": links.network,
    }  # fmt: skip
    store = Store(arguments.out, str(facts["id"]), str(facts["stack"]), run)
    store.open(arguments.wait)
    pending = store.path / PENDING
    try:
        _bury(store, pending)
        cases = collectives.between(target_of(facts), control.ranks, links, arguments.sweeps)
        missing = [case for case in cases if store.wants(case, False)][: arguments.max_cases]
        for case in missing:
            if until is not None and time.monotonic() >= until:
                break
            write_atomic(pending, json.dumps(case.to_json()).encode())
            document = control.said({"case": case.to_json()})
            row, failure = _answer(measurer, document)
            if failure is not None:
                store.add_failure(case, failure, now())
            else:
                store.add_row(case, _labelled(row, links, control))
            pending.unlink()
        control.said({"end": True})
        left = sum(store.wants(case, False) for case in missing)
        store.finish({"ended": now(), "rows": store.new_rows, "failures": store.new_failures})
    finally:
        store.close()
    print(
        f"{control.ranks} ranks, {control.ranks_per_node} a node: {store.new_rows} rows, "
        f"{store.new_failures} failures, {left} left"
    )
    return 0


def _answer(measurer: Any, document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A case on this rank: its row, and what failed on any of them."""
    from microbench.worker import classify, reason

    row: dict[str, Any] = {}
    failure = None
    try:
        row = measurer.measure(Case.from_json(document["case"]))
    except Exception as error:  # whatever a collective does is data
        failure = {"kind": classify(error), "reason": reason(error)}
        print(f"rank {measurer.control.rank}: {failure['reason']}", file=sys.stderr)
    failed = [each for each in measurer.control.every(failure) if each is not None]
    return row, failed[0] if failed else None


def _labelled(row: dict[str, Any], links: collectives.Links, control: Any) -> dict[str, Any]:
    """The row with what joins its nodes; apart where nobody knows what that gives."""
    if control.ranks_per_node == control.ranks:
        return row
    flags = [flag for flag in (row["flag"], "" if links.net_bandwidth else "network_unknown") if flag]
    return {**row, "network": links.network, "flag": ";".join(flags)}


def _bury(store: Store, pending: Path) -> None:
    """The case at which an earlier group died: a failure that is tried once more."""
    if not pending.is_file():
        return
    case = Case.from_json(json.loads(pending.read_text()))
    if store.wants(case, False):
        store.add_failure(case, {"kind": "worker_died", "reason": "the ranks ended while it was measured"}, now())
    pending.unlink()
