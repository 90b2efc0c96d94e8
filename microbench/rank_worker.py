"""The process that is one rank of a collective: what `microbench.ranks.RankGroup` starts one of for every GPU."""

from __future__ import annotations

import sys
from typing import Any

from microbench import worker
from microbench.case import Case
from microbench.ranks import RankMeasurer


def open_handler(device: Any, settings: dict[str, Any]) -> worker.Handler:
    """What answers {"case": ...} with a row; every rank is asked the same."""
    measurer = RankMeasurer(device, settings)
    return lambda document: measurer.measure(Case.from_json(document["case"]), document.get("samples_s"))


if __name__ == "__main__":
    sys.exit(worker.main(open_handler))
