"""The process that looks up kernels' names: CUPTI, once attached, slows every launch and replay of its process down.

So the worker that times has none, and this one, on the same device, times nothing. It waits, idle, meanwhile.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from microbench import kernels, launchers, worker
from microbench.case import Case
from microbench.launchers.base import allow_tf32

#: CUPTI, torn down and set up again around CUDA graphs, has crashed (torch.profiler sets the same two where inductor
#: uses graphs).
_VARIABLES = {"DISABLE_CUPTI_LAZY_REINIT": "1", "TEARDOWN_CUPTI": "0"}
#: Share of the memory that it keeps between cases: it is the timing worker's. Chosen by hand, not from data.
_KEPT_SHARE = 0.02


def open_handler(device: Any, settings: dict[str, Any]) -> worker.Handler:
    """What answers {"case": ...} with what its kernels are."""
    os.environ.update(_VARIABLES)
    device.kept_share = _KEPT_SHARE

    def handle(document: dict[str, Any]) -> dict[str, Any]:
        case = Case.from_json(document["case"])
        allow_tf32(case.op.dtype == "tf32", device)
        prepared = launchers.load(case.launcher).prepare(case, device)
        prepared.launch()
        device.synchronize()
        return kernels.profile(device, prepared.launch)

    return handle


if __name__ == "__main__":
    sys.exit(worker.main(open_handler))
